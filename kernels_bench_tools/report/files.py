"""The report as data: ``report.json``, and all records of an operator."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import msgspec

from kernels_bench_tools.report.artifacts import notebook_artifacts
from kernels_bench_tools.report.operators import OperatorReport
from kernels_bench_tools.report.paths import SitePaths
from kernels_bench_tools.report.provenance import latest
from kernels_bench_tools.schema.build import ProjectInfo
from kernels_bench_tools.schema.record_io import read_heads
from kernels_bench_tools.schema.summary import Report


def report_json(project: ProjectInfo, operators: Iterable[OperatorReport]) -> bytes:
    """Return the report as JSON; the same summaries give the same bytes."""
    summaries = [operator.summary for operator in operators if operator.summary]
    report = Report(
        title=project.title,
        repository=project.repository,
        measured=latest(view for summary in summaries for view in summary.devices),
        operators=summaries,
    )
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def joined_records(root: Path, paths: SitePaths, operator: OperatorReport) -> bytes:
    """Return all records of an operator's summary, as JSON lines.

    Records of this build replace the committed ones of the same implementation and device, as in the summary.
    """
    own = [
        artifact.file
        for notebook in operator.implementations
        for artifact in notebook_artifacts(root, paths, notebook)
        if artifact.suffix == "jsonl" and artifact.exists
    ]
    now = {(head.impl, head.device.slug) for file in own for head in read_heads(file) if head.device}
    committed = [file for file in operator.record_files if (file.stem, file.parent.name) not in now]
    return b"".join(_ended(file.read_bytes()) for file in [*own, *committed])


def _ended(data: bytes) -> bytes:
    return data if not data or data.endswith(b"\n") else data + b"\n"
