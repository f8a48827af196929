"""What tables and reasons say in words."""

from __future__ import annotations

from collections.abc import Iterable

from kernels_bench_tools.schema.record import REJECTING, Flag, Record, Status


def flag_words(flags: Iterable[Flag]) -> str:
    """Return flags in words, as one line; empty for none."""
    return ", ".join(flag.clause for flag in flags)


def reason_of(record: Record) -> str:
    """Return in one line why a record has no latency or no rank; empty for one that is ok."""
    if record.outcome is Status.OK:
        return ""
    rejecting = [flag for flag in Flag if flag in REJECTING and flag in record.flags]
    if record.outcome is Status.REJECTED and rejecting:
        return flag_words(rejecting)
    if record.err is not None:
        kind, told = record.err.type, record.err.msg
        # An exception's class says what its message often does not; a status is shown anyway.
        named = record.outcome is Status.ERROR and kind != record.outcome.value and kind not in told
        return one_line(f"{kind}: {told}" if named else told or kind)
    if record.outcome is Status.INCORRECT:
        judged = record.corr.get("reason")
        if isinstance(judged, str) and judged:
            return one_line(judged)
        error = "" if record.absmax is None else f", by up to {record.absmax:.3g}"
        return f"differs from the reference{error}"
    return f"{record.outcome.value}, and its record does not say why"


def one_line(text: str, limit: int = 300) -> str:
    """Return ``text`` with every run of white space made one space, cut to ``limit`` characters."""
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1].rstrip()}…"
