"""The process that ``kbt selfcheck`` starts: checks the current device, and writes and prints what it found."""

from __future__ import annotations

import shutil
import sys
from datetime import UTC, datetime
from pathlib import Path
from time import perf_counter

from kernels_bench_tools.file_io import write_struct
from kernels_bench_tools.measure.device.environment import describe_device, describe_environment, torch_device
from kernels_bench_tools.records.selfcheck import SelfCheck
from kernels_bench_tools.selfcheck import checks, ncu
from kernels_bench_tools.selfcheck.cases import PLAIN, SLOWED, find_cases


def main(output: Path, ncu_program: str, processes: int, *, quick: bool) -> None:
    """Run the self-check and write what it found; an empty ``ncu_program`` skips Nsight Compute."""
    start, device = perf_counter(), torch_device()

    def report(step: str) -> None:
        print(f"… {step} ({perf_counter() - start:.0f} s)", file=sys.stderr, flush=True)

    report("overhead of empty calls")
    floors = checks.measure_floors(device)
    kernels = []
    for case in find_cases(device, quick=quick):
        report(case.name)
        kernels.append(checks.measure_case(case, device))
    made = [checks.check_floors(floors, device)]
    if device.startswith("cuda") and ncu_program:
        report("Nsight Compute")
        try:
            ncu.add_ncu(kernels, shutil.which(ncu_program) or ncu_program)
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
        if not quick and processes >= checks.ENOUGH_PROCESSES:
            same = checks.pairs_of_processes(series, [(name, name) for name in series])
            made.append(checks.check_same(same, device))
            if SLOWED.name in series:
                slowed = checks.pairs_of_processes(series, [(SLOWED.name, PLAIN.name)])
                made.append(checks.check_slowdown(slowed, device, checks.NEEDED))
    found = SelfCheck(
        ts=datetime.now(UTC).isoformat(timespec="seconds"),
        device=describe_device(device),
        env=describe_environment(device),
        checks=made,
        kernels=kernels,
        floors_us={name: float(f"{us:.4g}") for name, us in floors.items()},
    )
    write_struct(output, found)
    for one in made:
        print(f"{'passed' if one.passed else 'FAILED'}  {one.title}: {one.found} ({one.expected})")
        if one.detail and not one.passed:
            print(f"        {one.detail}")


if __name__ == "__main__":
    path, program, count, *quickly = sys.argv[1:]
    main(Path(path), program, int(count), quick=bool(quickly))
