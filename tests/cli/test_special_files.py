"""What a project has in place of a file: a FIFO, which blocks who opens it, or a device without an end."""

import contextlib
import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest
from projects import run_kbt

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


def test_what_a_build_makes_again_may_be_a_huge_file(bare: Path) -> None:
    (bare / "softmax" / "impls" / "plain.md").write_text("# Plain\n\n```python id=a\nprint('hi')\n```\n")
    assert run_kbt(bare, "build", "--env", "current").returncode == 0
    made = [put_huge(bare / name) for name in ("site/.kbt-site.json", ".kbt/last.json", ".kbt/build.json")]

    done = run_kbt(bare, "build", "--env", "current", timeout=60)

    assert done.returncode == 0, done.stderr
    assert max(path.stat().st_size for path in made) < 1 << 30


def test_a_build_replaces_a_socket_at_its_lock_and_removes_a_fifo_that_is_called_like_an_unfinished_file(
    bare: Path,
) -> None:
    (bare / "softmax" / "impls" / "plain.md").write_text("# Plain\n\n```python id=a\nprint('hi')\n```\n")
    fifos = [put_fifo(bare / ".kbt" / f".{name}.{'a' * 32}") for name in (".gitignore", "last.json")]
    with socket.socket(socket.AF_UNIX) as server, contextlib.chdir(bare):
        server.bind(".kbt/lock")

        done = run_kbt(bare, "build", "--env", "current", timeout=60)

    assert done.returncode == 0, done.stderr
    assert [path for path in fifos if path.exists()] == []


def test_a_state_file_without_an_end_is_made_again(bare: Path) -> None:
    (bare / ".kbt").mkdir()
    (bare / ".kbt" / "last.json").symlink_to("/proc/kmsg")

    assert run_kbt(bare, "plan", timeout=60).returncode == 0


LONG = "a" * 250
NOTEBOOK = "# N\n\n```python id=a\nprint(1)\n```\n"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("\udcff.md", NOTEBOOK),
        ("n.html/index.md", NOTEBOOK),
        ("index.html/n.md", NOTEBOOK),
        ("report.json/n.md", NOTEBOOK),
        ("devices/x.html/n.md", NOTEBOOK),
        (f"{LONG[:230]}.md", NOTEBOOK),
        ("m.md", NOTEBOOK.replace("=a", f"={LONG}")),
    ],
    ids=["bytes", "page", "front", "report", "device", "long name", "long id"],
)
def test_a_notebook_that_can_have_no_page_is_named_and_left_out(bare: Path, name: str, text: str) -> None:
    (bare / "softmax" / "impls" / "plain.md").unlink()
    (bare / name).parent.mkdir(parents=True, exist_ok=True)
    (bare / name).write_text(text)
    (bare / "n.md").write_text(NOTEBOOK)

    assert run_kbt(bare, "check").returncode == 1
    done = run_kbt(bare, "build", "--env", "current")

    assert done.returncode == 1, done.stderr
    assert "1 notebook left out" in done.stderr
    assert (bare / "site" / "n.html").is_file()


def test_a_dangling_link_among_committed_records_is_left_out(bare: Path) -> None:
    folder = bare / "softmax" / "results" / "records" / "test-cpu"
    folder.mkdir(parents=True)
    (folder / "y.jsonl").symlink_to("nowhere")
    (folder / "z.jsonl").symlink_to("z.jsonl")

    done = run_kbt(bare, "build", "--env", "current")

    assert "cannot be used" not in done.stderr + done.stdout
    assert (bare / "site" / "softmax" / "index.html").is_file()


@pytest.mark.parametrize("code", [f"x = {'+'.join('1' * 100_000)}", f"x = {'-' * 100_000}1"])
def test_an_operator_that_python_cannot_parse_does_not_stop_the_others(bare: Path, code: str) -> None:
    (bare / "operators").mkdir()
    (bare / "operators" / "softmax.py").write_text(code)

    assert run_kbt(bare, "plan").returncode == 0


def test_a_build_leaves_out_fifos_and_publishes_the_others(bare: Path) -> None:
    for name in READ[1:]:
        put_fifo(bare / name)
    (bare / "selfcheck" / "zero.json").symlink_to("/dev/zero")
    (bare / "softmax" / "impls" / "plain.md").write_text("# Plain\n\n```python id=a\nprint('hi')\n```\n")

    done = run_kbt(bare, "build", "--env", "current", timeout=60)

    assert done.returncode == 0, done.stderr
    page = (bare / "site" / "selfcheck.html").read_text()
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
