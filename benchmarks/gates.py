"""How often `kbt gate` is right: gates of unchanged code, and of code that was slowed by 2 % and by 1 %, on this machine's GPU.

    python benchmarks/gates.py [--workloads default] [--unchanged 10] [--two 10] [--one 5] [--env current]

A copy of layer_norm's Triton kernel is the base. A slowed one launches a second kernel that spins for the wanted share of the first
one's time, which is measured beforehand, on each workload. Expected are no alarm without a change, and one for all of 2 %.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
NOTEBOOK = "layer_norm/impls/triton_layer_norm.md"
SPIN = """
import torch as _torch
_times = {times}
_plain = triton_layer_norm


def triton_layer_norm(x, *arguments, **options):
    result = _plain(x, *arguments, **options)
    _torch.cuda._sleep(int({share} * _times.get(tuple(x.shape), 0.0) * 1e-3 * {hertz}))
    return result


"""
"""What is put before the call of `run_benchmark`."""
MAIN = 'if __name__ == "__main__":'


def kbt(folder: Path, *arguments: str) -> tuple[int, Any, float]:
    """Return the exit code of a command, what its `--json` prints, and its seconds."""
    began = time.monotonic()
    command = [sys.executable, "-m", "kernels_bench_tools", *arguments, "--json"]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    if not done.stdout:
        raise SystemExit(done.stderr[-3000:])
    return done.returncode, json.loads(done.stdout), time.monotonic() - began


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--workloads", default="default")
    parser.add_argument("--env", default="current")
    for name, count in (("unchanged", 10), ("two", 10), ("one", 5)):
        parser.add_argument(f"--{name}", type=int, default=count)
    given = parser.parse_args()
    options = ["--env", given.env, "--workloads", given.workloads]
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "project"
        for name in ("layer_norm", "kernels_bench_tools", "templates"):
            shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__", ".kbt"))
        shutil.copy(ROOT / "pyproject.toml", folder)
        for command in (["init", "-q"], ["add", "."], ["commit", "-qm", "base"]):
            subprocess.run(
                ["git", "-c", "user.name=n", "-c", "user.email=e@x", "-C", folder, *command], check=True
            )
        _, gate, seconds = kbt(folder, "gate", NOTEBOOK, "--against", "HEAD", *options)
        times = {row["workload"]: row["base"]["ms"] for row in gate["rows"]}
        print(f"{len(times)} workloads, first gate {seconds:.0f} s: {gate['summary']}", flush=True)
        shapes = {tuple(map(int, re.findall(r"\d+", name))): ms for name, ms in times.items()}
        notebook = folder / NOTEBOOK
        text = notebook.read_text()
        for share, count in ((0.0, given.unchanged), (0.02, given.two), (0.01, given.one)):
            spin = SPIN.format(times=shapes, share=share, hertz=1.98e9)
            notebook.write_text(text.replace(MAIN, spin + MAIN) if share else text)
            alarms, found, took = 0, [], []
            for _ in range(count):
                code, gate, seconds = kbt(folder, "gate", NOTEBOOK, "--against", "HEAD", *options)
                alarms += code == 1
                found.append(sum(row["change"] == "slower" for row in gate["rows"]))
                took.append(seconds)
            print(
                f"{share:.0%} slower: {alarms} of {count} gates raised an alarm; rows found {found} of {len(times)};"
                f" {min(took):.0f} to {max(took):.0f} s each",
                flush=True,
            )


if __name__ == "__main__":
    main()
