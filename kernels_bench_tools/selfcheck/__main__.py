"""``python -m kernels_bench_tools.selfcheck --output selfcheck.json``: check the current device."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

from kernels_bench_tools.file_io import write_struct
from kernels_bench_tools.measure.device.environment import describe_device, describe_environment, torch_device
from kernels_bench_tools.records.selfcheck import SelfCheck
from kernels_bench_tools.selfcheck import checks, ncu
from kernels_bench_tools.selfcheck.cases import find_cases

QUICK_PROCESSES, PROCESSES = 3, 10


def main(arguments: list[str] | None = None) -> int:
    """Run the self-check; return 2 if a check failed, else 0."""
    # What ``kbt selfcheck``, which explains its options, and this program itself pass.
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
    options = parser.parse_args(arguments)
    if options.child == "ncu":
        ncu.run_child(options.names, flush=options.flush)
        return 0
    if options.child == "series":
        checks.run_child(torch_device(), options.output, quick=options.quick, process=options.process)
        return 0
    if options.processes is None:
        options.processes = QUICK_PROCESSES if options.quick else PROCESSES
    for found in run_selfcheck(torch_device(), options):
        write_struct(options.output, found)
    print("\n".join(table_lines(found)))
    return 0 if all(check.passed for check in found.checks) else 2


def run_selfcheck(device: str, options: argparse.Namespace) -> Iterator[SelfCheck]:
    """Run the checks on one device, and yield the result so far after each; the last one is complete."""
    start = perf_counter()

    def report(step: str) -> None:
        print(f"… {step} ({perf_counter() - start:.0f} s)", file=sys.stderr, flush=True)

    described = describe_device(device)
    report("floors")
    floors = checks.measure_floors(device)
    kernels = []
    for case in find_cases(device, quick=options.quick):
        report(case.name)
        kernels.append(checks.measure_case(case, device))
    so_far = SelfCheck(
        ts=datetime.now(UTC).isoformat(timespec="seconds"),
        device=described,
        env=describe_environment(device),
        commit=options.commit,
        checks=[checks.check_floors(floors, device)],
        kernels=kernels,
        floors_us={name: float(f"{us:.4g}") for name, us in floors.items()},
    )
    yield so_far
    if device.startswith("cuda") and options.ncu:
        report("Nsight Compute")
        try:
            ncu.add_ncu(kernels, shutil.which(options.ncu) or options.ncu)
            so_far.checks.append(checks.check_ncu(kernels, quick=options.quick))
        except ncu.NcuError as error:
            report(f"Nsight Compute is not available: {error}")
        yield so_far
    if options.processes > 1:
        report(f"{options.processes} fresh processes")
        series = checks.series_of_processes(options.processes, quick=options.quick)
        for kernel in kernels:
            kernel.process_medians_us = [process.median_us for process in series.get(kernel.name, ())]
            kernel.variation = checks.variation(kernel.process_medians_us)
        so_far.checks.append(checks.check_processes(kernels, device))
        if not options.quick:
            so_far.checks += checks.detection_checks(series, device)
        yield so_far


def table_lines(check: SelfCheck) -> Iterator[str]:
    """Yield the lines for a terminal: the timed calls, then the checks."""
    yield f"{check.device.name}, torch {check.env.torch}"
    yield ""
    width = max((len(kernel.name) for kernel in check.kernels), default=4)
    heads = ("kernels", "ours us", "ncu us", "overhead", "ours/ncu", "CV")
    yield f"{'call':<{width}} " + " ".join(f"{head:>10}" for head in heads)
    for kernel in check.kernels:
        by_ncu = ["-", "-", "-"]
        if kernel.ncu_us is not None and kernel.difference is not None:
            by_ncu = [f"{kernel.ncu_us:.5g}", f"{kernel.ncu_overhead_us:.3g}", f"{1 + kernel.difference:.4f}"]
        variation = "-" if kernel.variation is None else f"{kernel.variation:.2%}"
        cells = (str(kernel.kernels), f"{kernel.ours_us:.5g}", *by_ncu, variation)
        yield f"{kernel.name:<{width}} " + " ".join(f"{cell:>10}" for cell in cells)
    yield ""
    for one in check.checks:
        yield f"{'passed' if one.passed else 'FAILED'}  {one.title}: {one.found} ({one.expected})"
        if one.detail and not one.passed:
            yield f"        {one.detail}"


if __name__ == "__main__":
    sys.exit(main())
