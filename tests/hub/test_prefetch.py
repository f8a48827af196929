"""`kbt prefetch`, its lock, and runs that need no hub because of it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kernels_bench_tools.hub import HubStatus
from kernels_bench_tools.hub.resolve import read_locks
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
    assert all(f"notebook.md:{line}: " in done.stderr for line in (11, 12)), "neither literal nor pinned"
    place.hub.log.clear()
    allowed = {"reference": "some-org/scale@1", "trust": ["some-org"]}
    outcome = place.load(f"{place.repo}@1", allowed)
    assert [one.get("value") for one in outcome.all] == [3, 7]
    assert {one["origin"] for one in outcome.loaded} == {"lock"}
    assert place.hub.log == []
    assert place.load(f"{place.repo}@>=2", HF_HUB_OFFLINE="1").value == 5, (
        "downloaded, as a lock has no bounds"
    )


def locked(place: Place, name: str = "kernels.lock") -> dict[str, str]:
    """Return the commit of each kernel in a lock."""
    locks = read_locks(place.folder / name)
    return {one.repo_id: locks[one].commit for one in locks}


def test_the_lock_is_read_by_kernels_and_holds_no_path_of_this_machine(place: Place) -> None:
    from kernels.locking import get_locked_kernel_revision

    commit = place.hub.publish(place.repo, place.make(), "v1")

    assert place.prefetch(f"{place.repo}@1", lock="own.lock")["code"] == 0

    locks, dependency = get_locked_kernel_revision(place.repo, place.folder / "own.lock")
    assert (dependency.version.version, locks[dependency].commit) == (1, commit)
    assert str(place.folder) not in (place.folder / "own.lock").read_text()


def test_a_lock_that_kernels_wrote_is_used(place: Place) -> None:
    from kernels._rust import KernelDependency, KernelLock, KernelLocks, KernelVersion

    commit = place.hub.publish(place.repo, place.make("one", factor=3), "v1")
    place.hub.publish(place.repo, place.make("two", factor=5), "v1")
    dependency = KernelDependency(place.repo, KernelVersion.Version(1))
    (place.folder / "kernels.lock").write_text(KernelLocks({dependency: KernelLock(commit)}).to_json())

    outcome = place.load(f"{place.repo}@1")

    assert (outcome.value, outcome.loaded[0]["origin"], outcome.loaded[0]["commit"]) == (3, "lock", commit)


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


def test_a_lock_does_not_replace_the_allow_list(place: Place) -> None:
    place.hub.publish("some-org/scale", place.make(), "v1")
    assert place.prefetch("some-org/scale@1", trust=["some-org"])["code"] == 0

    assert place.load("some-org/scale@1").status == HubStatus.UNTRUSTED_PUBLISHER


def test_a_lock_that_cannot_be_written_is_the_users_mistake(place: Place) -> None:
    place.hub.publish(place.repo, place.make(), "v1")
    (place.folder / "file").touch()

    done = place.prefetch(f"{place.repo}@1", lock="file/kernels.lock")

    assert done["code"] == 3
    assert "kernels.lock: cannot be written" in done["stderr"]


def test_a_failed_request_keeps_its_entry_in_the_lock(place: Place) -> None:
    place.hub.publish(place.repo, place.make(), "v1")
    place.prefetch(f"{place.repo}@1")
    before = (place.folder / "kernels.lock").read_bytes()
    place.hub.close()

    done = place.prefetch(f"{place.repo}@1", "kernels-community/none@1")

    assert done["code"] == 2
    assert [one["status"] for one in done["fetched"]] == [HubStatus.HUB_UNREACHABLE] * 2
    assert (place.folder / "kernels.lock").read_bytes() == before


def test_what_a_kernel_depends_on_is_locked_with_it(place: Place) -> None:
    depends = [{"repo-id": "kernels-community/base", "version": 1}]
    place.hub.publish(place.repo, place.make(metadata={"kernel-depends": depends}), "v1")
    place.hub.publish("kernels-community/base", place.make("base", name="base"), "v1")

    assert place.prefetch(f"{place.repo}@1")["code"] == 0

    assert locked(place).keys() == {"kernels-community/base", place.repo}


@pytest.mark.parametrize("commit", [None, "../../../evil", "abc"])
def test_a_damaged_lock_is_the_users_mistake(place: Place, commit: str | None) -> None:
    place.hub.publish(place.repo, place.make(), "v1")
    place.prefetch(f"{place.repo}@1")
    lock = place.folder / "kernels.lock"
    lock.write_text(lock.read_text().replace(*locked(place).values(), commit) if commit else "{")

    assert place.load(f"{place.repo}@1").status == "mistake"
    assert place.prefetch(f"{place.repo}@1")["code"] == 3


def test_mistakes_cost_themselves_and_other_references_are_locked(place: Place) -> None:
    place.hub.publish(place.repo, place.make(), "v1")

    done = run_kbt(place, "scale", "a/b@1@2", "./mine", f"{place.repo}@1")

    assert done.returncode == 2
    assert [line.split(":")[1].strip() for line in done.stderr.splitlines()[1:]] == [
        "get_kernel('scale')",
        "get_kernel('a/b@1@2')",
        "./mine",
    ]
    assert locked(place).keys() == {place.repo}


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
