"""`kbt prefetch`, its lock, and runs that need no hub because of it."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels_bench_tools.hub import HubStatus
from kernels_bench_tools.hub.store import read_lock
from kernels_bench_tools.records.hub import find_lock

Place = Any

NOTEBOOK = """\
---
title: A kernel
---

```python id=benchmark
from kernels_bench_tools import get_kernel

one = get_kernel("kernels-community/scale@1")
two = get_kernel({"cuda": "kernels-community/none@1", "cpu": "kernels-community/scale@>=2"})
three = get_kernel("some-org/scale", version=1, trust=["some-org"])
four = get_kernel(input())
five = get_kernel("kernels-community/scale")
```
"""


def run_kbt(place: Place, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    hidden = ("HF_", "KERNELS_", "KBT_", "LOCAL_KERNELS", "USE_HUB_KERNELS")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(hidden)}
    return subprocess.run(
        [sys.executable, "-m", "kernels_bench_tools", "prefetch", *arguments],
        cwd=place.folder,
        env={**kept, **place.variables(**variables)},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def test_prefetched_kernels_need_no_hub(place: Place) -> None:
    place.hub.publish(place.repo, place.make(factor=3), "v1")
    place.hub.publish(place.repo, place.make("two", factor=5, version=2), "v2")
    place.hub.publish("some-org/scale", place.make("own", factor=7), "v1")
    (place.folder / "notebook.md").write_text(NOTEBOOK)
    (place.folder / "broken.md").write_text("---\ntitle: [x\n---\n\n```python id=a\n1\n```\n")

    done = run_kbt(place)

    assert done.returncode == 0, done.stderr
    assert done.stdout.count("✓") == 3
    assert "3 locked in kernels.lock" in done.stdout
    assert "note: broken.md:3: the front matter is not YAML" in done.stderr
    assert "notebook.md:11: its reference is not a literal" in done.stderr
    assert "notebook.md:12: its reference has no version; skipped. Add one, such as @1." in done.stderr
    place.hub.log.clear()
    allowed = {"reference": "some-org/scale@1", "trust": ["some-org"]}
    outcome = place.load(f"{place.repo}@1", f"{place.repo}@>=2", allowed)
    assert [one.get("value") for one in outcome.all] == [3, 5, 7]
    assert {one["origin"] for one in outcome.loaded} == {"lock"}
    assert place.hub.log == []
    assert place.load(f"{place.repo}@>=2", HF_HUB_OFFLINE="1").value == 5


def test_the_lock_holds_commit_build_and_files_and_no_path_of_this_machine(place: Place) -> None:
    commit = place.hub.publish(place.repo, place.make(), "v1")

    assert place.prefetch(f"{place.repo}@1", lock="own.lock")["code"] == 0

    (kernel,) = read_lock(place.folder / "own.lock").kernels
    assert (kernel.repo, kernel.pin, kernel.commit, kernel.trusted) == (place.repo, "1", commit, "publisher")
    assert kernel.builds["torch-cpu"].files.keys() == {"__init__.py", "layers.py", "metadata.json"}
    assert str(place.folder) not in (place.folder / "own.lock").read_text()


def test_a_locked_branch_stays_at_its_commit(place: Place) -> None:
    place.hub.publish(place.repo, place.make("one", factor=3), "main")
    place.prefetch(f"{place.repo}@main")
    place.hub.publish(place.repo, place.make("two", factor=5), "main")

    assert place.load(f"{place.repo}@main").value == 3
    assert (
        place.load(f"{place.repo}@main", KBT_KERNELS_LOCK=str(place.folder / "none.lock")).status == "mistake"
    )
    assert place.prefetch(f"{place.repo}@main")["code"] == 0
    assert place.load(f"{place.repo}@main").value == 5


def test_a_lock_on_another_machine_fetches_its_commit(place: Place) -> None:
    place.hub.publish(place.repo, place.make("one", factor=3), "v1")
    place.prefetch(f"{place.repo}@1")
    place.hub.publish(place.repo, place.make("two", factor=5), "v1")
    empty = {"KERNELS_CACHE": str(place.folder / "empty")}

    fetched = place.load(f"{place.repo}@1", **empty)
    offline = place.load(f"{place.repo}@1", HF_HUB_OFFLINE="1", KERNELS_CACHE=str(place.folder / "other"))

    assert (fetched.value, fetched.loaded[0]["origin"]) == (3, "lock")
    assert offline.status == HubStatus.NOT_IN_CACHE
    assert "is locked to" in offline.reason


def test_files_that_are_not_the_locked_ones_are_refused(place: Place) -> None:
    place.hub.publish(place.repo, place.make(), "v1")
    place.prefetch(f"{place.repo}@1")
    lock = place.folder / "kernels.lock"
    data = json.loads(lock.read_text())
    data["kernels"][0]["builds"]["torch-cpu"]["files"]["layers.py"] = "0" * 64
    lock.write_text(json.dumps(data))

    outcome = place.load(f"{place.repo}@1")

    assert outcome.status == HubStatus.FILES_CHANGED
    assert "layers.py" in outcome.reason


def test_a_lock_does_not_replace_the_allow_list(place: Place) -> None:
    place.hub.publish("some-org/scale", place.make(), "v1")
    assert place.prefetch("some-org/scale@1", trust=["some-org"])["code"] == 0

    assert place.load("some-org/scale@1").status == HubStatus.UNTRUSTED_PUBLISHER


def test_a_failed_request_keeps_its_entry_in_the_lock(place: Place) -> None:
    place.hub.publish(place.repo, place.make(), "v1")
    place.prefetch(f"{place.repo}@1")
    before = (place.folder / "kernels.lock").read_bytes()
    place.hub.close()

    done = place.prefetch(f"{place.repo}@1", "kernels-community/none@1")

    assert done["code"] == 2
    assert [one["status"] for one in done["fetched"]] == [HubStatus.HUB_UNREACHABLE] * 2
    assert done["fetched"][0]["reason"] == "the hub cannot be reached: [Errno 111] Connection refused"
    assert (place.folder / "kernels.lock").read_bytes() == before


def test_what_a_kernel_depends_on_is_locked_with_it(place: Place) -> None:
    depends = [{"repo-id": "kernels-community/base", "version": 1}]
    place.hub.publish(place.repo, place.make(metadata={"kernel-depends": depends}), "v1")
    place.hub.publish("kernels-community/base", place.make("base", name="base"), "v1")

    assert place.prefetch(f"{place.repo}@1")["code"] == 0

    locked = [kernel.repo for kernel in read_lock(place.folder / "kernels.lock").kernels]
    assert locked == ["kernels-community/base", place.repo]


@pytest.mark.parametrize(
    ("text", "what"),
    [("[]", "is not a lock file"), ("{", "is not a lock file"), ('{"format": 2}', "has the format 2")],
)
def test_a_lock_file_of_another_format_is_an_error(place: Place, text: str, what: str) -> None:
    (place.folder / "kernels.lock").write_text(text)

    outcome = place.load(f"{place.repo}@1")
    done = place.prefetch(f"{place.repo}@1")

    assert (outcome.status, what in outcome.reason) == ("mistake", True)
    assert (done["code"], what in done["stderr"]) == (3, True)


def test_a_bad_reference_is_the_user_s_mistake_and_others_are_locked(place: Place) -> None:
    place.hub.publish(place.repo, place.make(), "v1")

    done = run_kbt(place, "scale", "a/b@1@2", f"{place.repo}@1")

    assert done.returncode == 2
    _, first, second = done.stderr.splitlines()
    assert first.startswith("kbt: get_kernel('scale'): is not a reference")
    assert second.startswith("kbt: get_kernel('a/b@1@2'): has '1@2' for a version or revision")
    assert done.stdout.endswith("1 locked in kernels.lock\n")


def test_a_lock_that_cannot_be_written_is_the_user_s_mistake_and_nothing_is_locked(place: Place) -> None:
    place.hub.publish(place.repo, place.make(), "v1")
    (place.folder / "file").touch()

    done = run_kbt(place, f"{place.repo}@1", "--lock", "file/kernels.lock")

    assert done.returncode == 2
    _, line = done.stderr.splitlines()
    assert "kernels.lock: cannot be written" in line
    assert done.stdout == "nothing was locked\n"


def test_a_folder_is_named_as_not_locked(place: Place) -> None:
    done = run_kbt(place, "./mine")

    assert done.returncode == 0
    assert "note: ./mine: a folder of this machine, which no lock can contain\n" in done.stderr


def test_an_unavailable_kernel_is_a_line_with_its_status(place: Place) -> None:
    place.hub.close()

    done = run_kbt(place, f"{place.repo}@1")

    assert done.returncode == 1
    assert f"✗ {place.repo}@1  the hub cannot be reached: [Errno 111]" in done.stderr
    assert "[hub-unreachable]" in done.stderr
    assert done.stdout == "nothing was locked\n"
    assert not (place.folder / "kernels.lock").exists()
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("locks", "marks", "found"),
    [
        (["kernels.lock"], [], "kernels.lock"),
        (["kernels.lock", "op/kernels.lock"], [], "op/kernels.lock"),
        (["op/impls/kernels.lock"], ["op/impls/.git"], "op/impls/kernels.lock"),
        (["kernels.lock"], ["op/.git"], None),
        (["kernels.lock"], ["op/pyproject.toml"], None),
        ([], [], None),
    ],
)
def test_the_nearest_lock_up_to_the_root_of_the_project_applies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, locks: list[str], marks: list[str], found: str | None
) -> None:
    monkeypatch.delenv("KBT_KERNELS_LOCK", raising=False)
    (tmp_path / "pyproject.toml").touch()
    (tmp_path / "op/impls").mkdir(parents=True)
    for name in (*locks, *marks):
        (tmp_path / name).touch()

    assert find_lock(tmp_path / "op/impls") == (tmp_path / found if found else None)
