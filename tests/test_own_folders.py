"""Folders are made, written to and removed without following a link, however deep they are, and by few functions."""

import ast
import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from kernels_bench_tools import own_folders
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.own_folders import make_folder, remove_tree
from kernels_bench_tools.text.words import words

PACKAGE = Path(own_folders.__file__).parent
REMOVES = re.compile(r"rmtree|TemporaryDirectory|removedirs")


def test_no_other_module_removes_folders_with_their_content():
    others = [path for path in PACKAGE.rglob("*.py") if path.name != "own_folders.py"]

    assert [str(path) for path in others if REMOVES.search(path.read_text())] == []


FOLLOW = {
    "own_folders.py": "make_folder itself",
    "file_io.py": "update_file: the user has named the folder, or its caller has made it",
    "records/codec.py": "the folder of a cell, or one of committed records, of which `kbt record` accepts no link",
    "report/folder.py": "the parents of the site",
    "cli/new.py": "the folder that the user has named",
    "cluster/shipment.py": "the folder of a worker",
    "hub/build/__main__.py": "the folder that the user has named; the command has made another",
    "run/cache/store.py": "the user's key, whose folder no cell can reach",
    "run/cell_outputs.py": "the draft of an entry, which was just made",
    "run/environment/base.py": "the folder of a notebook",
    "run/environment/variables.py": "the user's cache",
    "run/process/confined.py": "the user's caches, which variables name",
    "measure/judge/runner.py": "a temporary folder",
}
"""Modules that make a folder with its parents wherever links lead, and which folder."""

WRITE = {
    "file_io.py": "write_atomically: a new file",
    "git.py": "a temporary folder",
    "cli/__init__.py": "stdout and stderr",
    "cluster/shipment.py": "an archive in memory",
    "hub/build/__main__.py": "the lock and the log, which open_regular clears",
    "measure/harness.py": "the folder of a measuring process",
    "measure/judge/process.py": "stdout",
    "measure/traces.py": "the folder of a measuring process",
    "records/json_schema.py": "a folder that a developer names",
    "report/folder.py": "a folder that was just made",
    "run/cache/store.py": "the draft of an entry",
    "run/cell.py": "the draft of an entry",
    "run/cell_outputs.py": "the draft of an entry",
    "run/environment/base.py": "the draft of an entry, or a temporary folder",
    "run/executor.py": "the draft of an entry",
    "measure/judge/runner.py": "a temporary folder",
    "run/process/run.py": "/proc",
}
"""Modules that write to a file itself, not to a new one that replaces it, and to which."""


READ = {
    "file_io.py": "open_regular itself",
    "own_folders.py": "opened, which waits for nothing",
    **dict.fromkeys(
        words("""
        cli/effect.py cli/new.py models/config.py models/derive.py records/code.py records/model.py report/paths.py
        report/site.py results/models.py run/cache/key.py serve/server.py
    """),
        "files of this package",
    ),
    **dict.fromkeys(
        words("""
        forking.py measure/device/clocks.py measure/judge/bindings.py measure/judge/process.py measure/timing/caches.py
        measure/timing/cpu.py measure/device/environment.py records/device.py run/process/memory.py run/process/reaper.py
        run/process/run.py run/process/confined.py
    """),
        "/proc, /sys, or in the process of a cell what it imports",
    ),
    "cluster/shipment.py": "an archive in memory",
    "cli/__init__.py": "stdout and stderr",
    "measure/judge/batches.py": "no file",
}
"""Modules that open a file to read it other than by ``open_regular``, which waits for no FIFO, and which."""


def follows_links(call: ast.Call, name: str) -> bool:
    parents = any(one.arg == "parents" for one in call.keywords)
    return (
        name == "makedirs" or (name == "mkdir" and parents) or (name == "make_folder" and len(call.args) == 1)
    )


def writes(call: ast.Call, name: str) -> bool:
    given = [*call.args, *(one.value for one in call.keywords if one.arg == "mode")]
    modes = [one.value for one in given if isinstance(one, ast.Constant) and isinstance(one.value, str)]
    opens = name in {"open", "fdopen", "open_regular"} and any(
        re.fullmatch(r"[rbt]*[wax+][bt+]*", mode) for mode in modes
    )
    return opens or name in {"write_text", "write_bytes", "touch", "copyfile", "copytree", "copy_file"}


def reads(call: ast.Call, name: str) -> bool:
    return name in {"open", "read_text", "read_bytes", "cmp"} and not writes(call, name)


@pytest.mark.parametrize(("does", "known"), [(follows_links, FOLLOW), (writes, WRITE), (reads, READ)])
def test_a_module_that_follows_links_or_may_wait_for_a_file_is_known_with_the_reason(
    does: Callable[[ast.Call, str], bool], known: dict[str, str]
) -> None:
    found = set()
    for path in PACKAGE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute | ast.Name):
                name = node.func.attr if isinstance(node.func, ast.Attribute) else node.func.id
                if does(node, name):
                    found.add(path.relative_to(PACKAGE).as_posix())

    assert found == known.keys()


def test_a_path_with_two_dots_is_neither_made_nor_removed(tmp_path: Path) -> None:
    make_tree(tmp_path / "outside")
    (tmp_path / "ours").mkdir()
    for act in (remove_tree, make_folder):
        with pytest.raises(ProjectError, match="is not in"):
            act(tmp_path / "ours/../outside/a/new", tmp_path / "ours")

    assert [path.name for path in (tmp_path / "outside/a").iterdir()] == ["b"]


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
