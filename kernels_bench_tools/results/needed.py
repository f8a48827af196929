"""What a device lacks of an operator's results, and how long measuring the operator takes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import NamedTuple

from kernels_bench_tools.records.code import has_other_code
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.record import Record, Status
from kernels_bench_tools.records.request import FORWARD, Request
from kernels_bench_tools.records.summary import DeviceSummary, Verdict
from kernels_bench_tools.results.counted import Counted
from kernels_bench_tools.results.speedup import written_at
from kernels_bench_tools.results.summary import summarize
from kernels_bench_tools.text.tables import grouped

RESULT_SECONDS, PROCESS_SECONDS = 1.2, 6.0
"""Of a result in one process, and of the process itself, on a GPU where no record says more."""
_NO_VERDICT = {Verdict.SEPARATE, Verdict.FEW_PROCESSES}


class Needed(NamedTuple):
    results: int
    """How many results are missing, are of code that has changed, or have no verdict."""
    seconds: float
    """How long it is expected to take to measure all implementations of the operator again."""


def needed(
    operator: str,
    records: Counted,
    digests: Mapping[str, Mapping[str, str]],
    device: Device,
    request: Request,
    processes: int,
) -> Needed:
    """Return what a device lacks of the workloads of a request; ``digests`` are those of each implementation's cells, by id.

    Where it has no results of them, it lacks as many as the device of its kind that has most.
    """
    asked = request.sets(device.kind), "" if request.mode == FORWARD else request.mode
    views = [
        view
        for view in summarize(operator, operator, records.sources).devices
        if view.device.kind == device.kind
        and any(one.set in asked[0] and one.mode == asked[1] for one in view.workloads)
    ]
    by_device = grouped((view.device.slug, view) for view in views)
    alike = max(by_device.values(), key=_results, default=[])
    here = by_device.get(device.slug)
    lacking = sum(
        point.status is Status.ABSENT
        or (
            point.status is not Status.UNSUPPORTED
            and has_other_code(row.provenance, digests.get(row.implementation, {}))
        )
        or point.verdict in _NO_VERDICT
        for view in here or ()
        for row in view.rows
        for point in row.points
    )
    shown = here or alike
    count = _results(shown) or len(digests)
    slug = shown[0].device.slug if shown else ""
    measured = [
        record
        for it in records.devices
        if it.device.slug == slug
        for own in it.implementations.values()
        for record in own
    ]
    seconds = processes * (count * _result_seconds(measured) + len(digests) * PROCESS_SECONDS)
    return Needed(lacking if here else count, seconds)


def _results(views: Iterable[DeviceSummary]) -> int:
    """Return how many results a device has, and lacks, of implementations that it supports."""
    return sum(
        point.status is not Status.UNSUPPORTED for view in views for row in view.rows for point in row.points
    )


def _result_seconds(records: Iterable[Record]) -> float:
    """Return the seconds from one result of a process to the next, by the times of its records."""
    seconds, steps = 0.0, 0
    for own in grouped((record.run, record) for record in records).values():
        with suppress(ValueError):
            times = list(map(written_at, own))
            seconds, steps = seconds + max(times) - min(times), steps + len(times) - 1
    return seconds / steps if steps else RESULT_SECONDS
