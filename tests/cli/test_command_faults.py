"""Commands on a full disk, killed at a byte, beside one another, and with an output that cannot be written."""

import errno
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
import typer
from builds import latency
from filelock import FileLock
from projects import PYTHON, WITHOUT_RIGHTS, assert_one_line, run_kbt

from kernels_bench_tools.cli.app import run
from kernels_bench_tools.records.codec import read_records, write_records
from kernels_bench_tools.records.device import current_device
from kernels_bench_tools.records.record import Record

KBT = (PYTHON, "-B", "-m", "kernels_bench_tools")
LIMITED = """
import resource, runpy, signal, sys
size, killed = int(sys.argv[1]), sys.argv[2] == "killed"
del sys.argv[1:3]
if killed:
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)  # the kernel kills the process that writes one byte more
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
runpy.run_module("kernels_bench_tools", run_name="__main__")
"""
ROWS = 40


def rows(*names: str) -> list[Record]:
    given = {"ts": "", "op": "op", "lat_ms": latency(), "ok": True, "run": "r", "impl": "mine"}
    return [Record(wl={"name": name}, device=current_device(), **given) for name in names]


@pytest.fixture
def committed(tmp_path: Path) -> Path:
    """A file of committed records of a project; ``more.jsonl`` has rows to add."""
    (tmp_path / "pyproject.toml").write_text('[tool.kbt]\ntitle = "T"\n')
    (tmp_path / "op" / "impls").mkdir(parents=True)
    (tmp_path / "op" / "impls" / "mine.md").write_text("```python id=a outputs=op.jsonl\nprint(1)\n```\n")
    write_records(tmp_path / "first.jsonl", rows(*(f"w{number}" for number in range(ROWS))))
    write_records(tmp_path / "more.jsonl", rows(*(f"new{number}" for number in range(ROWS))))
    record(tmp_path, "first.jsonl")
    return tmp_path / "op" / "results" / "records" / current_device().slug / "mine.jsonl"


def record(folder: Path, *paths: str) -> None:
    done = run_kbt(folder, "record", *paths)
    assert done.returncode == 0, done.stderr


def leftovers(path: Path) -> list[str]:
    return [one.name for one in path.parent.iterdir() if one != path]


@pytest.mark.parametrize("how", ["full", "killed"])
def test_a_write_that_ends_early_leaves_the_committed_rows(committed: Path, tmp_path: Path, how: str) -> None:
    before = committed.read_bytes()
    for size in (1, len(before) // 2, len(before) + 1):
        done = subprocess.run(
            (PYTHON, "-B", "-c", LIMITED, str(size), how, "record", "more.jsonl"),
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert committed.read_bytes() == before
        if how == "full":
            assert done.returncode == 2
            assert "cannot be written (File too large)" in done.stderr
            assert leftovers(committed) == []
        else:
            assert done.returncode < 0
            # With hardly any bytes, it ends when it writes who holds the project's lock.
            assert leftovers(committed) != [] or size < 2

    record(tmp_path, "more.jsonl")

    assert len(read_records(committed)) == 2 * ROWS
    assert leftovers(committed) == []


def wait_for_lock(folder: Path, *arguments: str) -> subprocess.Popen[str]:
    """Start a command, and return it once it has said that it waits for a build."""
    with (folder / "said").open("w+") as said:
        command = subprocess.Popen((*KBT, *arguments), cwd=folder, stderr=said)
        deadline = time.monotonic() + 30
        while "another build is running" not in (folder / "said").read_text():
            assert command.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.02)
    return command


def test_two_commands_that_record_at_once_lose_no_row(committed: Path, tmp_path: Path) -> None:
    write_records(tmp_path / "other.jsonl", rows("other"))
    with FileLock(tmp_path / ".kbt" / "lock"):
        running = [wait_for_lock(tmp_path, "record", name) for name in ("more.jsonl", "other.jsonl")]
        assert len(read_records(committed)) == ROWS
    assert [one.wait(timeout=60) for one in running] == [0, 0]

    assert len(read_records(committed)) == 2 * ROWS + 1


@pytest.mark.parametrize("arguments", [(), ("--all",)])
def test_clean_waits_until_the_build_has_ended(
    committed: Path, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    scripts = tmp_path / "op" / "impls" / ".kbt" / "cells"
    scripts.mkdir(parents=True)
    (tmp_path / ".kbt" / "cache").mkdir()
    with FileLock(tmp_path / ".kbt" / "lock"):
        clean = wait_for_lock(tmp_path, "clean", *arguments)
        time.sleep(0.3)
        assert scripts.exists()
        assert (tmp_path / ".kbt" / "cache").exists()
    assert clean.wait(timeout=60) == 0

    assert not scripts.exists()
    assert (tmp_path / ".kbt").exists() == (not arguments)
    assert committed.exists()


def test_a_folder_without_rights_is_one_line_and_nothing_runs(committed: Path, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / ".kbt")
    tmp_path.chmod(0o555)
    (tmp_path / "op/impls").chmod(0o555)
    try:
        for arguments, where in (
            (("run", "mine"), f"{tmp_path}/.kbt"),
            (("build",), "site"),
            (("new", "implementation", "op/new"), f"{tmp_path}/op/impls/new.md"),
        ):
            if os.geteuid() == 0:
                command = (*WITHOUT_RIGHTS, *KBT, *arguments)
                done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
            else:
                done = run_kbt(tmp_path, *arguments)
            assert_one_line(done, f"{where}: ", "(Permission denied)")
    finally:
        (tmp_path / "op/impls").chmod(0o755)
        tmp_path.chmod(0o755)


def test_a_file_of_the_state_without_rights_is_made_again(committed: Path, tmp_path: Path) -> None:
    command = (*(WITHOUT_RIGHTS if os.geteuid() == 0 else ()), *KBT, "build", "--env", "current")
    (tmp_path / "op/impls/mine.md").write_text("# Mine\n\n```python id=a\nprint(1)\n```\n")
    places = os.environ | {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    files = [tmp_path / ".kbt" / name for name in ("last.json", "build.json", "lock", ".gitignore")]
    for _ in range(2):
        done = subprocess.run(command, cwd=tmp_path, env=places, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert [path for path in files if not path.stat().st_mode & 0o400] == []
        for path in files:
            path.chmod(0)


UNUSABLE = [errno.EBUSY, errno.EXDEV, errno.ENXIO, errno.ENOTEMPTY, errno.ECONNREFUSED]


@pytest.mark.parametrize(
    ("error", "line"),
    [
        *((OSError(it, os.strerror(it), "site/static"), "site/static: cannot be used") for it in UNUSABLE),
        (MemoryError(), "kbt: not enough memory, threads or stack"),
        (RecursionError("too deep"), "kbt: not enough memory, threads or stack"),
        (RuntimeError("can't start new thread"), "kbt: not enough memory, threads or stack"),
    ],
)
def test_an_error_of_the_system_is_one_line_with_its_path(
    error: Exception, line: str, capsys: pytest.CaptureFixture[str]
) -> None:
    app = typer.Typer()

    @app.command()
    def fail() -> None:
        raise error

    assert run(app, []) == 2
    (printed,) = capsys.readouterr().err.splitlines()
    why = f" ({error.strerror}). " if isinstance(error, OSError) else ""
    assert printed.startswith(f"kbt: {line}{why}")


def test_output_in_an_encoding_without_a_character_has_a_question_mark(committed, tmp_path):
    (tmp_path / "é").mkdir()
    shutil.move(tmp_path / "op/impls/mine.md", tmp_path / "é/mine.md")
    done = subprocess.run(
        (*KBT, "list"), cwd=tmp_path, capture_output=True, env=os.environ | {"PYTHONIOENCODING": "ascii"}
    )

    assert b"notebooks: ?/mine.md" in done.stdout
    assert (done.returncode, done.stderr) == (0, b"")
