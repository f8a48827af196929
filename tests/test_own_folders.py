"""Folders are removed without following a link, however deep they are, and by one function."""

import os
import re
from pathlib import Path

import pytest

from kernels_bench_tools import own_folders
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.own_folders import make_folder, remove_tree, temporary_folder

PACKAGE = Path(own_folders.__file__).parent
REMOVES = re.compile(r"rmtree|TemporaryDirectory|removedirs")


def test_no_other_module_removes_folders_with_their_content():
    others = [path for path in PACKAGE.rglob("*.py") if path.name != "own_folders.py"]

    assert [str(path) for path in others if REMOVES.search(path.read_text())] == []


def make_tree(folder: Path) -> None:
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "b" / "file").write_text("kept")


def test_a_folder_is_removed_with_links_and_folders_without_permissions_but_not_with_what_links_name(
    tmp_path,
):
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


def test_what_is_not_there_or_not_below_is_not_removed(tmp_path):
    remove_tree(tmp_path / "nothing" / "inside", tmp_path, strict=True)

    for path in (tmp_path, tmp_path.parent):
        with pytest.raises(ValueError, match=r"subpath|unpack"):
            remove_tree(path, tmp_path)


def test_thousands_of_nested_folders_are_removed(tmp_path):
    with temporary_folder(tmp_path) as folder:
        inside = os.open(folder, os.O_RDONLY)
        for _ in range(1500):
            os.mkdir("d", dir_fd=inside)
            deeper = os.open("d", os.O_RDONLY, dir_fd=inside)
            os.close(inside)
            inside = deeper
        os.close(inside)

    assert list(tmp_path.iterdir()) == []


def test_a_folder_is_not_made_through_a_link(tmp_path):
    (tmp_path / "outside").mkdir()
    (tmp_path / "link").symlink_to("outside")

    with pytest.raises(ProjectError, match="link: is a symbolic link"):
        make_folder(tmp_path / "link" / "a", tmp_path)

    assert list((tmp_path / "outside").iterdir()) == []
