"""The lock of ``kernels``, which fixes the commits of versions and branches."""

from pathlib import Path
from typing import Any

import pytest

from kernels_bench_tools.hub import HubStatus
from kernels_bench_tools.records.hub import find_lock

Place = Any


@pytest.mark.parametrize("pin", [1, "main"])
def test_a_locked_version_or_branch_stays_at_its_commit(place: Place, pin: int | str) -> None:
    branch = f"v{pin}" if pin == 1 else "main"
    commit = place.hub.publish(place.repo, place.make("one", factor=3), branch)
    place.hub.publish(place.repo, place.make("two", factor=5), branch)
    assert place.load(f"{place.repo}@{pin}").value == 5
    place.lock(commit, pin)

    fetched, known = place.load(f"{place.repo}@{pin}"), place.load(f"{place.repo}@{pin}", HF_HUB_OFFLINE="1")

    assert (fetched.value, known.value) == (3, 3)
    assert {(one["origin"], one["commit"]) for one in (*fetched.loaded, *known.loaded)} == {("lock", commit)}


def test_a_lock_does_not_replace_the_allow_list(place: Place) -> None:
    commit = place.hub.publish("some-org/scale", place.make(), "v1")
    assert place.load({"reference": "some-org/scale@1", "trust": ["some-org"]}).status == HubStatus.OK
    place.lock(commit, repo="some-org/scale")

    assert place.load("some-org/scale@1").status == HubStatus.UNTRUSTED_PUBLISHER


@pytest.mark.parametrize("commit", [None, "../../../evil", "abc"])
def test_a_lock_file_that_kernels_would_not_read_is_the_user_s_mistake(
    place: Place, commit: str | None
) -> None:
    real = place.hub.publish(place.repo, place.make(), "v1")
    lock = place.lock(real)
    lock.write_text(lock.read_text().replace(real, commit) if commit else "{")

    assert place.load(f"{place.repo}@1").status == "mistake"


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
