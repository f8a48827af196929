"""Faults during builds, such as kill -9, a full disk and flipped bits, and what the next build does.

==============================  =======================================================================
fault                           tests
==============================  =======================================================================
a build killed with -9          here, whole builds (``KBT_FAULT_KILLS=200`` kills as many);
                                test_cache_entries, one entry; test_orphans, the processes of its cells
a build killed while it makes   here
pages
Ctrl-C, TERM, HUP               test_schedule, test_orphans
a full disk                     here, whole builds; test_cell_failures, a cell's; test_cache_entries, an entry
eight builds at once            here; test_schedule, one project and one device
bits flipped in the cache       here, on the pages; test_cache_entries, every bit; test_cache, every file
a checkout moved or cloned      here, copied; test_cache, moved and cloned
segmentation fault, abort,      test_cell_failures
SIGKILL, memory, exit code,
hang, no text, own folder gone
printing without end            test_cell_failures, test_runner
a GPU left in error             test_cell_failures, on a GPU
a worker lost during a cell     test_cluster
random notebooks                test_fuzz (``KBT_FUZZ_EXAMPLES=10000``)
==============================  =======================================================================
"""

import os
import random
import shutil
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from filelock import FileLock, Timeout

sys.path.insert(0, str(Path(__file__).parent))

from breaking import DIED, Tree, wait_until

KILLS = int(os.environ.get("KBT_FAULT_KILLS", "6"))
CHAIN = 4
"""So many builds are killed one after the other at most before one is left to end."""


@pytest.fixture
def tree(tmp_path):
    return Tree(tmp_path / "tree", tmp_path / "elsewhere")


@pytest.fixture
def small_disk(tmp_path):
    """Make a disk of so many kilobytes, and let it grow."""
    folder = tmp_path / "small"
    folder.mkdir()

    def mount(kilobytes, *options):
        command = ["mount", "-t", "tmpfs", "-o", ",".join([*options, f"size={kilobytes}k"]), "tmpfs"]
        if subprocess.run([*command, str(folder)], capture_output=True).returncode:
            pytest.skip("a small disk can be mounted by root only")
        return folder

    yield mount
    while folder.is_mount():
        subprocess.run(["umount", "-l", str(folder)], check=True)


def forget(tree):
    for name in (".kbt", "site"):
        shutil.rmtree(tree.root / name, ignore_errors=True)


@pytest.mark.timeout(0 if KILLS > 50 else 300)
def test_killed_builds_lose_nothing_and_the_next_continues(tree):
    assert tree.build().code == 0
    undisturbed = tree.pages()
    chance = random.Random(20261120)
    killed = 0
    while killed < KILLS:
        if chance.random() < 0.7:
            forget(tree)
        killed += break_and_mend(tree, chance, undisturbed)


def break_and_mend(tree, chance, undisturbed):
    """Kill some builds, let one end, and see that it is as if nothing had been; return how many were killed."""
    killed, known = 0, set()
    for _ in range(chance.randint(1, CHAIN)):
        again = ["--rerun"] * (chance.random() < 0.25)
        told = tree.kill_build(chance, *again)
        if told is None:
            continue
        killed += 1
        if not again:
            check_resumed(told, known)
        # A build that is asked to run all again forgets its processes as they end; its cells it does not.
        known = (known if not again else {one for one in known if one[1] is None}) | tree.known()
        known |= {(cell, None) for cell in told.finished}
    told = tree.build()
    assert told.code == 0
    check_resumed(told, known)
    assert tree.pages() == undisturbed
    assert wait_until(lambda: not tree.orphans()), tree.orphans()
    assert wait_until(lambda: not tree.leftovers()), tree.leftovers()
    return killed


def check_resumed(told, known):
    """See that a build runs nothing that is known, and nothing of what is there is damaged."""
    assert "damaged" not in told.stderr
    assert "Traceback" not in told.stderr, told.stderr
    whole = {cell for cell, process in known if process is None}
    assert told.ran & whole == set(), told.stderr
    assert told.started & known == set(), told.stderr


def test_a_build_killed_while_rendering_leaves_no_process_and_the_next_renders_the_same(tree):
    for number in range(
        240
    ):  # so many that several processes make them, and none is done before it is stopped
        (tree.root / f"p{number}.md").write_text(f"# Page {number}\n\n{'Some words. ' * 500}\n")
    assert tree.build().code == 0
    undisturbed = tree.pages()
    for part in (0.05, 0.2, 0.4):
        shutil.rmtree(tree.root / "site")
        build = tree.start()
        assert wait_until(lambda: len(list((tree.root / "site").glob("p*.html"))) > 240 * part)  # noqa: B023
        build.send_signal(signal.SIGSTOP)
        # What the pages are made of is nobody else's to replace until they are made.
        with suppress(Timeout), FileLock(tree.root / ".kbt/lock").acquire(timeout=0):
            made = len(list((tree.root / "site").glob("p*.html")))
            assert made == 240, f"the lock is free with {made} of 240 pages made"
        build.kill()
        build.communicate(timeout=20)

        assert wait_until(lambda: not tree.orphans()), tree.orphans()
        assert tree.build().code == 0
        assert tree.pages() == undisturbed


@pytest.mark.parametrize("kilobytes", [150, 260, 700])
def test_a_full_disk_is_an_error_in_one_line_and_the_build_continues_later(
    tree, small_disk, tmp_path, kilobytes
):
    folder = small_disk(kilobytes)
    tree = Tree(folder / "tree", tmp_path / "beside")
    full = tree.build()

    (line,) = [line for line in full.lines if line.startswith("kbt: ")]
    assert full.code == 1
    assert "cannot be written (No space left on device)" in line
    assert "Traceback" not in full.stderr, full.stderr
    small_disk(20_000, "remount")
    told = tree.build()
    assert told.code == 0
    assert told.ran & full.finished == set()
    assert "damaged" not in told.stderr
    assert tree.leftovers() == []
    pages = tree.pages()
    forget(tree)
    assert tree.build().code == 0
    assert tree.pages() == pages


def test_eight_concurrent_builds_run_each_cell_once_and_write_one_site(tree):
    builds = [tree.start() for _ in range(8)]
    told = [build.communicate(timeout=120)[1] for build in builds]

    assert [build.returncode for build in builds] == [0] * 8, [text for text in told if "Traceback" in text]
    for cell in {cell for cell, _ in tree.known()}:
        assert sum(text.count(f"✓ {cell}  ") for text in told) == 1, cell
    assert sum(text.count(f"✗ {DIED}  ") for text in told) == 8
    together = tree.pages()
    forget(tree)
    tree.build()
    assert tree.pages() == together
    # Each of these replaces what the one before it makes pages of.
    builds = [tree.start("--rerun") for _ in range(4)]
    told = [build.communicate(timeout=120)[1] for build in builds]
    assert [build.returncode for build in builds] == [0] * 4, [text for text in told if "Traceback" in text]
    assert tree.pages() == together
    assert tree.orphans() == []


def test_damaged_results_are_never_shown(tree):
    tree.build()
    undisturbed, chance = tree.pages(), random.Random(7)
    for _ in range(6):
        flipped = [flip_a_bit(tree.root / ".kbt/cache", chance) for _ in range(5)]
        told = tree.build()

        assert told.code == 0
        assert tree.pages() == undisturbed, flipped
        damaged = {line.partition(": ")[0] for line in told.lines if "its stored result is damaged" in line}
        assert told.ran == damaged - {DIED}, flipped


def flip_a_bit(folder, chance):
    paths = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
    path = chance.choice(paths)
    data = bytearray(path.read_bytes())
    data[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
    path.write_bytes(data)
    return path


def test_a_copied_checkout_with_its_cache_runs_no_cell_and_has_the_same_site(tree, tmp_path):
    tree.build()
    undisturbed = tree.pages()
    elsewhere = tmp_path / "deep" / "er"
    elsewhere.parent.mkdir()
    subprocess.run(["cp", "-r", tree.root, elsewhere], check=True)  # all files are new, by their times
    tree.root = elsewhere
    told = tree.build()

    assert told.ran == set()
    assert tree.pages() == undisturbed
