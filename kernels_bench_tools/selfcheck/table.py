"""A self-check as lines of text."""

from __future__ import annotations

from collections.abc import Iterator

from kernels_bench_tools.schema.selfcheck import KernelAgreement, SelfCheck


def table_lines(check: SelfCheck) -> Iterator[str]:
    """Yield the lines that a terminal shows: the calls, then what was checked."""
    yield f"{check.device.name}, torch {check.env.torch}"
    yield ""
    width = max((len(kernel.name) for kernel in check.kernels), default=4)
    methods = list(dict.fromkeys(name for kernel in check.kernels for name in kernel.methods))
    heads = ["ours us", "ncu us", "its cost", "ours/rest", "hot us", *methods, "CV"]
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
