"""The same calls in several fresh processes: variation of a median between processes."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev

import msgspec
import torch

from kernels_bench_tools.measure.timing.caches import CUDA_INPUT_SETS
from kernels_bench_tools.measure.timing.measure import measure
from kernels_bench_tools.selfcheck.cases import repeated_cases, slowed_case
from kernels_bench_tools.selfcheck.timers import repeat, wait

MAX_SAMPLES = 30
"""Samples of a record with a steady kernel, which has converged then."""
WARM_UP_SECONDS = 0.8
"""Before the first case, since an idle GPU takes a while to raise its clocks."""
CPU_WARM_UP_SECONDS = 0.1


class ProcessSeries(msgspec.Struct, frozen=True):
    """Times of one case in one process, in microseconds."""

    median_us: float
    """Of all calls."""
    samples_us: list[float]
    """At most ``MAX_SAMPLES`` of them, in order."""


def series_of_processes(count: int, *, quick: bool, timeout: float = 120) -> dict[str, list[ProcessSeries]]:
    """Return the times of each repeated case in ``count`` fresh processes, which run one after the other."""
    found: dict[str, list[ProcessSeries]] = {}
    for answers in _children(count, quick, timeout):
        for name, series in answers.items():
            found.setdefault(name, []).append(series)
    return found


def _children(count: int, quick: bool, timeout: float) -> Iterator[dict[str, ProcessSeries]]:
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "series.json"
        command = [sys.executable, "-m", "kernels_bench_tools.selfcheck", "--child", "series"]
        command += ["--output", str(answer), *(["--quick"] if quick else [])]
        for process in range(count):
            numbered = [*command, "--process", str(process)]
            subprocess.run(numbered, check=True, timeout=timeout, stdout=subprocess.DEVNULL)
            yield msgspec.json.decode(answer.read_bytes(), type=dict[str, ProcessSeries])


def run_child(device: str, output: Path, *, quick: bool, process: int) -> None:
    """Time the repeated cases like records, with values of this process; write them to ``output``."""
    found: dict[str, ProcessSeries] = {}
    with torch.no_grad():
        warm_up(device)
        for case in repeated_cases(device, quick=quick):
            sets = case.input_sets(device, 1000 * process, CUDA_INPUT_SETS)
            latency = measure(case.function, sets, device).latency
            samples = thinned([1e3 * ms for ms in latency.raw_times])
            found[case.name] = ProcessSeries(1e3 * latency.p50, samples)
            if device.startswith("cuda"):
                torch.cuda.empty_cache()
    output.write_bytes(msgspec.json.encode(found))


def warm_up(device: str) -> None:
    """Keep the device busy with memory traffic, which does not cause throttling."""
    case = slowed_case(device)
    inputs = case.inputs(device)

    def some() -> None:
        for _ in range(20):
            case.function(*inputs)
        wait(device)

    repeat(some, WARM_UP_SECONDS if device.startswith("cuda") else CPU_WARM_UP_SECONDS)


def thinned(samples: list[float], most: int = MAX_SAMPLES) -> list[float]:
    """Return at most ``most`` samples, evenly spread and in order."""
    if len(samples) <= most:
        return samples
    return [samples[number * len(samples) // most] for number in range(most)]


def variation(medians: list[float]) -> float | None:
    """Return the coefficient of variation; None for fewer than two."""
    return stdev(medians) / fmean(medians) if len(medians) > 1 else None
