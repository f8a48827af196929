"""The file of records that a cell leaves: written as it goes, completed at the end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from msgspec.structs import replace

from kernels_bench_tools.measure.record import significant
from kernels_bench_tools.schema.record import Record
from kernels_bench_tools.schema.record_io import append_record, write_records


class RecordFile:
    """The file of records of one run: appended to record by record, completed at the end.

    Args:
        path: The file; what other runs wrote to it stays.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._records: list[Record] = []
        self._before = path.stat().st_size if path.exists() else 0

    def append(self, record: Record) -> Record:
        """Add a record at once, so that a process killed later has not lost it; return what was written.

        What :func:`without_origin` names is on the records up to the first that ran: it speaks for all.
        """
        if any(earlier.outcome.ran for earlier in self._records):
            record = without_origin(record)
        append_record(self._path, record)
        self._records.append(record)
        return record

    def complete(
        self, sentinels: Mapping[str, Sequence[float]], ceilings: Mapping[str, float]
    ) -> list[Record]:
        """Add what the process measured once, now that its last workload is done; return all records.

        The file is replaced whole or not at all.

        Args:
            sentinels: Reference kernel to its milliseconds before and after, for every record.
            ceilings: What the device reached, for the first record.
        """
        complete = [
            with_session(record, sentinels, {} if number else ceilings)
            for number, record in enumerate(self._records)
        ]
        if complete != self._records:
            others = self._path.read_bytes()[: self._before]
            write_records(self._path, complete, before=others)
        return complete


def without_origin(record: Record) -> Record:
    """Return the record without what an earlier one of its process says for it: packages, trust, loading.

    They are the same, and a fifth of a record.
    """
    first = record.first_call
    return replace(
        record,
        trust="",
        first_call=replace(first, import_ms=None, load_ms=None) if first else None,
        provenance=replace(record.provenance, packages={}),
    )


def with_session(
    record: Record, sentinels: Mapping[str, Sequence[float]], ceilings: Mapping[str, float]
) -> Record:
    """Return the record with what its process measured once: sentinels, and the ceilings."""
    return replace(
        record,
        sentinels={name: [significant(ms) for ms in times] for name, times in sentinels.items()},
        ceilings={name: significant(value) for name, value in ceilings.items()},
    )
