"""Faults during whole builds, such as kill -9, a full disk and flipped bits, and what the next build does.

``KBT_FAULT_KILLS=200`` kills as many builds.
"""

import errno
import itertools
import json
import os
import random
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from projects import PYTHON, once_per_run, run_kbt, wait_until

sys.path.insert(0, str(Path(__file__).parent))

from breaking import DIED, DONE, Tree, finished, ran, started

KILLS = int(os.environ.get("KBT_FAULT_KILLS", "2"))
MAX_KILLS_IN_A_ROW = 4


@pytest.fixture(scope="session")
def undisturbed(tmp_path_factory):
    """A tree that was built once, without a fault. Tests must not change it."""

    def build(folder):
        assert Tree(folder / "tree", folder / "elsewhere").build().returncode == DONE

    return once_per_run(tmp_path_factory, "undisturbed", build) / "tree"


@pytest.fixture
def expected(undisturbed, tmp_path):
    """The pages of the undisturbed tree."""
    return Tree(undisturbed, tmp_path / "expected").pages()


@pytest.fixture
def tree(tmp_path):
    """A tree that was not built."""
    return Tree(tmp_path / "tree", tmp_path / "elsewhere")


@pytest.mark.timeout(0 if KILLS > 50 else 300)
def test_killed_builds_lose_nothing_and_the_next_continues(tree, expected):
    generator = random.Random(20261120)
    killed = 0
    while killed < KILLS:
        if generator.random() < 0.7:
            tree.remove_results()
        killed += kill_builds_and_finish(tree, generator, expected)


def kill_builds_and_finish(tree, generator, expected):
    """Kill some builds, let one finish, and compare its site; return how many builds were killed."""
    killed, stored = 0, set()
    for _ in range(generator.randint(1, MAX_KILLS_IN_A_ROW)):
        rerun = ["--rerun"] * (generator.random() < 0.25)
        said = tree.kill_build(generator, *rerun)
        if said is None:
            continue
        killed += 1
        if not rerun:
            check_resumed(said, stored)
        # With --rerun the results of single processes are removed as cells end; those of cells are kept.
        stored = (stored if not rerun else {one for one in stored if one[1] is None}) | tree.stored()
        stored |= {(cell, None) for cell in finished(said)}
    done = tree.build()
    assert done.returncode == DONE
    check_resumed(done.stderr, stored)
    assert tree.pages() == expected
    assert wait_until(lambda: not tree.orphans()), tree.orphans()
    assert wait_until(lambda: not tree.leftovers()), tree.leftovers()
    return killed


def check_resumed(said, stored):
    """Check that a build ran nothing that was stored, and that no stored result was damaged."""
    assert "damaged" not in said
    assert "Traceback" not in said, said
    assert ran(said) & {cell for cell, process in stored if process is None} == set(), said
    assert started(said) & stored == set(), said


@pytest.mark.parametrize("effect", ["zeros", "gone"])
def test_after_a_power_failure_all_that_was_not_synced_is_made_again(tree, expected, effect):
    """Also where the first build was interrupted: the second one begins with what it left."""
    tree.kill_build(random.Random(effect))
    for _ in range(2):
        tree.cut_power(effect)
        result = tree.build()
        assert result.returncode == DONE, result.stderr
        assert "Traceback" not in result.stderr
        assert tree.pages() == expected
        assert (tree.root / "site/.gitignore").read_text() == "*\n"


@pytest.mark.parametrize("kilobytes", [150, 450])
def test_a_full_disk_is_one_line_and_the_build_continues_later(small_disk, tmp_path, expected, kilobytes):
    folder = small_disk(kilobytes)
    tree = Tree(folder / "tree", tmp_path / "elsewhere")
    full = tree.build()

    (line,) = [line for line in full.stderr.splitlines() if line.startswith("kbt: ")]
    assert full.returncode == 2
    assert "cannot be written (No space left on device)" in line
    assert "Traceback" not in full.stderr, full.stderr
    small_disk(20_000, "remount")
    result = tree.build()
    assert result.returncode == DONE
    assert ran(result.stderr) & finished(full.stderr) == set()
    assert "damaged" not in result.stderr
    assert tree.leftovers() == []
    assert tree.pages() == expected


@pytest.fixture(scope="session")
def failing_calls(tmp_path_factory):
    """A library that lets one call on a file fail."""

    def build(folder):
        source = Path(__file__).with_name("failing_calls.c")
        options = ["-xc", "-shared", "-fPIC", "-O1", str(source), "-o", str(folder / "calls.so"), "-ldl"]
        subprocess.run(["g++", *options], check=True, timeout=60)

    return once_per_run(tmp_path_factory, "failing_calls", build) / "calls.so"


def test_any_call_on_a_file_may_fail_and_the_next_build_is_right(failing_calls, tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.kbt]\n")
    cell = "# N\n\n```python id=a outputs=x.txt\nopen('x.txt', 'w').write('1')\n```\n"
    (tmp_path / "n.md").write_text(cell + "\n```python id=b needs=a\nprint(2)\n```\n")
    fault = os.environ | {"LD_PRELOAD": str(failing_calls), "FAULT_ROOT": str(tmp_path)}
    build = ("build", "--env", "current")
    failed = 0
    calls = random.Random(1).sample(range(200), max(KILLS, 6))
    for call, code in zip(calls, itertools.cycle([errno.EIO, errno.EMFILE, errno.ESTALE]), strict=False):
        for folder in (".kbt", "site"):
            shutil.rmtree(tmp_path / folder, ignore_errors=True)
        broken = subprocess.run(
            [PYTHON, "-m", "kernels_bench_tools", *build],
            cwd=tmp_path,
            env=fault | {"FAULT_AT": str(call), "FAULT_CODE": str(code)},
            capture_output=True,
            text=True,
        )
        after = run_kbt(tmp_path, *build)

        assert "Traceback" not in broken.stderr
        assert broken.returncode in {0, 1, 2}
        assert broken.returncode != 2 or os.strerror(code) in broken.stderr
        assert (after.returncode, after.stdout.splitlines()[-1]) == (0, "site/index.html"), after.stderr
        failed += broken.returncode > 0
    assert failed


def test_a_cell_that_lacked_space_for_temporary_files_runs_again_and_the_next_has_it(small_disk, tmp_path):
    folder, fill = small_disk(2000), "open('big', 'wb').write(bytes(8 << 20))"
    quiet = f"try:\n    {fill}\nexcept OSError:\n    pass"
    cells = (fill, quiet, "open('fits', 'wb').write(bytes(1 << 20))")
    text = "".join(f"```python id=c{number}\n{code}\n```\n\n" for number, code in enumerate(cells))
    (tmp_path / "pyproject.toml").write_text("[tool.kbt]\n")
    (tmp_path / "n.md").write_text(text)
    for cached in (False, True):
        done = run_kbt(tmp_path, "build", "--env", "current", "--jobs", "1", "--json", TMPDIR=str(folder))
        found = json.loads(done.stdout)["cells"]
        assert [one["status"] for one in found] == ["error", "ok", "ok"], found
        assert found[0]["reason"] == "OSError: [Errno 28] No space left on device"
        assert [one["cached"] for one in found] == [False, False, cached]


def test_concurrent_builds_run_each_cell_once_and_write_one_site(tree, expected):
    outputs = build_at_once(tree, 2)

    for cell in {cell for cell, _ in tree.stored()}:
        assert sum(output.count(f"✓ {cell}  ") for output in outputs) == 1, cell
    assert sum(output.count(f"✗ {DIED}  ") for output in outputs) == 2
    assert tree.pages() == expected
    # Each of these replaces the results that the one before it makes pages of.
    build_at_once(tree, 2, "--rerun")
    assert tree.pages() == expected
    assert tree.orphans() == []


def build_at_once(tree, count, *arguments):
    """Run builds at the same time; return what they printed to stderr."""
    builds = [tree.start(*arguments) for _ in range(count)]
    outputs = [build.communicate(timeout=120)[1] for build in builds]
    failed = [output for build, output in zip(builds, outputs, strict=True) if build.returncode != DONE]
    assert failed == []
    return outputs
