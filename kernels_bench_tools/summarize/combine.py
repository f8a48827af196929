"""``combine()``: what a combine cell calls to turn records into charts, a table and a summary."""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path, PurePosixPath

import msgspec

from kernels_bench_tools.errors import RecordError
from kernels_bench_tools.file_io import write_struct
from kernels_bench_tools.schema.build import Need, Needs
from kernels_bench_tools.schema.record import Record, Status
from kernels_bench_tools.schema.record_io import read_records
from kernels_bench_tools.schema.summary import Summary
from kernels_bench_tools.summarize.chart.figure import chart_svg
from kernels_bench_tools.summarize.chart.spec import CHARTS
from kernels_bench_tools.summarize.export import latency_csv
from kernels_bench_tools.summarize.needs import read_needs
from kernels_bench_tools.summarize.sources import Source, attempts, whole_record
from kernels_bench_tools.summarize.summary import summarize
from kernels_bench_tools.summarize.table import render_table
from kernels_bench_tools.text import title_from_name


def combine(operator: str = "", *, title: str = "") -> Summary:
    """Summarize the records of the cells and files that this cell needs.

    Writes a chart for each of ``CHARTS``, such as ``latency.svg``, and ``latency.csv`` and ``summary.json``
    into the working directory, and prints the tables. A file that cannot be read is told in a line, and the others are summarized.

    Args:
        operator: Its name; the path of the folder above this notebook's folder if empty.
        title: What charts call it; made from the name if empty.

    Raises:
        KbtError: The cell was not started by ``kbt``.
    """
    needs = read_needs("combine")
    operator = operator or _operator(needs.notebook)
    sources = [*_cell_sources(needs), *_file_sources(needs)]
    summary = summarize(operator, title or title_from_name(operator.rpartition("/")[2]), sources)
    for chart in CHARTS:
        Path(f"{chart.name}.svg").write_bytes(chart_svg(summary, chart, _pages(sources)))
    Path("latency.csv").write_text(latency_csv(summary, attempts(sources)), encoding="utf-8", newline="")
    write_struct(Path("summary.json"), summary)
    print(render_table(summary))
    drawn = ", ".join(f"{chart.name}.svg" for chart in CHARTS)
    print(f"Wrote {drawn}, latency.csv and summary.json.")
    return summary


def _operator(notebook: str) -> str:
    """Return the folder above the notebook's, or its own where there is none above."""
    folders = PurePosixPath(notebook).parts[:-1]
    return "/".join(folders[:-1] or folders) or PurePosixPath(notebook).stem


def _cell_sources(needs: Needs) -> list[Source]:
    """Return a source for each cell; one that left nothing readable still speaks, by how it ended."""
    cells = Counter(need.notebook for need in needs.cells)
    return [_cell_source(need, needs, shared=cells[need.notebook] > 1) for need in needs.cells]


def _cell_source(need: Need, needs: Needs, *, shared: bool) -> Source:
    notebook = PurePosixPath(need.notebook)
    # The cells of one notebook would all be called after it, unless they name themselves.
    front = msgspec.structs.replace(need.front, title="") if shared else need.front
    own = f"{notebook.stem}_{need.cell}" if shared else notebook.stem
    files = sorted(Path(need.directory).glob("*.jsonl"))
    records, unreadable = _read([(path, f"{need.notebook} {path.name}") for path in files])
    records = [
        msgspec.structs.replace(record, impl=own) if record.impl == notebook.stem else record
        for record in records
    ]
    status, reason = need.status, need.reason
    if status is Status.OK and not records:
        status, reason = Status.INVALID, unreadable or "left no records"
    if status is not Status.OK and all(record.workload for record in records):
        implementation = records[0].impl if records else own
        records.append(whole_record(implementation, status, reason, needs.device))
    start = PurePosixPath(needs.notebook).parent
    page = posixpath.relpath(notebook.with_suffix(".html"), start)
    return Source(records=records, front=front, page=page, measured_now=True)


def _file_sources(needs: Needs) -> list[Source]:
    named = [(Path(file), _within(needs.project, file)) for file in sorted(needs.files)]
    return [Source(records=_read([pair])[0]) for pair in named]


def _within(project: str, file: str) -> str:
    """Return the path within the project: messages end up on pages, where no one knows this machine."""
    path = Path(file)
    return path.relative_to(project).as_posix() if path.is_relative_to(project) else path.name


def _read(files: Iterable[tuple[Path, str]]) -> tuple[list[Record], str]:
    """Return the records of files and their names, and what is wrong with the last unreadable one."""
    records: list[Record] = []
    unreadable = ""
    for path, name in files:
        try:
            records += read_records(path, name)
        except RecordError as error:
            print(f"Skipped: {error}")
            unreadable = f"{path.name} {error.what}"
    return records, unreadable


def _pages(sources: Iterable[Source]) -> Mapping[str, str]:
    return {record.impl: source.page for source in sources if source.page for record in source.records}
