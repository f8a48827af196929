"""Compare our times with Nsight Compute's, other methods' and other processes'."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from time import perf_counter
from typing import Any

import torch

from kernels_bench_tools.measure.operator import Inputs
from kernels_bench_tools.measure.timing.measure import measure
from kernels_bench_tools.records.selfcheck import Check, KernelAgreement
from kernels_bench_tools.selfcheck.cases import EMPTY_KERNEL, Case
from kernels_bench_tools.selfcheck.ncu import run_ncu
from kernels_bench_tools.selfcheck.timers import make_draw

MIN_KERNELS = 20
MIN_KERNEL_US = 1.5
"""Shorter calls are mostly overhead, and are not compared."""
MAX_SECONDS = 1.5


def measure_cases(
    cases: Sequence[Case], device: str, report: Callable[[str], None]
) -> Iterator[tuple[KernelAgreement, float]]:
    """Measure each case like a record, and by other methods; also yield the seconds that our measurement took."""
    with torch.no_grad():
        for case in cases:
            report(case.name)
            sets = case.input_sets(device)
            start = perf_counter()
            measured = measure(case.function, sets, device)
            seconds = perf_counter() - start
            hot = make_draw(case.function, sets[0], device, cold=False)
            latency = measured.latency
            kernel = KernelAgreement(
                name=case.name,
                ours_us=latency.p50 * 1e3,
                ci_low_us=(latency.p50 if latency.ci_low is None else latency.ci_low) * 1e3,
                ci_high_us=(latency.p50 if latency.ci_high is None else latency.ci_high) * 1e3,
                kernels=sum(kernel.count for kernel in measured.kernels),
                hot_us=median(hot(30)),
                methods=other_methods(case.function, sets[0], device),
            )
            yield kernel, seconds
            del sets, measured, hot  # before the memory is freed
            if device.startswith("cuda"):
                torch.cuda.empty_cache()


def other_methods(function: Callable[..., Any], inputs: Inputs, device: str) -> dict[str, float]:
    """Return the microseconds by other methods; one that does not support this call is left out.

    ``timer``: the median of five ``torch.utils.benchmark.Timer(...).timeit(1)``, by the host's clock.
    ``do_bench`` and ``do_bench_cudagraph``: medians of ``triton.testing``'s, on CUDA only.
    """
    from torch.utils.benchmark import Timer  # not above: it imports compilers of extensions

    def call() -> Any:
        return function(*inputs)

    timer = Timer(stmt="call()", globals={"call": call}, num_threads=torch.get_num_threads())
    found = {"timer": median(timer.timeit(1).mean for _ in range(5)) * 1e6}
    if device.startswith("cuda"):
        try:
            from triton import testing
        except ImportError:
            return found
        methods = {"do_bench": testing.do_bench, "do_bench_cudagraph": testing.do_bench_cudagraph}
        for name, method in methods.items():
            try:
                found[name] = float(method(call, return_mode="median")) * 1e3
            except Exception:  # not every call can be captured in a graph
                torch.cuda.synchronize()
    return found


def add_ncu(kernels: Sequence[KernelAgreement], ncu: str) -> None:
    """Add the times of ``ncu``; raise ``NcuError`` if it is not available."""
    single = [kernel.name for kernel in kernels if kernel.kernels == 1]
    several = [kernel.name for kernel in kernels if kernel.kernels > 1]
    times = run_ncu(single, several, ncu)
    empty_us = next((kernel.ours_us for kernel in kernels if kernel.name == EMPTY_KERNEL.name), 0.0)
    for kernel in kernels:
        kernel.ncu_us = times.calls.get(kernel.name)
        empty_by_ncu = times.empty_single if kernel.kernels == 1 else times.empty_several
        kernel.ncu_overhead_us = kernel.kernels * (empty_by_ncu - empty_us)


def check_ncu(kernels: Sequence[KernelAgreement], *, quick: bool) -> Check:
    """Check that enough of our times agree with ncu's, less ncu's overhead for each kernel; list the others."""
    known = [(kernel, truth) for kernel in kernels if (truth := kernel.truth_us) and truth >= MIN_KERNEL_US]
    apart = {kernel.name: kernel.ours_us / truth - 1 for kernel, truth in known}
    wide = [kernel.name for kernel, truth in known if abs(kernel.ours_us - truth) > max(0.3, 0.02 * truth)]
    within = [abs(apart[kernel.name]) for kernel, _ in known if kernel.name not in wide]
    needed = 1 if quick else MIN_KERNELS
    return Check(
        name="ncu_agreement",
        title="Times agree with Nsight Compute",
        expected=f"within max(0.3 us, 2 %) of ncu without its overhead per kernel, on at least {needed} calls",
        found=f"{len(within)} of {len(known)} within, these at most {max(within, default=0.0):.1%} apart",
        passed=len(within) >= needed,
        detail=f"beyond the bound: {', '.join(f'{name} {apart[name]:+.1%}' for name in wide)}"
        if wide
        else "",
    )


def check_processes(kernels: Sequence[KernelAgreement], device: str) -> Check:
    """Check that medians vary little between processes."""
    known = [(kernel, kernel.variation) for kernel in kernels if kernel.variation is not None]
    cuda = device.startswith("cuda")
    wide = [
        f"{kernel.name} {spread:.2%}"
        for kernel, spread in known
        if spread > (0.1 if not cuda else 0.003 if kernel.ours_us >= 10 else 0.007)
    ]
    bound = "0.3 % from 10 us on, 0.7 % below" if cuda else "10 %"
    count = len(known[0][0].process_medians_us) if known else 0
    return Check(
        name="processes",
        title="Medians of fresh processes agree",
        expected=f"coefficient of variation of the median at most {bound}",
        found=f"at most {max((spread for _, spread in known), default=0):.2%} over {count} processes",
        passed=not wide and bool(known),
        detail=f"beyond the bound: {', '.join(wide)}" if wide else "",
    )


def check_cost(seconds: Sequence[float]) -> Check:
    """Check the wall-clock time of measuring a workload."""
    return Check(
        name="cost",
        title="Wall-clock time per workload",
        expected=f"at most {MAX_SECONDS} s of wall-clock time, median over the calls",
        found=f"{median(seconds):.2f} s, {max(seconds):.2f} s at most",
        passed=median(seconds) <= MAX_SECONDS,
        detail="Includes device and host time.",
    )
