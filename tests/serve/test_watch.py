"""What is noticed on the disk, and which cells an edit outdates."""

import queue
import threading
import time

import pytest

from kernels_bench_tools.run.cache.invalidation import digest_ingredients, outdated_cells
from kernels_bench_tools.serve.watch import Watcher


@pytest.fixture
def changes(tmp_path):
    """A function that returns what is noticed until all of some paths are, or None if it takes too long."""
    root = tmp_path / "watched"
    for folder in (".kbt", "site", "op/impls", "env/lib", "out"):
        (root / folder).mkdir(parents=True)
    (root / "env/pyvenv.cfg").touch()
    (root / "op/impls/x.md").write_text("one")
    found, stop = queue.Queue(), threading.Event()
    watcher = Watcher(root, lambda folder: folder.name in {"site", "out"})

    def watch():
        for paths in watcher.changes(stop):
            found.put(paths)

    thread = threading.Thread(target=watch)
    thread.start()

    def until(*wanted):
        seen, deadline = set(), time.monotonic() + 30
        while not set(wanted) <= seen:
            try:
                seen |= set(found.get(timeout=max(0.0, deadline - time.monotonic())))
            except queue.Empty:
                return None
        return sorted(seen)

    until.root = root
    yield until
    stop.set()
    thread.join(10)
    assert not thread.is_alive()


def test_an_edit_right_after_the_watcher_was_made_is_noticed(changes):
    (changes.root / "op/impls/x.md").write_text("two")

    assert changes("op/impls/x.md") == ["op/impls/x.md"]


def test_a_save_that_replaces_the_file_is_noticed(changes):
    new = changes.root / "op/impls/.x.md.new"
    new.write_text("two")
    new.replace(changes.root / "op/impls/x.md")

    assert changes("op/impls/x.md") == ["op/impls/x.md"]


def test_a_renamed_a_deleted_and_a_new_file_are_noticed(changes):
    (changes.root / "op/impls/x.md").rename(changes.root / "op/impls/y.md")
    assert changes("op/impls/x.md", "op/impls/y.md") == ["op/impls/x.md", "op/impls/y.md"]
    (changes.root / "op/impls/y.md").unlink()
    assert changes("op/impls/y.md") == ["op/impls/y.md"]
    (changes.root / "pyproject.toml").touch()
    assert changes("pyproject.toml") == ["pyproject.toml"]


def test_a_new_folder_is_watched_from_then_on(changes):
    new = changes.root / "rope/impls"
    new.mkdir(parents=True)
    (new / "a.md").write_text("one")
    assert changes("rope/impls/a.md") == ["rope/impls/a.md"]
    (new / "a.md").write_text("more")
    assert changes("rope/impls/a.md") == ["rope/impls/a.md"]
    (changes.root / "rope").rename(changes.root / "rotary")
    moved = ["rope/impls/a.md", "rotary/impls/a.md"]
    assert changes(*moved) == moved


def test_state_output_environments_and_hidden_or_left_over_files_are_not_watched(changes):
    for name in (".kbt/build.json", "site/index.html", "out/index.html", "env/lib/x.py", ".git/HEAD"):
        (changes.root / name).parent.mkdir(exist_ok=True)
        (changes.root / name).write_text("x")
    for name in (".x.md.swp", "x.md~", "x.pyc", "#x.md#"):
        (changes.root / "op/impls" / name).write_text("x")
    time.sleep(1.5)  # longer than the watcher waits before it looks
    (changes.root / "last.md").write_text("x")

    assert changes("last.md") == ["last.md"]


@pytest.fixture
def operator(workspace):
    workspace.cell("op/impls/x.md", "print(1)", front="title: X")
    workspace.cell("op/impls/y.md", "print(2)", front="title: Y")
    workspace.cell("op/results/c.md", "1", "id=combine needs=../impls/*.md:a,../data/*.csv")
    return workspace


def outdated(workspace, edit):
    before = digest_ingredients(workspace.project, "current")
    edit()
    cells = outdated_cells(before, digest_ingredients(workspace.project, "current"))
    return sorted(str(cell) for cell in cells)


def test_edited_code_outdates_its_cell_and_what_needs_it(operator):
    found = outdated(operator, lambda: operator.cell("op/impls/x.md", "print(3)", front="title: X"))

    assert found == ["op/impls/x.md:a", "op/results/c.md:combine"]


def test_edited_prose_outdates_nothing(operator):
    def edit():
        operator.cell("op/impls/x.md", "print(1)", front="title: X", prose="Other.\n\nMore.")

    assert outdated(operator, edit) == []


def test_an_edited_data_file_outdates_what_needs_it(operator):
    assert outdated(operator, lambda: operator.write("op/data/d.csv", "1")) == ["op/results/c.md:combine"]


def test_a_deleted_notebook_outdates_its_cells_and_what_needs_them(operator):
    found = outdated(operator, (operator.root / "op/impls/x.md").unlink)

    assert found == ["op/impls/x.md:a", "op/results/c.md:combine"]


def test_nothing_is_outdated_while_a_notebook_is_broken(operator):
    broken = "---\nnonsense: [\n---\n```python id=a\nprint(3)\n```\n"

    assert outdated(operator, lambda: operator.write("op/impls/x.md", broken)) == []
