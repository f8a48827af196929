"""What a terminal would obey is printed as escapes."""

import json
import subprocess
from pathlib import Path

import pytest
from projects import PYTHON, run_kbt

HIDDEN = "\x1b[2Kgone\u202eback\x9b"
SHOWN = "\\x1b[2Kgone\\u202eback\\u009b"


def is_plain(done: subprocess.CompletedProcess[str]) -> bool:
    return not set("\x1b\u202e\x9b") & set(done.stdout + done.stderr)


def test_output_and_errors_of_a_cell_are_printed_as_escapes(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.kbt]\n")
    printed = f"```python id=a\nprint({HIDDEN!r})\n```\n"
    (tmp_path / "good.md").write_text(printed)
    (tmp_path / "bad.md").write_text(f"```python id=a\nraise ValueError({HIDDEN!r})\n```\n")

    good = run_kbt(tmp_path, "run", "good.md", "--env", "current")
    bad = run_kbt(tmp_path, "run", "bad.md", "--env", "current")

    assert is_plain(good)
    assert SHOWN in good.stdout
    assert is_plain(bad)
    assert "gone\\u202eback" in bad.stdout


def test_mistakes_and_lists_are_printed_as_escapes(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.kbt]\n")
    notebook = tmp_path / "op" / "impls" / "one.md"
    notebook.parent.mkdir(parents=True)
    title = json.dumps(HIDDEN)
    notebook.write_text(f"---\ntitle: {title}\nfamily: {title}\nkey\u202e: 1\n---\n```python id=a\n1\n```\n")

    for arguments in (["check"], ["list"], ["list", "--json"], ["plan"], ["run", HIDDEN]):
        done = run_kbt(tmp_path, *arguments)
        assert is_plain(done), arguments
        assert done.stdout + done.stderr


def test_a_list_has_a_line_for_each_implementation_with_its_whole_name(tmp_path):
    (tmp_path / "pyproject.toml").write_text("[tool.kbt]\n")
    names = ["short", "a_name_that_is_much_longer_than_others_of_its_operator", "x" * 90]
    impls = tmp_path / "op/impls"
    impls.mkdir(parents=True)
    for name in names:
        (impls / f"{name}.md").write_text(f"---\nfamily: {'f' * 30}\nrequires: [cuda, rocm]\n---\n")
        for device in ("nvidia-h200", "amd-epyc-2-cores-8e3b01", "nvidia-rtx-pro-6000-blackwell"):
            file = tmp_path / f"op/results/records/{device}/{name}.jsonl"
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
    lines = run_kbt(tmp_path, "list", COLUMNS="50").stdout.splitlines()

    assert lines[0] == "op"
    assert [line.split()[0] for line in lines[1:4]] == sorted(names)
    assert not any("…" in line for line in lines)


@pytest.mark.parametrize("closed", ["2>&-", "<&- >&- 2>&-"])
def test_a_build_whose_streams_are_closed_ends_well(tmp_path, closed):
    (tmp_path / "pyproject.toml").write_text("[tool.kbt]\n")
    (tmp_path / "n.md").write_text("```python id=a\nprint(1)\n```\n")
    command = f"exec {PYTHON} -m kernels_bench_tools build --env current {closed}"

    assert subprocess.run(command, shell=True, cwd=tmp_path, timeout=60).returncode == 0
    assert (tmp_path / "site" / "index.html").is_file()
