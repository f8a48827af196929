"""Files that are written atomically."""

import errno
import fcntl
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from projects import run_kbt

from kernels_bench_tools.file_io import read_file, write_atomically


def test_on_a_read_only_file_system_the_error_names_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path, *_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(path))

    # As on such a file system; a real one cannot be mounted here.
    monkeypatch.setattr(Path, "open", refuse)
    monkeypatch.setattr(Path, "unlink", refuse)

    with pytest.raises(OSError, match="Read-only") as caught:
        write_atomically(tmp_path / "notebook.md", b"")

    assert caught.value.filename == str(tmp_path / "notebook.md")


def test_what_a_killed_write_left_is_removed_by_the_next_one(tmp_path: Path) -> None:
    code = (
        "import os, signal, sys; from pathlib import Path; from kernels_bench_tools import file_io\n"
        "os.fsync = lambda _: os.kill(os.getpid(), signal.SIGKILL)\n"
        "file_io.write_atomically(Path(sys.argv[1]), b'one')"
    )
    killed = subprocess.run([sys.executable, "-c", code, tmp_path / "a.json"], check=False)
    assert killed.returncode == -signal.SIGKILL
    assert len(list(tmp_path.iterdir())) == 1

    write_atomically(tmp_path / "a.json", b"two")

    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_name_may_be_as_long_as_names_can_be(tmp_path: Path) -> None:
    write_atomically(tmp_path / ("é" * 127), b"one")

    assert len([*tmp_path.iterdir()]) == 1


def test_a_file_that_another_process_is_writing_is_kept(tmp_path: Path) -> None:
    other = tmp_path / f".a.json.{'0' * 32}"
    with other.open("wb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        write_atomically(tmp_path / "a.json", b"one")
        assert other.exists()


def test_no_reader_waits_for_a_fifo_that_takes_the_place_of_a_file_just_before_it_is_opened(
    tmp_path: Path,
) -> None:
    code = (
        "import os\nfor number in range(10**9):\n    path = f'new{number}'\n"
        "    os.mkfifo(path) if number % 2 else open(path, 'w').close()\n    os.replace(path, 'file')"
    )
    refused = 0
    (tmp_path / "file").touch()
    with subprocess.Popen([sys.executable, "-c", code], cwd=tmp_path) as other:
        for _ in range(40_000):
            try:
                read_file(tmp_path / "file")
            except OSError as error:
                refused += "not a regular file" in str(error)
        other.kill()

    assert 0 < refused < 40_000


def test_a_file_that_is_nested_too_deeply_is_damaged(tmp_path: Path) -> None:
    for name in ("selfcheck/x.json", "site/.kbt-site.json", ".kbt/last.json", ".kbt/build.json"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"a":' * 100_000)
    (tmp_path / "pyproject.toml").write_text("[tool.kbt]\n")
    (tmp_path / "n.md").write_text("# N\n\n```python id=a\nprint(1)\n```\n")

    done = run_kbt(tmp_path, "build", "--env", "current")

    assert (done.returncode, "Traceback" in done.stderr) == (0, False), done.stderr
    assert "nested too deeply" in (tmp_path / "site/selfcheck.html").read_text()
