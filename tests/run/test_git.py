from pathlib import Path

import pytest
from projects import git

from kernels_bench_tools.run.git import Checkout


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.delenv("KBT_COMMIT", raising=False)
    git(tmp_path, "init", "--quiet")
    (tmp_path / "a").write_text("1")
    git(tmp_path, "add", "a")
    git(tmp_path, "commit", "--quiet", "--message", "one")
    return tmp_path


def test_the_commit_is_that_of_git(repository: Path) -> None:
    commit = git(repository, "rev-parse", "HEAD")
    assert Checkout(repository).commit == commit

    git(repository, "pack-refs", "--all")
    assert Checkout(repository).commit == commit

    git(repository, "checkout", "--quiet", "--detach")
    assert Checkout(repository).commit == commit


def test_a_worktree_has_its_own_commit(repository: Path, tmp_path: Path) -> None:
    git(repository, "worktree", "add", "--quiet", "-b", "side", "side")
    (repository / "side" / "b").write_text("2")
    git(repository / "side", "add", "b")
    git(repository / "side", "commit", "--quiet", "--message", "two")

    assert Checkout(repository / "side").commit == git(repository / "side", "rev-parse", "HEAD")
    assert Checkout(repository / "side").commit != Checkout(repository).commit


def test_a_change_makes_the_checkout_dirty(repository: Path) -> None:
    assert Checkout(repository).dirty is False

    (repository / "a").write_text("2")

    assert Checkout(repository).dirty is True


def test_dirty_is_unknown_if_the_commit_comes_from_the_variable(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KBT_COMMIT", "abc123")
    (repository / "a").write_text("2")

    assert Checkout(repository).commit == "abc123"
    assert Checkout(repository).dirty is None


def test_a_folder_without_a_repository_has_only_the_commit_of_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KBT_COMMIT", raising=False)
    assert Checkout(tmp_path).commit == ""
    assert Checkout(tmp_path).dirty is None

    monkeypatch.setenv("KBT_COMMIT", "abc123")

    assert Checkout(tmp_path).commit == "abc123"
    assert Checkout(tmp_path).dirty is None
