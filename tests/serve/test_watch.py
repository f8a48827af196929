"""Which changed files the watcher of ``kbt serve`` reports."""

from pathlib import Path

import pytest

from kernels_bench_tools.serve.server import Watcher


@pytest.fixture
def root(tmp_path: Path) -> Path:
    for folder in (".kbt", ".git", "site", "op/impls", "env/lib", "out"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "env/pyvenv.cfg").touch()
    (tmp_path / "op/impls/x.md").write_text("one")
    return tmp_path


@pytest.fixture
def watcher(root: Path) -> Watcher:
    return Watcher(root, lambda folder: folder.name in {"site", "out"})


def test_edited_replaced_renamed_deleted_and_new_files_are_reported(root: Path, watcher: Watcher) -> None:
    folder = root / "op/impls"
    (folder / "x.md").write_text("more")  # right after construction
    assert watcher.wait() == ["op/impls/x.md"]
    (folder / ".x.md.new").write_text("less")
    (folder / ".x.md.new").replace(folder / "x.md")
    assert watcher.wait() == ["op/impls/x.md"]
    (folder / "x.md").rename(folder / "y.md")
    assert watcher.wait() == ["op/impls/x.md", "op/impls/y.md"]
    (folder / "y.md").unlink()
    assert watcher.wait() == ["op/impls/y.md"]
    (root / "new").mkdir()
    (root / "new/a.md").touch()
    assert watcher.wait() == ["new/a.md"]
    (root / "new").rename(root / "renamed")
    assert watcher.wait() == ["new/a.md", "renamed/a.md"]


def test_output_environments_hidden_and_temporary_files_are_ignored(root: Path, watcher: Watcher) -> None:
    for name in (".kbt/build.json", "site/index.html", "out/index.html", "env/lib/x.py", ".git/HEAD"):
        (root / name).write_text("x")
    for name in (".x.md.swp", "x.md~", "x.pyc", "#x.md#"):
        (root / "op/impls" / name).write_text("x")
    (root / "last.md").write_text("x")

    assert watcher.wait() == ["last.md"]
