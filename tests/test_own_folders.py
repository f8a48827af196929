"""Folders are removed without following a link, however deep they are, and by one function."""

import os
import re
from pathlib import Path

import pytest

from kernels_bench_tools import own_folders
from kernels_bench_tools.own_folders import remove_tree

PACKAGE = Path(own_folders.__file__).parent
REMOVES = re.compile(r"rmtree|TemporaryDirectory|removedirs")


def test_no_other_module_removes_folders_with_their_content():
    others = [path for path in PACKAGE.rglob("*.py") if path.name != "own_folders.py"]

    assert [str(path) for path in others if REMOVES.search(path.read_text())] == []


def make_tree(folder: Path) -> None:
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_text("kept")


def test_a_folder_is_removed_with_its_links_but_not_what_they_name(tmp_path):
    make_tree(tmp_path / "outside")
    make_tree(tmp_path / "ours")
    (tmp_path / "ours/a/link").symlink_to(tmp_path / "outside")
    (tmp_path / "ours/a/b").chmod(0)
    (tmp_path / "ours").chmod(0o500)

    remove_tree(tmp_path / "ours", tmp_path, strict=True)

    assert not (tmp_path / "ours").exists()
    assert (tmp_path / "outside/a/b/file").read_text() == "kept"


def test_a_link_on_the_way_is_refused_and_a_link_at_the_end_is_removed_itself(tmp_path):
    make_tree(tmp_path / "outside")
    (tmp_path / "link").symlink_to("outside")

    with pytest.raises(OSError, match=r"Not a directory|Too many"):
        remove_tree(tmp_path / "link" / "a", tmp_path, strict=True)
    remove_tree(tmp_path / "link" / "a", tmp_path)
    remove_tree(tmp_path / "link", tmp_path)

    assert (tmp_path / "outside/a/b/file").exists()
    assert not os.path.lexists(tmp_path / "link")
