"""The same calls in several fresh processes: how much a number depends on the process that took it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean, stdev

import msgspec
import torch

from kernels_bench_tools.schema.record import Latency
from kernels_bench_tools.selfcheck.cases import repeated_cases, slowed_case
from kernels_bench_tools.selfcheck.fresh import time_as_recorded
from kernels_bench_tools.selfcheck.series import repeat, wait

MAX_SAMPLES = 30
"""What a record of a steady kernel has: it stops there if the median is known."""
WARM_UP_SECONDS = 0.8
"""Before the first case: an idle card takes a while to raise its clocks and to warm up."""
CPU_WARM_UP_SECONDS = 0.1


class Series(msgspec.Struct, frozen=True):
    """What one process found for one case, in microseconds."""

    median_us: float
    """Of all of its calls."""
    samples_us: list[float]
    """Some of them in order, ``MAX_SAMPLES`` at most."""


def series_of_processes(count: int, *, quick: bool, timeout: float = 120) -> dict[str, list[Series]]:
    """Return for each repeated case what each of ``count`` fresh processes found; they run one by one."""
    found: dict[str, list[Series]] = {}
    for answers in _children(count, quick, timeout):
        for name, series in answers.items():
            found.setdefault(name, []).append(series)
    return found


def _children(count: int, quick: bool, timeout: float) -> Iterator[dict[str, Series]]:
    with tempfile.TemporaryDirectory() as folder:
        answer = Path(folder) / "series.json"
        command = [sys.executable, "-m", "kernels_bench_tools.selfcheck", "--child", "series"]
        command += ["--output", str(answer), *(["--quick"] if quick else [])]
        for process in range(count):
            numbered = [*command, "--process", str(process)]
            subprocess.run(numbered, check=True, timeout=timeout, stdout=subprocess.DEVNULL)
            yield msgspec.json.decode(answer.read_bytes(), type=dict[str, Series])


def run_child(device: str, output: Path, *, quick: bool, process: int) -> None:
    """Time the repeated cases as records are, with this process's own values; write them to ``output``."""
    found: dict[str, Series] = {}
    with torch.no_grad():
        warm_up(device)
        for case in repeated_cases(device, quick=quick):
            found[case.name] = _series(time_as_recorded(case, device, 1000 * process))
            if device.startswith("cuda"):
                torch.cuda.empty_cache()
    output.write_bytes(msgspec.json.encode(found))


def warm_up(device: str) -> None:
    """Keep the device busy with memory traffic, which does not make it throttle."""
    case = slowed_case(device)
    inputs = case.inputs(device)

    def some() -> None:
        for _ in range(20):
            case.function(*inputs)
        wait(device)

    repeat(some, WARM_UP_SECONDS if device.startswith("cuda") else CPU_WARM_UP_SECONDS)


def _series(latency: Latency) -> Series:
    return Series(1e3 * latency.p50, thinned([1e3 * ms for ms in latency.raw_times]))


def thinned(samples: list[float], most: int = MAX_SAMPLES) -> list[float]:
    """Return at most ``most`` samples from all over the series, in order.

    >>> thinned([1, 2, 3, 4, 5, 6, 7], 3)
    [1, 3, 5]
    """
    if len(samples) <= most:
        return samples
    return [samples[number * len(samples) // most] for number in range(most)]


def variation(medians: list[float]) -> float | None:
    """Return the coefficient of variation; None for fewer than two."""
    return stdev(medians) / fmean(medians) if len(medians) > 1 else None
