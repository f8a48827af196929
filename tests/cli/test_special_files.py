"""What a project has in place of a file: a FIFO, which blocks who opens it, or a device without an end."""

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from projects import run_kbt

LONG = "a" * 250
NOTEBOOK = "# N\n\n```python id=a\nprint(1)\n```\n"
READ = (
    "softmax/impls/new.md",
    "softmax/results/records/test-cpu/plain.jsonl",
    "effects/test-cpu/model/softmax--plain.jsonl",
    "selfcheck/test-cpu.json",
    "operators/softmax.py",
    "operators/_shared.py",
)


def put_fifo(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    os.mkfifo(path)
    return path


def put_huge(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    os.truncate(path, 1 << 38)
    return path


@pytest.mark.parametrize(
    ("put", "why"), [(put_fifo, "it is not a regular file"), (put_huge, "it is larger than 2 GiB")]
)
def test_check_names_each_fifo_and_huge_file(bare: Path, put: Callable[[Path], Path], why: str) -> None:
    for name in READ:
        put(bare / name)

    done = run_kbt(bare, "check", timeout=60)

    assert done.returncode == 1
    lines = done.stderr.splitlines()
    named = [line.partition(f": cannot be read ({why}).")[0] for line in lines]
    assert sorted(named) == sorted(READ)


def test_a_build_makes_again_what_is_huge_or_a_socket_and_removes_fifos_that_are_called_like_unfinished_files(
    bare: Path,
) -> None:
    (bare / "softmax/impls/plain.md").write_text(NOTEBOOK)
    made = [put_huge(bare / name) for name in ("site/.kbt-site.json", ".kbt/last.json", ".kbt/build.json")]
    fifos = [put_fifo(bare / ".kbt" / f".{name}.{'a' * 32}") for name in (".gitignore", "last.json")]
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(bare):
        server.bind(".kbt/lock")

        done = run_kbt(bare, "build", "--env", "current", timeout=60)

    assert done.returncode == 0, done.stderr
    assert max(path.stat().st_size for path in made) < 1 << 30
    assert [path for path in fifos if path.exists()] == []


def test_a_state_file_without_an_end_is_made_again(bare: Path) -> None:
    (bare / ".kbt").mkdir()
    (bare / ".kbt" / "last.json").symlink_to("/proc/kmsg")

    assert run_kbt(bare, "plan", timeout=60).returncode == 0


def test_notebooks_that_can_have_no_page_are_named_and_left_out(bare: Path) -> None:
    (bare / "softmax/impls/plain.md").unlink()
    names = ["\udcff.md", "n.html/index.md", "index.html/n.md", "report.json/n.md", "devices/x.html/n.md"]
    names += [f"{LONG[:230]}.md", "m.md"]
    for name in names:
        (bare / name).parent.mkdir(parents=True, exist_ok=True)
        (bare / name).write_text(NOTEBOOK.replace("=a", f"={LONG}") if name == "m.md" else NOTEBOOK)
    (bare / "n.md").write_text(NOTEBOOK)

    assert run_kbt(bare, "check").returncode == 1
    done = run_kbt(bare, "build", "--env", "current")

    assert done.returncode == 1, done.stderr
    assert f"{len(names)} notebooks left out" in done.stderr
    assert (bare / "site/n.html").is_file()


def test_operators_that_python_cannot_parse_do_not_stop_the_others(bare: Path) -> None:
    (bare / "operators").mkdir()
    for name, code in (("softmax", f"x = {'+'.join('1' * 100_000)}"), ("other", f"x = {'-' * 100_000}1")):
        (bare / f"operators/{name}.py").write_text(code)

    assert run_kbt(bare, "plan").returncode == 0


def test_a_build_leaves_out_fifos_and_links_to_nowhere_and_publishes_the_others(bare: Path) -> None:
    for name in READ[1:]:
        put_fifo(bare / name)
    for path, target in (
        ("selfcheck/zero.json", "/dev/zero"),
        ("softmax/results/records/test-cpu/y.jsonl", "nowhere"),
        ("softmax/results/records/test-cpu/z.jsonl", "z.jsonl"),
    ):
        (bare / path).symlink_to(target)
    (bare / "softmax/impls/plain.md").write_text(NOTEBOOK)

    done = run_kbt(bare, "build", "--env", "current", timeout=60)

    assert done.returncode == 0, done.stderr
    assert "cannot be used" not in done.stderr + done.stdout
    assert (bare / "site/softmax/index.html").is_file()
    page = (bare / "site/selfcheck.html").read_text()
    for name in ("test-cpu", "zero"):
        assert f"selfcheck/{name}.json: cannot be read (it is not a regular file)" in page


@pytest.mark.parametrize(
    ("name", "command"), [("pyproject.toml", "build --env current"), ("given.jsonl", "record given.jsonl")]
)
def test_a_fifo_that_a_command_needs_is_named(bare: Path, name: str, command: str) -> None:
    (bare / name).unlink(missing_ok=True)
    put_fifo(bare / name)

    done = run_kbt(bare, *command.split(), timeout=60)

    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"{name}: cannot be " in done.stderr
    assert "it is not a regular file" in done.stderr
