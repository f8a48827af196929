"""``python -m kernels_bench_tools.selfcheck --output selfcheck.json``: check the current device."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter

from kernels_bench_tools.file_io import write_struct
from kernels_bench_tools.measure.device.environment import torch_device
from kernels_bench_tools.schema.selfcheck import KernelAgreement, SelfCheck
from kernels_bench_tools.selfcheck import ncu, processes

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
    from kernels_bench_tools.selfcheck.run import SelfCheckOptions, run_selfcheck

    count = options.processes if options.processes is not None else QUICK_PROCESSES if options.quick else 10
    wanted = SelfCheckOptions(
        device=torch_device(),
        quick=options.quick,
        processes=count,
        ncu=options.ncu,
        commit=options.commit,
    )
    for found in run_selfcheck(wanted, _make_report()):
        write_struct(options.output, found)
    print("\n".join(table_lines(found)))
    return 0 if all(check.passed for check in found.checks) else 2


def _make_report() -> Callable[[str], None]:
    """Return a function that prints a step and the time since the start."""
    start = perf_counter()

    def report(step: str) -> None:
        print(f"… {step} ({perf_counter() - start:.0f} s)", file=sys.stderr, flush=True)

    return report


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m kernels_bench_tools.selfcheck",
        description="Time calls with known results on the current device, and write the checks.",
    )
    parser.add_argument("--output", type=Path, default=Path("selfcheck.json"))
    parser.add_argument(
        "--quick", action="store_true", help="fewer calls and 3 processes; slowdowns are not tested"
    )
    parser.add_argument(
        "--processes",
        type=int,
        help="fresh processes [default: 10]; 0 for none; slowdowns are tested from 6 on",
    )
    parser.add_argument("--ncu", default="ncu", help="path of Nsight Compute; empty to skip it")
    parser.add_argument("--commit", default="", help="the commit that is checked out")
    parser.add_argument("--child", choices=("ncu", "series"), help=argparse.SUPPRESS)
    parser.add_argument("--process", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--names", nargs="*", default=[], help=argparse.SUPPRESS)
    parser.add_argument("--flush", action="store_true", help=argparse.SUPPRESS)
    return parser


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
