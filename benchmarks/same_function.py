"""False verdicts between copies of one function, as ``kbt run --processes 3`` gives them on this machine.

Makes a project in a temporary folder in which each operator has its baseline and three copies of it, measures all of
them, and counts the verdicts of the copies. Each *faster* or *slower* is false; at most 5 % may be. Rows that other
programs disturbed have no verdict and do not count, so the machine must be quiet.

    python benchmarks/same_function.py --rounds 3
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
BASELINES = {"layer_norm": "torch_layer_norm", "activation": "torch_gelu", "rms_norm": "torch_rms_norm"}
COPIES = 3
LARGEST_SHARE = 0.05


def make_project(folder: Path, operators: list[str]) -> None:
    """Write a project with four notebooks of the same code for each operator."""
    (folder / "pyproject.toml").write_text('[tool.kbt]\ntitle = "Copies"\n', encoding="utf-8")
    for operator in operators:
        source = ROOT / operator / "impls" / f"{BASELINES[operator]}.md"
        target = folder / operator / "impls"
        target.mkdir(parents=True)
        shutil.copy(source, target / "original.md")
        for number in range(COPIES):
            text = source.read_text(encoding="utf-8").replace("\nbaseline: true\n", "\n", 1)
            (target / f"copy_{number}.md").write_text(text, encoding="utf-8")


def verdicts(folder: Path, operator: str, processes: int) -> Counter[str]:
    """Measure an operator's notebooks, and return how often the copies have each verdict."""
    command = [sys.executable, "-m", "kernels_bench_tools", "run", operator, "--env", "current"]
    command += ["--processes", str(processes), "--rerun", "--json"]
    variables = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=folder, env=variables, stdout=subprocess.PIPE, check=False)
    cells: list[dict[str, Any]] = json.loads(done.stdout)
    rows = [row for cell in cells if "/copy_" in cell["cell"] for row in cell["rows"]]
    return Counter(row["verdict"] for row in rows)


def main() -> int:
    """Print a line for each operator and round, and the share of false verdicts; return 1 if it is too large."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--operators", default=",".join(BASELINES))
    options = parser.parse_args()
    operators = options.operators.split(",")
    total: Counter[str] = Counter()
    with tempfile.TemporaryDirectory() as name:
        make_project(Path(name), operators)
        for number in range(options.rounds):
            for operator in operators:
                found = verdicts(Path(name), operator, options.processes)
                print(f"round {number + 1}, {operator}: {dict(found)}", flush=True)
                total += found
    compared = total.total() - total["none"]
    false = total["faster"] + total["slower"]
    load = os.getloadavg()[0]
    print(
        f"{false} of {compared} verdicts are false, {total['none']} rows were disturbed; load average {load:.1f}"
    )
    return 1 if false > LARGEST_SHARE * compared else 0


if __name__ == "__main__":
    sys.exit(main())
