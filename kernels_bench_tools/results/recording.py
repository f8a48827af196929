"""Which committed rows a new measurement replaces."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf
from typing import NamedTuple

from msgspec.structs import replace

from kernels_bench_tools.records.record import Record
from kernels_bench_tools.text import grouped


class Merged(NamedTuple):
    kept: list[Record]
    """Earlier rows."""
    taken: list[Record]
    """New rows."""
    less: set[str]
    """Workloads, or phases, measured now with fewer layers or in fewer processes, with the same code: kept."""


def merge_rows(before: Sequence[Record], now: Sequence[Record], *, force: bool) -> Merged:
    """Return which rows of a file are kept, and which new ones are taken; all of the new ones with ``force``."""
    counted = _with_earlier_runs(before, now)
    before = [] if force else before
    earlier_extent = _extents(before)
    less = {
        part
        for (part, code), extent in _extents(now).items()
        if extent < earlier_extent.get((part, code), (0, 0))
    }
    earlier, again = measured_parts(before), measured_parts(now) - less
    named = {part_of(entry) for entry in now} - less
    kept = [
        entry
        for entry in before
        if part_of(entry) not in again and (part_of(entry) in earlier or part_of(entry) not in named | {""})
    ]
    # A failure is recorded only for a workload that was never measured.
    failures = named - again - earlier - ({""} if earlier else set())
    return Merged(kept, [entry for entry in counted if part_of(entry) in again | failures], less)


def part_of(record: Record) -> str:
    """Return what is replaced as a whole: the phase of an effect, else the workload."""
    return record.effect.phase if record.effect else record.workload


def measured_parts(records: Iterable[Record]) -> set[str]:
    return {part_of(entry) for entry in records if entry.outcome.ran}


def _extents(records: Iterable[Record]) -> dict[tuple[str, str], tuple[float, int]]:
    """Return how many layers, and processes, measured each workload, or phase, with each code."""
    rows = grouped(
        ((part_of(entry), entry.provenance.code_digest), entry) for entry in records if entry.outcome.ran
    )
    return {
        key: (
            entries[-1].effect.layers or inf if entries[-1].effect else 0,
            len({(entry.run, entry.process) for entry in entries}),
        )
        for key, entries in rows.items()
    }


def _with_earlier_runs(before: Iterable[Record], now: Sequence[Record]) -> list[Record]:
    """Return the new records; the first of each workload and process has the number of runs that it replaces."""
    of_run = {(entry.workload, entry.process, entry.run): entry.earlier_runs for entry in before}
    new_runs = {entry.run for entry in now}
    replaced = {
        key: sum(runs)
        for key, runs in grouped(
            ((workload, process), 1 + earlier)
            for (workload, process, run), earlier in of_run.items()
            if run not in new_runs
        ).items()
    }
    return [
        replace(
            entry,
            earlier_runs=max(entry.earlier_runs, of_run.get((entry.workload, entry.process, entry.run), 0))
            + replaced.pop((entry.workload, entry.process), 0),
        )
        for entry in now
    ]
