"""The whole report as data, for programs that would read the pages."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from kernels_bench_tools.summaries import Summary

SCHEMA = 1


class Report(msgspec.Struct, kw_only=True):
    """``report.json``: every operator's summary."""

    schema: int = SCHEMA
    title: str
    repository: str
    operators: list[Summary]


def report_json(title: str, repository: str, summaries: Iterable[Summary]) -> bytes:
    """Return the report as JSON; the same summaries give the same bytes."""
    report = Report(title=title, repository=repository, operators=list(summaries))
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"
