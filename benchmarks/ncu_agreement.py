"""Compare our device time of torch's layer_norm with Nsight Compute's, on the four default workloads.

    python benchmarks/ncu_agreement.py [--output ncu_agreement.json] [--ncu /path/to/ncu]

Runs on a CUDA device where ``ncu`` may read the counters. ncu measures the same calls in a process of
its own, with the clocks left alone and the caches flushed before each kernel, as ours are.
"""

from __future__ import annotations

import argparse
import csv
import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from statistics import median
from typing import Any

import torch

from kernels_bench_tools.measure.operator import find_operator
from kernels_bench_tools.measure.timing import measure

OPERATOR = find_operator("layer_norm")
WARM_UP_CALLS = 50
PROFILED_CALLS = 20
METRIC = "gpu__time_duration.sum"
MS_PER = {"ns": 1e-6, "nsecond": 1e-6, "us": 1e-3, "usecond": 1e-3, "ms": 1.0, "msecond": 1.0}


def layer_norm(x: Any, weight: Any, bias: Any) -> Any:
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


def child(name: str) -> None:
    """Launch the kernel under ncu: warm up unprofiled, then profile the last calls."""
    (workload,) = (entry for entry in OPERATOR.workloads("default") if entry.name == name)
    inputs = OPERATOR.inputs(workload, "cuda", workload.seed)
    with torch.no_grad():
        for _ in range(WARM_UP_CALLS):
            layer_norm(*inputs)
        torch.cuda.synchronize()
        torch.cuda.profiler.start()
        for _ in range(PROFILED_CALLS):
            layer_norm(*inputs)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()


def ours(name: str) -> tuple[float, float, float]:
    """Return median and interval in ms as a record would have them."""
    (workload,) = (entry for entry in OPERATOR.workloads("default") if entry.name == name)
    with torch.no_grad():
        found = measure(layer_norm, [OPERATOR.inputs(workload, "cuda", workload.seed)], "cuda").latency
    assert found.timer == "cupti", found.timer
    assert found.ci_low is not None
    assert found.ci_high is not None
    return found.p50, found.ci_low, found.ci_high


def theirs(name: str, ncu: str) -> list[float]:
    """Return the milliseconds of each call under ncu, its kernels summed."""
    command = [ncu, "--clock-control", "none", "--cache-control", "all", "--profile-from-start", "off"]
    command += ["--metrics", METRIC, "--print-units", "base", "--csv"]
    command += [sys.executable, str(Path(__file__).resolve()), "--child", name]
    process = subprocess.run(command, capture_output=True, text=True, timeout=540)
    if process.returncode:
        sys.exit(f"ncu failed with exit code {process.returncode}:\n{process.stdout}{process.stderr}")
    durations = list(read_durations(process.stdout.splitlines()))
    per_call, rest = divmod(len(durations), PROFILED_CALLS)
    if not per_call or rest:
        sys.exit(f"ncu saw {len(durations)} kernels in {PROFILED_CALLS} calls:\n{process.stdout}")
    return [sum(durations[i : i + per_call]) for i in range(0, len(durations), per_call)]


def read_durations(lines: Iterable[str]) -> Iterable[float]:
    """Yield the milliseconds of each kernel in ncu's CSV, which stands between lines of its own talk."""
    for row in csv.DictReader(line for line in lines if line.startswith('"')):
        if row["Metric Name"] == METRIC:
            yield float(row["Metric Value"].replace(",", "")) * MS_PER[row["Metric Unit"]]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--output", type=Path, default=Path("ncu_agreement.json"))
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        child(options.child)
        return
    rows = []
    print(f"{'workload':<20} {'ours ms':>9} {'interval':>19} {'ncu ms':>9} {'ncu range':>19} {'ours/ncu':>9}")
    for workload in OPERATOR.workloads("default"):
        p50, low, high = ours(workload.name)
        torch.cuda.empty_cache()
        samples = theirs(workload.name, options.ncu)
        reference = median(samples)
        rows.append(
            {
                "workload": workload.name,
                "ours_ms": p50,
                "ours_interval_ms": [low, high],
                "ncu_ms": reference,
                "ncu_samples_ms": samples,
                "ours_over_ncu": p50 / reference,
            }
        )
        spread = f"{min(samples):.5f}..{max(samples):.5f}"
        interval = f"{low:.5f}..{high:.5f}"
        ratio = p50 / reference
        print(f"{workload.name:<20} {p50:9.5f} {interval:>19} {reference:9.5f} {spread:>19} {ratio:9.4f}")
    device = torch.cuda.get_device_name()
    found = {"device": device, "torch": str(torch.__version__), "calls": PROFILED_CALLS, "rows": rows}
    options.output.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
