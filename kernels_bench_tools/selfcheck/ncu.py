"""Times of the cases by Nsight Compute, in a separate process."""

from __future__ import annotations

import csv
import subprocess
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from statistics import median

import torch

from kernels_bench_tools.measure.timing.cuda import ReadFlush
from kernels_bench_tools.measure.timing.cupti import MARKER
from kernels_bench_tools.own_process import python_command, run_program
from kernels_bench_tools.records.selfcheck import KernelAgreement
from kernels_bench_tools.selfcheck.cases import EMPTY_KERNEL, find_cases

METRIC = "gpu__time_duration.sum"
CALLS = 5
_WARM_UP_CALLS = 20
_SECONDS = 300
_US_PER = {"n": 1e-3, "u": 1.0, "m": 1e3, "s": 1e6}
"""Microseconds by the first letter of a unit, such as ``ns`` or ``nsecond``."""


class NcuError(Exception):
    """Nsight Compute is not available; the message is one line."""


def add_ncu(kernels: Sequence[KernelAgreement], ncu: str) -> None:
    """Add the times of ``ncu``, and what it adds to each kernel; raise ``NcuError`` if it is not available.

    It flushes the caches before each kernel of the calls with a single one. Those with several are flushed once per
    call by a read, since a kernel may find the results of the previous one in the cache.
    """
    empty = EMPTY_KERNEL.name
    ours = next(kernel.ours_us for kernel in kernels if kernel.name == empty)
    for control, group in (
        ("all", [kernel for kernel in kernels if kernel.kernels == 1]),
        ("none", [kernel for kernel in kernels if kernel.kernels > 1]),
    ):
        names = [empty, *(kernel.name for kernel in group if kernel.name != empty)]
        times = run_ncu(names, control, ncu)
        for kernel in group:
            kernel.ncu_us = times[kernel.name]
            kernel.ncu_overhead_us = kernel.kernels * (times[empty] - ours)


def run_ncu(names: Sequence[str], cache_control: str, ncu: str) -> dict[str, float]:
    """Return the microseconds of the named cases under ``ncu``; raise ``NcuError``."""
    options = (
        f"--clock-control none --cache-control {cache_control} --profile-from-start off --metrics {METRIC} "
        "--print-units base --csv --target-processes application-only"
    )
    child = python_command("-m", "kernels_bench_tools.selfcheck.ncu", cache_control, *names)
    try:
        process = run_program([ncu, *options.split(), *child], timeout=_SECONDS)
    except OSError as error:
        raise NcuError(f"{ncu} cannot be started ({error.strerror})") from error
    except subprocess.TimeoutExpired as error:
        raise NcuError(f"{ncu} took more than {_SECONDS} s") from error
    if process.returncode:
        lines = (process.stdout + process.stderr).splitlines()
        errors = [line for line in lines if line.startswith("==ERROR==")]
        last = (process.stderr.strip() or process.stdout.strip()).splitlines()[-1:]
        reason = (errors or last or ["no output"])[0]
        raise NcuError(f"{ncu} ended with exit code {process.returncode}: {reason}")
    return split_cases(read_durations(process.stdout.splitlines()), names)


def read_durations(lines: Iterable[str]) -> list[tuple[str, float]]:
    """Return name and microseconds of each kernel in ncu's CSV output; other lines are skipped."""
    table = csv.DictReader(line for line in lines if line.startswith('"'))
    return [
        (row["Kernel Name"], float(row["Metric Value"].replace(",", "")) * _US_PER[row["Metric Unit"][0]])
        for row in table
        if row["Metric Name"] == METRIC
    ]


def split_cases(
    kernels: Iterable[tuple[str, float]], names: Sequence[str], calls: int = CALLS
) -> dict[str, float]:
    """Return the median over calls of each case's summed microseconds; before each case is a separator kernel."""
    groups: list[list[float]] = []
    for name, us in kernels:
        if MARKER in name:
            groups.append([])
        elif groups:
            groups[-1].append(us)
    if len(groups) != len(names):
        raise NcuError(f"it recorded {len(groups)} of {len(names)} calls")
    found = {}
    for name, times in zip(names, groups, strict=True):
        per_call, rest = divmod(len(times), calls)
        if rest or not per_call:
            raise NcuError(f"it recorded {len(times)} kernels in {calls} calls of {name}")
        sums = [sum(times[start : start + per_call]) for start in range(0, len(times), per_call)]
        found[name] = median(sums)
    return found


def run_child(names: Sequence[str], *, flush: bool) -> None:
    """Launch the named cases under ``ncu``: warm-up without profiling, then a separator and the calls."""
    cases = {case.name: case for case in (EMPTY_KERNEL, *find_cases("cuda", quick=False))}
    read = ReadFlush("cuda") if flush else None
    with torch.no_grad():
        for name in names:
            inputs = cases[name].inputs("cuda")
            for _ in range(_WARM_UP_CALLS):
                cases[name].function(*inputs)
            with _profiled():
                torch.cuda._sleep(1)
            for _ in range(CALLS):
                if read is not None:
                    read()
                with _profiled():
                    cases[name].function(*inputs)
            del inputs
            torch.cuda.empty_cache()


@contextmanager
def _profiled() -> Iterator[None]:
    """Let ``ncu`` see what runs within."""
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    yield
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()


if __name__ == "__main__":
    run_child(sys.argv[2:], flush=sys.argv[1] == "none")
