"""Summaries of operators without one: their combine cells have not run yet, failed, or draw figures only."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from kernels_bench_tools.records.build import (
    RESULTS,
    BuildRun,
    FrontMatter,
    Need,
    Needs,
    NotebookRun,
    is_implementation,
    operator_of,
)
from kernels_bench_tools.records.codec import ignore, read_committed
from kernels_bench_tools.records.committed import record_files
from kernels_bench_tools.records.foreign import is_plain
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import Summary
from kernels_bench_tools.text import grouped, title_from_name


def missing_summaries(root: Path, build: BuildRun) -> dict[str, Summary]:
    """Return a summary, by folder, of each operator of a project without one whose cells or committed files have records."""
    by_operator = grouped((operator_of(notebook.path), notebook) for notebook in build.notebooks)
    by_operator.pop("", None)
    found = {}
    for operator, notebooks in by_operator.items():
        if not any("summary.json" in cell.artifacts for notebook in notebooks for cell in notebook.cells):
            needs = Needs(project=str(root), notebook=f"{operator}/{RESULTS}/", device=build.device)
            measuring = [notebook for notebook in notebooks if is_implementation(notebook.path)]
            summary = _summary(root, operator, needs, measuring)
            if summary and summary.devices:
                found[operator] = summary
    return found


def _summary(root: Path, operator: str, needs: Needs, notebooks: Sequence[NotebookRun]) -> Summary | None:
    needs.cells = [need for notebook in notebooks for need in _needs(root, notebook)]
    committed = record_files(root / operator)
    if not needs.cells and not committed:
        return None
    # Loads numpy, which other builds do not need.
    from kernels_bench_tools.results.combine import cell_sources
    from kernels_bench_tools.results.sources import Source
    from kernels_bench_tools.results.summary import summarize

    fronts: Mapping[str, FrontMatter] = {Path(notebook.path).stem: notebook.front for notebook in notebooks}
    sources = [
        Source(records=read_committed(path, operator, "", ignore), front=fronts.get(path.stem))
        for path in committed
    ]
    title = title_from_name(operator.rpartition("/")[2])
    return summarize(operator, title, [*cell_sources(needs, ignore), *sources])


def _needs(root: Path, notebook: NotebookRun) -> Iterator[Need]:
    for cell in notebook.cells:
        path = next((path for name, path in cell.artifacts.items() if name.endswith(".jsonl")), "")
        if path and cell.status is not None and not is_plain(root / path):
            yield Need(
                notebook=notebook.path,
                cell=cell.id,
                front=notebook.front,
                # How its process failed is among the records.
                status=Status.OK if cell.workloads else cell.status,
                reason="" if cell.workloads else cell.reason,
                directory=str((root / path).parent),
            )
