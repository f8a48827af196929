"""Times of the cases by Nsight Compute, in a separate process."""

from __future__ import annotations

import csv
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

from kernels_bench_tools.measure.timing.cuda import ReadFlush
from kernels_bench_tools.own_process import python_command
from kernels_bench_tools.selfcheck.cases import EMPTY_KERNEL, Case, find_cases

METRIC = "gpu__time_duration.sum"
CALLS = 5
_WARM_UP_CALLS = 20
_SECONDS = 300
_SEPARATOR = "spin_kernel"
"""Part of the name of the kernel that ``torch.cuda._sleep`` launches before each case."""
_US_PER = {"n": 1e-3, "u": 1.0, "m": 1e3, "s": 1e6}
"""Microseconds by the first letter of a unit, such as ``ns`` or ``nsecond``."""


class NcuError(Exception):
    """Nsight Compute is not available; the message is one line."""


@dataclass(frozen=True)
class NcuTimes:
    """Times by ncu in microseconds: medians of the cases' calls, and of the empty kernel measured in both ways."""

    calls: dict[str, float]
    empty_single: float
    empty_several: float


def run_ncu(single: Sequence[str], several: Sequence[str], ncu: str) -> NcuTimes:
    """Return the times of the cases, and of an empty kernel, under ``ncu``.

    It flushes the caches before each kernel of the cases with a single one. Those with several are flushed once per
    call by a read, since a kernel may find the results of the previous one in the cache. Raises ``NcuError``.
    """
    empty = EMPTY_KERNEL.name
    alone = _run([empty, *(name for name in single if name != empty)], "all", ncu)
    together = _run([empty, *several], "none", ncu)
    return NcuTimes({**together, **alone}, alone[empty], together[empty])


def _run(names: Sequence[str], cache_control: str, ncu: str) -> dict[str, float]:
    options = (
        f"--clock-control none --cache-control {cache_control} --profile-from-start off --metrics {METRIC} "
        "--print-units base --csv --target-processes application-only"
    )
    command = [
        ncu,
        *options.split(),
        *python_command("-m", "kernels_bench_tools.selfcheck", "--child", "ncu"),
    ]
    command += ["--flush"] if cache_control == "none" else []
    command += ["--names", *names]
    try:
        process = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS, check=False)
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
        if _SEPARATOR in name:
            groups.append([])
        elif groups:
            groups[-1].append(us)
    if len(groups) != len(names):
        raise NcuError(f"it saw {len(groups)} of {len(names)} cases")
    found = {}
    for name, times in zip(names, groups, strict=True):
        per_call, rest = divmod(len(times), calls)
        if rest or not per_call:
            raise NcuError(f"it saw {len(times)} kernels in {calls} calls of {name}")
        sums = [sum(times[start : start + per_call]) for start in range(0, len(times), per_call)]
        found[name] = median(sums)
    return found


def run_child(names: Sequence[str], *, flush: bool) -> None:
    """Launch the named cases under ``ncu``: warm-up without profiling, then a separator and the calls."""
    cases = {case.name: case for case in (EMPTY_KERNEL, *find_cases("cuda", quick=False))}
    read = ReadFlush("cuda") if flush else None
    with torch.no_grad():
        for name in names:
            _launch(cases[name], read)
            torch.cuda.empty_cache()


def _launch(case: Case, read: ReadFlush | None) -> None:
    inputs = case.inputs("cuda")
    for _ in range(_WARM_UP_CALLS):
        case.function(*inputs)
    torch.cuda.synchronize()
    torch.cuda.profiler.start()
    torch.cuda._sleep(1)
    torch.cuda.synchronize()
    torch.cuda.profiler.stop()
    for _ in range(CALLS):
        if read is not None:
            read()
            torch.cuda.synchronize()
        torch.cuda.profiler.start()
        case.function(*inputs)
        torch.cuda.synchronize()
        torch.cuda.profiler.stop()
