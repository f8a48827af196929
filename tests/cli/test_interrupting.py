"""Ctrl-C, as the terminal sends it, and what is there afterwards."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from kernels_bench_tools.devices import current_device
from kernels_bench_tools.records import read_records

KBT = (sys.executable, "-m", "kernels_bench_tools")
BUILD = (*KBT, "build", "--env", "current")


def waiting(begun: Path) -> str:
    """Return a cell's code that makes a file and then does not end."""
    return f"import pathlib, time\npathlib.Path({str(begun)!r}).touch()\ntime.sleep(600)\n"


def interrupt_build(folder: Path, begun: Path) -> str:
    """Build, press Ctrl-C once a file is there, and return what was said."""
    build = subprocess.Popen(BUILD, cwd=folder, stderr=subprocess.PIPE, text=True)
    deadline = time.monotonic() + 60
    while not begun.exists():
        assert build.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.02)
    build.send_signal(signal.SIGINT)
    said = build.communicate(timeout=30)[1]
    assert build.returncode == 130
    return said


def test_an_interrupted_build_says_so_keeps_what_was_finished_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.kbt]\ntitle = "T"\n')
    (tmp_path / "a.md").write_text("```python id=quick outputs=x.txt\nopen('x.txt', 'w').write('1')\n```\n")
    slow = waiting(tmp_path / "begun")
    (tmp_path / "b.md").write_text(f"```python id=slow needs=./a.md:quick\n{slow}```\n")

    said = interrupt_build(tmp_path, tmp_path / "begun")

    assert "kbt: interrupted. What was finished is kept. Run the same command to go on." in said
    assert "Traceback" not in said
    (tmp_path / "b.md").write_text("```python id=slow needs=./a.md:quick\nprint(1)\n```\n")
    again = subprocess.run(BUILD, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True)
    assert again.stdout.startswith("1 cells ran, 1 unchanged")


def test_what_an_interrupted_build_has_measured_can_be_recorded(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.kbt]\ntitle = "T"\n')
    impls = tmp_path / "op" / "impls"
    impls.mkdir(parents=True)
    measure = """
from pathlib import Path
from kernels_bench_tools.devices import current_device
from kernels_bench_tools.records import Latency, Record, write_records
latency = Latency(p10=1.0, p50=1.0, p90=1.0, mean=1.0, iqr=0.0, reps=1)
row = dict(ts="", run="r", impl="quick", op="op", wl={"name": "w"}, lat_ms=latency, ok=True)
write_records(Path("op.jsonl"), [Record(**row, device=current_device())])
"""
    for name, code in (("quick", measure), ("slow", waiting(tmp_path / "begun"))):
        (impls / f"{name}.md").write_text(f"```python id=benchmark outputs=op.jsonl\n{code}```\n")
    interrupt_build(tmp_path, tmp_path / "begun")

    recorded = subprocess.run(
        (*KBT, "record"), cwd=tmp_path, capture_output=True, text=True, timeout=60, check=True
    )

    folder = tmp_path / "op" / "results" / "records" / current_device().slug
    assert [path.name for path in folder.iterdir()] == ["quick.jsonl"]
    assert [entry.ok for entry in read_records(folder / "quick.jsonl")] == [True]
    assert "quick.jsonl: 1 of 1 workloads measured" in recorded.stdout
