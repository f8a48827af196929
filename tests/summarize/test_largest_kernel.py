from __future__ import annotations

from kernels_bench_tools.schema.record import Kernel
from kernels_bench_tools.summarize.rows import Source
from kernels_bench_tools.summarize.summary import summarize


def test_a_call_of_several_kernels_has_the_time_of_the_largest(record) -> None:
    def kernels(*times: float) -> list[Kernel]:
        return [Kernel(name=f"k{number}", count=1, ms=ms) for number, ms in enumerate(times)]

    sources = [
        Source(records=[record("converts", 0.4, kernels=kernels(0.01, 0.3, 0.09))]),
        Source(records=[record("fused", 0.3, kernels=kernels(0.3))]),
    ]

    (view,) = summarize("op", "Op", sources).devices

    assert {row.implementation: row.points[0].kernel_ms for row in view.rows} == {
        "converts": 0.3,
        "fused": None,
    }
