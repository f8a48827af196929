"""``python -m kernels_bench_tools.selfcheck --output selfcheck.json``: check the current device."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable
from pathlib import Path
from time import perf_counter

from kernels_bench_tools.file_io import write_struct
from kernels_bench_tools.measure.device.environment import torch_device
from kernels_bench_tools.selfcheck import ncu, processes
from kernels_bench_tools.selfcheck.table import table_lines

QUICK_PROCESSES = 3


def main(arguments: list[str] | None = None) -> int:
    """Run the self-check; return 2 if a check failed, else 0."""
    options = _parser().parse_args(arguments)
    if options.child == "ncu":
        ncu.run_child(options.names, flush=options.flush)
        return 0
    if options.child == "series":
        processes.run_child(torch_device(), options.output, quick=options.quick, process=options.process)
        return 0
    from kernels_bench_tools.selfcheck.run import Options, run_selfcheck

    count = options.processes if options.processes is not None else QUICK_PROCESSES if options.quick else 10
    wanted = Options(
        device=torch_device(),
        quick=options.quick,
        processes=count,
        ncu=options.ncu,
        commit=options.commit,
    )
    for found in run_selfcheck(wanted, _make_tell()):
        write_struct(options.output, found)
    print("\n".join(table_lines(found)))
    return 0 if all(check.passed for check in found.checks) else 2


def _make_tell() -> Callable[[str], None]:
    """Return what prints what is being done, and how long after the start."""
    start = perf_counter()

    def tell(doing: str) -> None:
        print(f"… {doing} ({perf_counter() - start:.0f} s)", file=sys.stderr, flush=True)

    return tell


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kernels_bench_tools.selfcheck",
        description="Measure what is known on the current device, and write what came out.",
    )
    parser.add_argument("--output", type=Path, default=Path("selfcheck.json"))
    parser.add_argument("--quick", action="store_true", help="fewer calls, fewer pairs, 3 processes")
    parser.add_argument("--processes", type=int, help="fresh processes [default: 10]; 0 for none")
    parser.add_argument("--ncu", default="ncu", help="Nsight Compute's program; empty for without")
    parser.add_argument("--commit", default="", help="the commit that is checked out")
    parser.add_argument("--child", choices=("ncu", "series"), help=argparse.SUPPRESS)
    parser.add_argument("--process", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--names", nargs="*", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--flush", action="store_true", help=argparse.SUPPRESS)
    return parser


if __name__ == "__main__":
    sys.exit(main())
