"""What a terminal would obey is printed as escapes."""

import json
import subprocess
from pathlib import Path

from projects import run_kbt

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
