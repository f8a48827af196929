from __future__ import annotations

from kernels_bench_tools.schema.record import Flag, Status
from kernels_bench_tools.schema.summary import Point, Row
from kernels_bench_tools.summarize.summary import ranked


def row(name: str, speedup: float, *flags: Flag) -> Row:
    point = Point(workload="w", status=Status.OK, p50_ms=1 / speedup, speedup=speedup, flags=[*flags])
    return Row(
        implementation=name,
        slug=name,
        title=name,
        status=Status.OK,
        passed=1,
        total=1,
        speedup=speedup,
        points=[point],
    )


def test_approximate_rows_are_ranked_among_themselves_after_exact_ones() -> None:
    rows = [
        row("int8", 3.0, Flag.APPROXIMATE),
        row("torch", 1.0),
        row("fp8", 4.0, Flag.APPROXIMATE),
        row("triton", 2.0),
    ]

    found = [(it.implementation, it.rank) for it in ranked(rows, "torch", only_judged=True)]

    assert found == [("triton", 1), ("torch", 2), ("fp8", 3), ("int8", 4)]
