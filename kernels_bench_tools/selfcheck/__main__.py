"""``python -m kernels_bench_tools.selfcheck --output selfcheck.json``: check the current device."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

import torch

from kernels_bench_tools.file_io import write_struct
from kernels_bench_tools.measure.device.environment import describe_device, describe_environment, torch_device
from kernels_bench_tools.measure.device.peaks import measure_peaks
from kernels_bench_tools.records.selfcheck import Check, KernelAgreement, SelfCheck
from kernels_bench_tools.selfcheck import agreement, ncu, processes, timers
from kernels_bench_tools.selfcheck.cases import find_cases

Report = Callable[[str], None]
"""Called with the name of each step."""
QUICK_PROCESSES, PROCESSES = 3, 10


def main(arguments: list[str] | None = None) -> int:
    """Run the self-check; return 2 if a check failed, else 0."""
    options = _parser().parse_args(arguments)
    if options.child == "ncu":
        ncu.run_child(options.names, flush=options.flush)
        return 0
    if options.child == "series":
        processes.run_child(torch_device(), options.output, quick=options.quick, process=options.process)
        return 0
    if options.processes is None:
        options.processes = QUICK_PROCESSES if options.quick else PROCESSES
    start = perf_counter()

    def report(step: str) -> None:
        print(f"… {step} ({perf_counter() - start:.0f} s)", file=sys.stderr, flush=True)

    for found in run_selfcheck(torch_device(), options, report):
        write_struct(options.output, found)
    print("\n".join(table_lines(found)))
    return 0 if all(check.passed for check in found.checks) else 2


def _parser() -> argparse.ArgumentParser:
    """Return the parser of what ``kbt selfcheck``, which explains its options, and this program itself pass."""
    parser = argparse.ArgumentParser(prog="python -m kernels_bench_tools.selfcheck")
    parser.add_argument("--output", type=Path, default=Path("selfcheck.json"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--commit", default="")
    parser.add_argument("--child", choices=("ncu", "series"))
    parser.add_argument("--process", type=int, default=0)
    parser.add_argument("--names", nargs="*", default=[])
    parser.add_argument("--flush", action="store_true")
    return parser


def run_selfcheck(device: str, options: argparse.Namespace, report: Report) -> Iterator[SelfCheck]:
    """Run the checks on one device, and yield the result so far after each; the last one is complete."""
    described = describe_device(device)
    with torch.no_grad():
        report("floors")
        floors = timers.measure_floors(device)
        basic = _basic_checks(device, report, quick=options.quick)
        checks = [timers.check_floors(floors, device), *basic]
    report("peaks")
    peaks = measure_peaks(device)
    cases = find_cases(device, quick=options.quick)
    measured = list(agreement.measure_cases(cases, device, report))
    kernels = [kernel for kernel, _ in measured]
    so_far = SelfCheck(
        ts=datetime.now(UTC).isoformat(timespec="seconds"),
        device=described,
        env=describe_environment(device),
        commit=options.commit,
        checks=checks,
        kernels=kernels,
        floors_us={name: float(f"{us:.4g}") for name, us in floors.items()},
        ceilings={name: float(f"{rate:.5g}") for name, rate in peaks.items()},
    )
    yield so_far
    for check in _agreement_checks(kernels, device, options, report):
        checks.append(check)
        yield so_far
    checks.append(agreement.check_cost([seconds for _, seconds in measured]))
    yield so_far


def _basic_checks(device: str, report: Report, *, quick: bool) -> Iterator[Check]:
    steps = {"linearity": timers.check_linearity}
    if device.startswith("cuda"):
        steps |= {
            "copies": timers.check_copies,
            "a slow host": timers.check_slow_host,
            "cold and hot caches": timers.check_cold_and_hot,
        }
        if not quick:
            steps["flushes"] = timers.check_flushes
    for name, check in steps.items():
        report(name)
        yield check(device)


def _agreement_checks(
    kernels: list[KernelAgreement], device: str, options: argparse.Namespace, report: Report
) -> Iterator[Check]:
    if device.startswith("cuda"):
        torch.cuda.empty_cache()  # frees memory for the child processes
        if options.ncu:
            report("Nsight Compute")
            try:
                agreement.add_ncu(kernels, shutil.which(options.ncu) or options.ncu)
                yield agreement.check_ncu(kernels, quick=options.quick)
            except ncu.NcuError as error:
                report(f"Nsight Compute is not available: {error}")
    series: dict[str, list[processes.ProcessSeries]] = {}
    if options.processes > 1:
        report(f"{options.processes} fresh processes")
        series = processes.series_of_processes(options.processes, quick=options.quick)
        for kernel in kernels:
            kernel.process_medians_us = [one.median_us for one in series.get(kernel.name, ())]
            kernel.variation = processes.variation(kernel.process_medians_us)
        if any(kernel.variation is not None for kernel in kernels):
            yield agreement.check_processes(kernels, device)
    if not options.quick:
        yield from processes.detection_checks(series, device)


def table_lines(check: SelfCheck) -> Iterator[str]:
    """Yield the lines for a terminal: the timed calls, then the checks."""
    yield f"{check.device.name}, torch {check.env.torch}"
    yield ""
    width = max((len(kernel.name) for kernel in check.kernels), default=4)
    methods = list(dict.fromkeys(name for kernel in check.kernels for name in kernel.methods))
    heads = ["ours us", "ncu us", "overhead", "ours/ncu", "hot us", *methods, "CV"]
    yield f"{'call':<{width}} {'kernels':>7} " + " ".join(f"{head:>10}" for head in heads)
    for kernel in check.kernels:
        yield f"{kernel.name:<{width}} {kernel.kernels:>7} " + " ".join(
            f"{cell:>10}" for cell in _cells(kernel, methods)
        )
    yield ""
    for one in check.checks:
        yield f"{'passed' if one.passed else 'FAILED'}  {one.title}: {one.found} ({one.expected})"
        if one.detail and not one.passed:
            yield f"        {one.detail}"


def _cells(kernel: KernelAgreement, methods: list[str]) -> Iterator[str]:
    yield f"{kernel.ours_us:.5g}"
    yield "-" if kernel.ncu_us is None else f"{kernel.ncu_us:.5g}"
    yield "-" if kernel.ncu_us is None else f"{kernel.ncu_overhead_us:.3g}"
    yield f"{kernel.ours_us / kernel.truth_us:.4f}" if kernel.truth_us else "-"
    yield "-" if kernel.hot_us is None else f"{kernel.hot_us:.5g}"
    truth = kernel.truth_us or kernel.ours_us
    for name in methods:
        yield f"{kernel.methods[name] / truth:.2f}x" if name in kernel.methods else "-"
    yield "-" if kernel.variation is None else f"{kernel.variation:.2%}"


if __name__ == "__main__":
    sys.exit(main())
