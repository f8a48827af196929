"""Run all parts of the self-check in order."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

import torch

from kernels_bench_tools.measure.device.environment import describe_device, describe_environment
from kernels_bench_tools.measure.device.peaks import measure_peaks
from kernels_bench_tools.schema.selfcheck import Check, SelfCheck
from kernels_bench_tools.selfcheck.agreement import (
    Agreements,
    add_ncu,
    add_processes,
    check_cost,
    check_ncu,
    check_processes,
    measure_cases,
)
from kernels_bench_tools.selfcheck.cases import find_cases
from kernels_bench_tools.selfcheck.detection import detection_checks
from kernels_bench_tools.selfcheck.processes import ProcessSeries, series_of_processes
from kernels_bench_tools.selfcheck.timers import (
    check_cold_and_hot,
    check_copies,
    check_floors,
    check_flushes,
    check_linearity,
    check_slow_host,
    measure_floors,
)

Report = Callable[[str], None]
"""Called with the name of each step."""


@dataclass(frozen=True, kw_only=True)
class SelfCheckOptions:
    """Device and extent of a self-check."""

    device: str
    quick: bool = False
    processes: int = 10
    """Fresh processes. They are compared from two on; slowdowns are detected from six on."""
    ncu: str = "ncu"
    """Path of Nsight Compute; empty to skip it."""
    commit: str = ""


def run_selfcheck(options: SelfCheckOptions, report: Report) -> Iterator[SelfCheck]:
    """Run the checks on one device, and yield the result so far after each; the last one is complete."""
    device = describe_device(options.device)
    with torch.no_grad():
        report("floors")
        floors = measure_floors(options.device)
        checks = [check_floors(floors, options.device), *_basic_checks(options, report)]
    report("peaks")
    peaks = measure_peaks(options.device)
    found = measure_cases(find_cases(options.device, quick=options.quick), options.device, report)
    so_far = SelfCheck(
        ts=datetime.now(UTC).isoformat(timespec="seconds"),
        device=device,
        env=describe_environment(device, options.device),
        commit=options.commit,
        checks=checks,
        kernels=found.kernels,
        floors_us={name: float(f"{us:.4g}") for name, us in floors.items()},
        ceilings={name: float(f"{rate:.5g}") for name, rate in peaks.items()},
    )
    yield so_far
    for check in _agreement_checks(found, options, report):
        checks.append(check)
        yield so_far


def _basic_checks(options: SelfCheckOptions, report: Report) -> Iterator[Check]:
    device, quick = options.device, options.quick
    report("linearity")
    yield check_linearity(device)
    cuda = device.startswith("cuda")
    if cuda:
        for name, check in (
            ("copies", check_copies),
            ("a slow host", check_slow_host),
            ("cold and hot caches", check_cold_and_hot),
        ):
            report(name)
            yield check(device)
        if not quick:
            report("flushes")
            yield check_flushes(device)


def _agreement_checks(found: Agreements, options: SelfCheckOptions, report: Report) -> Iterator[Check]:
    if options.device.startswith("cuda"):
        # Frees memory for the child processes.
        torch.cuda.empty_cache()
        if options.ncu:
            report("Nsight Compute")
            add_ncu(found, shutil.which(options.ncu) or options.ncu)
            if found.ncu_problem:
                report(f"Nsight Compute is not available: {found.ncu_problem}")
            else:
                yield check_ncu(found.kernels, quick=options.quick)
    series: dict[str, list[ProcessSeries]] = {}
    if options.processes > 1:
        report(f"{options.processes} fresh processes")
        series = series_of_processes(options.processes, quick=options.quick)
        add_processes(found, series)
        if any(kernel.variation is not None for kernel in found.kernels):
            yield check_processes(found.kernels, options.device)
    yield from detection_checks(series, options.device)
    yield check_cost(found.seconds)
