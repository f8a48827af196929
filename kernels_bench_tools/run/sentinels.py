"""Compares the sentinels of processes: kernels that each process times before and after its workloads.

Comparing implementations, which run in different processes, assumes that the device is equally fast in all of
them. Where sentinels deviate, the measurement between them may deviate as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from kernels_bench_tools.records.codec import ignore, read_records, write_records
from kernels_bench_tools.records.record import Flag, Record
from kernels_bench_tools.text import grouped

Times = Mapping[str, Sequence[float]]
"""Sentinel to its milliseconds in one process, in the order they were taken."""

LIMITS = {"cuda": 0.015, "cpu": 0.25}
"""Kind of device to the share by which a sentinel may differ. Our harness has no sentinels on a CPU: with another
program on the same cores, the same matrix product takes 1.3 ms or 16 ms."""

SMALLEST_MS = 1e-3
"""Smaller differences, of one microsecond, are due to the timer; this exempts the null kernel."""

FEWEST_PROCESSES = 3
"""Processes that a session needs before its median is the expected value."""


@dataclass(frozen=True)
class Deviation:
    """A sentinel that deviates from its expected time."""

    name: str
    ms: float
    expected_ms: float

    def __str__(self) -> str:
        """Describe it, without a full stop."""
        change = self.ms / self.expected_ms - 1
        return f"sentinel {self.name!r} took {self.ms:.4g} ms, {change:+.1%} from {self.expected_ms:.4g} ms"


def read_times(folder: Path) -> dict[str, list[float]]:
    """Return the sentinels in the artifacts of one process; empty if its records have none."""
    longest: dict[tuple[str, str], list[float]] = {}
    for _, records in _files(folder):
        for record in records:
            for name, times in record.sentinels.items():
                known = longest.setdefault((record.run, name), times)
                # A record written while its process still runs has the first of the two values only.
                if len(times) > len(known):
                    longest[record.run, name] = times
    return grouped((name, time) for (_, name), times in longest.items() for time in times if time > 0)


def find_deviations(session: Sequence[Times], limit: float) -> list[Deviation | None]:
    """Return, for each process of a session, the sentinel that deviates the most; None if none does.

    The expected value is the median of the session. With fewer than ``FEWEST_PROCESSES``, a process's last value
    is compared with its first instead. ``limit`` is the share by which a value may differ.
    """
    return [_worst(times, session, limit) for times in session]


def _worst(times: Times, session: Sequence[Times], limit: float) -> Deviation | None:
    found = []
    for name, values in times.items():
        if not values:
            continue
        others = [one[name] for one in session if one.get(name)]
        expected = (
            median([v for one in others for v in one]) if len(others) >= FEWEST_PROCESSES else values[0]
        )
        value = max(values, key=lambda one: abs(one - expected))
        if abs(value - expected) > max(limit * expected, SMALLEST_MS):
            found.append(Deviation(name, value, expected))
    return max(found, key=lambda one: abs(one.ms / one.expected_ms - 1), default=None)


def flag_records(folder: Path) -> None:
    """Add ``Flag.SENTINEL`` to the records in the artifacts of a process that have measurements."""
    for path, records in _files(folder):
        for record in records:
            if record.outcome.ran and Flag.SENTINEL not in record.flags:
                record.flags = [*record.flags, Flag.SENTINEL]
        write_records(path, records)


def _files(folder: Path) -> Iterator[tuple[Path, list[Record]]]:
    """Yield the record files in ``folder`` with their records."""
    for path in sorted(folder.rglob("*.jsonl")):
        yield path, read_records(path, on_problem=ignore)
