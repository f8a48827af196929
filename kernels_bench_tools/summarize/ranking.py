"""Who may be ranked, and in which order: the only place that decides it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kernels_bench_tools.schema.record import Record, Status
from kernels_bench_tools.schema.summary import Estimate, Point, Row, geometric_mean
from kernels_bench_tools.stats import geometric_mean_interval


def overall_speedup(
    points: Sequence[Point], processes: Sequence[Sequence[float]] = ()
) -> tuple[Estimate | None, int]:
    """Return the geometric mean of the speed-ups, and over how many workloads it was taken.

    Args:
        points: One for each workload; those without a speed-up do not count.
        processes: For each process, its speed-up on each of those that count, where that is known.
    """
    ratios = [
        Estimate(point.speedup, point.speedup_low or 0.0, point.speedup_high or float("inf"))
        for point in points
        if point.speedup is not None
    ]
    return (geometric_mean_interval(ratios, processes), len(ratios)) if ratios else (None, 0)


def speedups_by_process(pairs: Sequence[tuple[Sequence[Record], Sequence[Record]]]) -> list[list[float]]:
    """Return each process's speed-up on each workload; nothing unless all workloads have the same processes.

    Args:
        pairs: For each workload the candidate's records and the baseline's, one for each process.
    """
    numbers = {tuple(record.process for record in records) for pair in pairs for records in pair}
    if len(numbers) != 1:
        return []
    return [
        [_p50(theirs[index]) / _p50(ours[index]) for ours, theirs in pairs]
        for index in range(len(numbers.pop()))
    ]


def _p50(record: Record) -> float:
    assert record.lat_ms is not None
    return record.lat_ms.p50


def ranked(rows: Sequence[Row], baseline: str) -> list[Row]:
    """Return the rows in the order of a table, with ranks.

    A row is ranked if it passed every workload that the baseline passed, by its speed-up; without a
    baseline, if it passed every workload that any row passed, by its latency. Then come the rows that
    passed fewer, then those that passed none.

    Args:
        rows: The rows of one device, each with a point per workload.
        baseline: Id of the implementation that divides the speed-ups, or empty.
    """
    judges = [row for row in rows if row.implementation == baseline] if baseline else rows
    needed = {point.workload for row in judges for point in row.points if point.status is Status.OK}
    able = [row for row in rows if needed and needed <= _passed(row)]
    able.sort(key=lambda row: (-(row.speedup or 0), _latency_over(row, needed), row.implementation))
    others = [row for row in rows if not needed or not needed <= _passed(row)]
    others.sort(key=lambda row: (row.passed == 0, not _ran(row), -row.passed, row.implementation))
    return [msgspec.structs.replace(row, rank=rank) for rank, row in enumerate(able, start=1)] + others


def _passed(row: Row) -> set[str]:
    return {point.workload for point in row.points if point.status is Status.OK}


def _ran(row: Row) -> bool:
    return any(point.status.ran for point in row.points)


def _latency_over(row: Row, workloads: set[str]) -> float:
    times = [point.p50_ms for point in row.points if point.workload in workloads and point.p50_ms]
    return geometric_mean(times) if times else float("inf")
