"""Ctrl-C, as the terminal sends it, and what the next build makes of it."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path


def kbt(folder: Path) -> list[str]:
    return [sys.executable, "-m", "kernels_bench_tools", "build", "--env", "current"]


def test_an_interrupted_build_says_so_keeps_what_was_finished_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.kbt]\ntitle = "T"\n')
    (tmp_path / "a.md").write_text("```python id=quick outputs=x.txt\nopen('x.txt', 'w').write('1')\n```\n")
    slow = f"import pathlib, time\npathlib.Path({str(tmp_path / 'begun')!r}).touch()\ntime.sleep(600)\n"
    (tmp_path / "b.md").write_text(f"```python id=slow needs=./a.md:quick\n{slow}```\n")
    build = subprocess.Popen(kbt(tmp_path), cwd=tmp_path, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not (tmp_path / "begun").exists():
        assert build.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)

    build.send_signal(signal.SIGINT)
    said = build.communicate(timeout=30)[1]

    assert build.returncode == 130
    assert "kbt: interrupted. What was finished is kept. Run the same command to go on." in said
    assert "Traceback" not in said
    (tmp_path / "b.md").write_text("```python id=slow needs=./a.md:quick\nprint(1)\n```\n")
    again = subprocess.run(
        kbt(tmp_path), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )
    assert again.stdout.startswith("1 cells ran, 1 unchanged")
