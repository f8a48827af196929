"""``python -m kernels_bench_tools.selfcheck --output selfcheck.json``: check the current device."""

from __future__ import annotations

import argparse
import shutil
import sys
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
    """Run the self-check and write what it found; return 2 if a check failed, else 0."""
    # What ``kbt selfcheck`` passes, which explains its options.
    parser = argparse.ArgumentParser(prog="python -m kernels_bench_tools.selfcheck")
    parser.add_argument("--output", type=Path, default=Path("selfcheck.json"))
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--processes", type=int)
    parser.add_argument("--ncu", default="ncu")
    parser.add_argument("--commit", default="")
    options = parser.parse_args(arguments)
    quick, processes = options.quick, options.processes
    if processes is None:
        processes = QUICK_PROCESSES if quick else PROCESSES
    start, device = perf_counter(), torch_device()

    def report(step: str) -> None:
        print(f"… {step} ({perf_counter() - start:.0f} s)", file=sys.stderr, flush=True)

    report("floors")
    floors = checks.measure_floors(device)
    kernels = []
    for case in find_cases(device, quick=quick):
        report(case.name)
        kernels.append(checks.measure_case(case, device))
    made = [checks.check_floors(floors, device)]
    if device.startswith("cuda") and options.ncu:
        report("Nsight Compute")
        try:
            ncu.add_ncu(kernels, shutil.which(options.ncu) or options.ncu)
            made.append(checks.check_ncu(kernels, quick=quick))
        except ncu.NcuError as error:
            report(f"Nsight Compute is not available: {error}")
    if processes > 1:
        report(f"{processes} fresh processes")
        series = checks.series_of_processes(processes, device, quick=quick)
        for kernel in kernels:
            kernel.process_medians_us = [process.median_us for process in series.get(kernel.name, ())]
            kernel.variation = checks.variation(kernel.process_medians_us)
        made.append(checks.check_processes(kernels, device))
        if not quick:
            made += checks.detection_checks(series, device)
    found = SelfCheck(
        ts=datetime.now(UTC).isoformat(timespec="seconds"),
        device=describe_device(device),
        env=describe_environment(device),
        commit=options.commit,
        checks=made,
        kernels=kernels,
        floors_us={name: float(f"{us:.4g}") for name, us in floors.items()},
    )
    write_struct(options.output, found)
    for one in made:
        print(f"{'passed' if one.passed else 'FAILED'}  {one.title}: {one.found} ({one.expected})")
        if one.detail and not one.passed:
            print(f"        {one.detail}")
    return 0 if all(check.passed for check in made) else 2


if __name__ == "__main__":
    sys.exit(main())
