"""How the kernels of a cell fared: the status of each workload, and that of the cell."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

import msgspec

from kernels_bench_tools.records.record import REJECTING, Flag, Record, Status
from kernels_bench_tools.text.hiding import without_styles


class Outcome(msgspec.Struct, kw_only=True, omit_defaults=True):
    workloads: dict[Status, int] = msgspec.field(default_factory=dict)
    """How many workloads have a status."""
    reasons: dict[Status, str] = msgspec.field(default_factory=dict)
    """Each status with the reason of the first workload that has it. A record without a workload counts here only."""
    disturbed: int = 0
    """How many correct workloads have no rank because other processes kept the machine busy."""


def outcome_of(records: Iterable[Record]) -> Outcome:
    """Return how the workloads of a cell ended; of several records of a process, the last one counts."""
    worst: dict[str, Record] = {}
    disturbed = set()
    for record in {(record.workload, record.process): record for record in records}.values():
        known = worst.setdefault(record.workload, record)
        if record.outcome.severity > known.outcome.severity:
            worst[record.workload] = record
        if Flag.DISTURBED in record.flags:
            disturbed.add(record.workload)
    reasons: dict[Status, str] = {}
    for record in worst.values():
        reasons.setdefault(record.outcome, reason_of(record))
    return Outcome(
        workloads=dict(Counter(record.outcome for name, record in worst.items() if name)),
        reasons=reasons,
        disturbed=sum(worst[name].outcome is Status.OK for name in disturbed),
    )


def cell_status(statuses: Iterable[Status]) -> Status:
    """Return the status of a cell whose workloads have these: the worst one; unsupported only if nothing else is.

    >>> cell_status([Status.OK, Status.UNSUPPORTED]), cell_status([Status.OK, Status.INCORRECT, Status.REJECTED])
    (<Status.OK: 'ok'>, <Status.INCORRECT: 'incorrect'>)
    """
    return max(statuses, key=lambda it: -1 if it is Status.UNSUPPORTED else it.severity)


def reason_of(record: Record) -> str:
    """Return in one line why a record has no latency or no rank; empty for one that is ok."""
    if record.outcome is Status.OK:
        return ""
    rejecting = [flag for flag in Flag if flag in REJECTING and flag in record.flags]
    if record.outcome is Status.REJECTED and rejecting:
        said = record.err.msg if record.err else ""
        if said.startswith(f"{rejecting[0].value}: ") and len(rejecting) == 1:
            return one_line(f"{rejecting[0].label}: {said.partition(': ')[2]}")
        return "; ".join(f"{flag.label}: {flag.meaning}" for flag in rejecting)
    if record.err is not None:
        kind, message = record.err.type, record.err.msg
        # The class of an exception is part of the reason; a status is shown anyway.
        named = record.outcome is Status.ERROR and kind != record.outcome.value and kind not in message
        return one_line(f"{kind}: {message}" if named and message else message or kind)
    if record.outcome is Status.INCORRECT:
        reason = record.corr.get("reason")
        if isinstance(reason, str) and reason:
            return one_line(reason)
        error = "" if record.absmax is None else f" by up to {record.absmax:.3g}"
        return f"differs from the reference{error}"
    return f"{record.outcome.label}; no reason was recorded"


def one_line(text: str) -> str:
    """Return ``text`` as one line of at most 300 characters."""
    line = " ".join(without_styles(text).split())
    return line if len(line) <= 300 else f"{line[:299].rstrip()}…"
