"""Which changed files the watcher of ``kbt serve`` reports."""

import queue
import threading
import time

import pytest

from kernels_bench_tools.serve.server import Watcher


@pytest.fixture
def changes(tmp_path):
    """A function that returns what was reported until all of some paths were, or None after 30 s."""
    root = tmp_path / "watched"
    for folder in (".kbt", "site", "op/impls", "env/lib", "out"):
        (root / folder).mkdir(parents=True)
    (root / "env/pyvenv.cfg").touch()
    (root / "op/impls/x.md").write_text("one")
    found, stop = queue.Queue(), threading.Event()
    watcher = Watcher(root, lambda folder: folder.name in {"site", "out"})

    def watch():
        while not stop.is_set():
            found.put(watcher.wait())

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
    (root / "end.md").touch()
    thread.join(10)
    assert not thread.is_alive()


def test_edited_replaced_renamed_deleted_and_new_files_are_reported(changes):
    folder = changes.root / "op/impls"
    (folder / "x.md").write_text("two")  # right after construction
    assert changes("op/impls/x.md") == ["op/impls/x.md"]
    (folder / ".x.md.new").write_text("three")
    (folder / ".x.md.new").replace(folder / "x.md")
    assert changes("op/impls/x.md") == ["op/impls/x.md"]
    (folder / "x.md").rename(folder / "y.md")
    assert changes("op/impls/x.md", "op/impls/y.md") == ["op/impls/x.md", "op/impls/y.md"]
    (folder / "y.md").unlink()
    assert changes("op/impls/y.md") == ["op/impls/y.md"]
    (changes.root / "new").mkdir()
    (changes.root / "new/a.md").touch()
    assert changes("new/a.md") == ["new/a.md"]


def test_output_environments_hidden_and_temporary_files_are_ignored(changes):
    for name in (".kbt/build.json", "site/index.html", "out/index.html", "env/lib/x.py", ".git/HEAD"):
        (changes.root / name).parent.mkdir(exist_ok=True)
        (changes.root / name).write_text("x")
    for name in (".x.md.swp", "x.md~", "x.pyc", "#x.md#"):
        (changes.root / "op/impls" / name).write_text("x")
    time.sleep(1.5)  # longer than the watcher waits before it looks
    (changes.root / "last.md").write_text("x")

    assert changes("last.md") == ["last.md"]
