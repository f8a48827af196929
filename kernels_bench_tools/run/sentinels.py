"""Sentinels: reference kernels that every measuring process times, which tell whether the device was itself.

Implementations live in processes of their own, so what compares them assumes that the device is as fast in
one process as in the next. Each process times the same kernels before and after its workloads; where they
deviate, so may the measurement between them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from kernels_bench_tools.errors import RecordError
from kernels_bench_tools.schema.record import Flag, Record
from kernels_bench_tools.schema.record_io import read_records, write_records

Times = Mapping[str, Sequence[float]]
"""Sentinel to its milliseconds in one process, in the order they were taken."""

LIMITS = {"cuda": 0.015, "cpu": 0.25}
"""Kind of device to the share by which a sentinel may differ. On a CPU our harness times none: with a
neighbour on the same cores, the same matrix product takes 1.3 ms or 16."""

SMALLEST_MS = 1e-3
"""Differences below one microsecond are the timer's, not the device's: they exempt a kernel of nothing."""

FEWEST_PROCESSES = 3
"""Processes that a session needs before its median says what is usual."""


@dataclass(frozen=True)
class Deviation:
    """A sentinel that ran at another speed."""

    name: str
    ms: float
    usual_ms: float

    def __str__(self) -> str:
        """Return it in words, without a full stop."""
        change = self.ms / self.usual_ms - 1
        return f"sentinel {self.name!r} took {self.ms:.4g} ms, {change:+.1%} from {self.usual_ms:.4g} ms"


def read_times(folder: Path) -> dict[str, list[float]]:
    """Return the sentinels of one process; empty if its records have none.

    Args:
        folder: The process's artifacts.
    """
    longest: dict[tuple[str, str], list[float]] = {}
    for _, records in _files(folder):
        for record in records:
            for name, times in record.sentinels.items():
                known = longest.setdefault((record.run, name), times)
                # A record written while its process still runs has the first of the two values only.
                if len(times) > len(known):
                    longest[record.run, name] = times
    found: dict[str, list[float]] = defaultdict(list)
    for (_, name), times in longest.items():
        found[name] += [time for time in times if time > 0]
    return dict(found)


def find_deviations(session: Sequence[Times], limit: float) -> list[Deviation | None]:
    """Return, for each process, the sentinel that deviates the most; None where all are as usual.

    What is usual is the median of all values of the session. Where fewer than ``FEWEST_PROCESSES`` tell, a
    process's last value is compared with its first instead.

    Args:
        session: The sentinels of each process of one session on one device.
        limit: The share by which a value may differ.
    """
    return [_worst(times, session, limit) for times in session]


def _worst(times: Times, session: Sequence[Times], limit: float) -> Deviation | None:
    found = []
    for name, values in times.items():
        if not values:
            continue
        others = [one[name] for one in session if one.get(name)]
        usual = median([v for one in others for v in one]) if len(others) >= FEWEST_PROCESSES else values[0]
        value = max(values, key=lambda one: abs(one - usual))
        if abs(value - usual) > max(limit * usual, SMALLEST_MS):
            found.append(Deviation(name, value, usual))
    return max(found, key=lambda one: abs(one.ms / one.usual_ms - 1), default=None)


def flag_records(folder: Path) -> None:
    """Give every record of a process that ran ``Flag.SENTINEL``.

    Args:
        folder: The process's artifacts.
    """
    for path, records in _files(folder):
        for record in records:
            if record.outcome.ran and Flag.SENTINEL not in record.flags:
                record.flags = [*record.flags, Flag.SENTINEL]
        write_records(path, records)


def _files(folder: Path) -> Iterator[tuple[Path, list[Record]]]:
    """Yield the files of records in ``folder``; what a broken process left unreadable is passed over."""
    for path in sorted(folder.rglob("*.jsonl")):
        try:
            yield path, read_records(path)
        except RecordError:
            continue
