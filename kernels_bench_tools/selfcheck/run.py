"""The whole self-check, in its order."""

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
from kernels_bench_tools.selfcheck.flushes import check_flushes
from kernels_bench_tools.selfcheck.processes import Series, series_of_processes
from kernels_bench_tools.selfcheck.timers import (
    check_cold_and_hot,
    check_copies,
    check_floors,
    check_linearity,
    check_slow_host,
    measure_floors,
)

Tell = Callable[[str], None]
"""Says what is being done, in a few words."""


@dataclass(frozen=True, kw_only=True)
class Options:
    """What to do."""

    device: str
    quick: bool = False
    processes: int = 10
    """Fresh processes; fewer than two leave that check out, and fewer than six compare within one process."""
    ncu: str = "ncu"
    """Nsight Compute; empty for without."""
    commit: str = ""


def run_selfcheck(options: Options, tell: Tell) -> Iterator[SelfCheck]:
    """Measure what is known on one device, and yield what has come out whenever there is more.

    It takes minutes: whoever keeps each has lost little if it ends early. The last one is whole.
    """
    device = describe_device(options.device)
    with torch.no_grad():
        tell("floors")
        floors = measure_floors(options.device)
        checks = [check_floors(floors, options.device), *_basic_checks(options, tell)]
    tell("ceilings")
    ceilings = measure_peaks(options.device)
    found = measure_cases(find_cases(options.device, quick=options.quick), options.device, tell)
    so_far = SelfCheck(
        ts=datetime.now(UTC).isoformat(timespec="seconds"),
        device=device,
        env=describe_environment(device, options.device),
        commit=options.commit,
        checks=checks,
        kernels=found.kernels,
        floors_us={name: float(f"{us:.4g}") for name, us in floors.items()},
        ceilings={name: float(f"{rate:.5g}") for name, rate in ceilings.items()},
    )
    yield so_far
    for check in _agreement_checks(found, options, tell):
        checks.append(check)
        yield so_far


def _basic_checks(options: Options, tell: Tell) -> Iterator[Check]:
    device, quick = options.device, options.quick
    tell("linearity")
    yield check_linearity(device)
    cuda = device.startswith("cuda")
    if cuda:
        for name, check in (
            ("copies", check_copies),
            ("a slow host", check_slow_host),
            ("cold and hot caches", check_cold_and_hot),
        ):
            tell(name)
            yield check(device)
        if not quick:
            tell("flushes")
            yield check_flushes(device)


def _agreement_checks(found: Agreements, options: Options, tell: Tell) -> Iterator[Check]:
    if options.device.startswith("cuda"):
        # The children need the memory that this process keeps.
        torch.cuda.empty_cache()
        if options.ncu:
            tell("Nsight Compute")
            add_ncu(found, shutil.which(options.ncu) or options.ncu)
            if found.ncu_problem:
                tell(f"Nsight Compute could not be asked: {found.ncu_problem}")
            else:
                yield check_ncu(found.kernels, quick=options.quick)
    series: dict[str, list[Series]] = {}
    if options.processes > 1:
        tell(f"{options.processes} fresh processes")
        series = series_of_processes(options.processes, quick=options.quick)
        add_processes(found, series)
        if any(kernel.variation is not None for kernel in found.kernels):
            yield check_processes(found.kernels, options.device)
    yield from detection_checks(series, options.device, tell)
    yield check_cost(found.seconds)
