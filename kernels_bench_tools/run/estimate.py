"""How long the cells of a build are expected to take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import datetime
from statistics import fmean

from kernels_bench_tools.notebooks.graph import CellName, Node
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.records.codec import read_heads
from kernels_bench_tools.records.committed import record_file
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.run.cache.entry import Entry
from kernels_bench_tools.text import grouped

COMPILING_SECONDS, MEASURING_SECONDS, OTHER_SECONDS = 20.0, 6.0, 2.0
"""Of a process of a cell about which nothing is known, on two cores: it uses ``torch.compile``, imports torch, or draws charts."""
_START_SECONDS = 4.0
"""Of a measuring process before its first record."""


def expected_seconds(
    nodes: Sequence[Node],
    last: Callable[[CellName], Entry | None],
    project: Project,
    device: Device,
    processes: int,
) -> dict[CellName, float]:
    """Return how long each cell is expected to take: as last time, else as its committed records of this device took.

    Other cells count as the mean of the known ones of their kind: those that compile, measure, or do neither.
    """
    known: dict[CellName, float] = {}
    for node in nodes:
        entry = last(node.name)
        if entry and entry.result.exit_code is not None:
            known[node.name] = entry.result.seconds
        elif node.cell.measures and (seconds := _committed_seconds(node, project, device)) is not None:
            known[node.name] = seconds * processes
    alike = grouped((_seconds_of_kind(node), known[node.name]) for node in nodes if node.name in known)

    def guess(kind: float) -> float:
        return fmean(alike[kind]) if kind in alike else kind * (1 if kind == OTHER_SECONDS else processes)

    return {
        node.name: known[node.name] if node.name in known else guess(_seconds_of_kind(node)) for node in nodes
    }


def _seconds_of_kind(node: Node) -> float:
    """Return how long a process of an unknown cell of this kind takes."""
    if not node.cell.measures:
        return OTHER_SECONDS
    return COMPILING_SECONDS if "torch.compile" in node.cell.code else MEASURING_SECONDS


def _committed_seconds(node: Node, project: Project, device: Device) -> float | None:
    """Return how long a process with committed records of this device took; None if there are none."""
    notebook = node.notebook
    times: dict[str, list[datetime]] = {}
    path = record_file(project.root / notebook.operator, device.slug, notebook.implementation)
    for head in read_heads(path):
        try:
            times.setdefault(head.run, []).append(datetime.fromisoformat(head.ts))
        except ValueError:
            continue
    # The first record is written when its workload has ended, so that one interval is missing.
    found = [
        (max(some) - min(some)).total_seconds() * len(some) / (len(some) - 1)
        for some in times.values()
        if some[1:]
    ]
    return _START_SECONDS + fmean(found) if found else None
