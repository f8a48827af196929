"""``combine()``: called by a combine cell to turn records into charts, a table and a summary."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Callable
from pathlib import Path, PurePosixPath

import msgspec

from kernels_bench_tools.errors import KbtError, RecordError
from kernels_bench_tools.file_io import write_atomically, write_struct
from kernels_bench_tools.records.codec import read_records
from kernels_bench_tools.records.committed import Owner, cell_owner, is_committed
from kernels_bench_tools.records.foreign import is_plain
from kernels_bench_tools.records.notebook import operator_of
from kernels_bench_tools.records.record import Record, Status
from kernels_bench_tools.records.request import NEEDS_VARIABLE, Need, Needs
from kernels_bench_tools.records.summary import Summary
from kernels_bench_tools.results.export import latency_csv, text_table
from kernels_bench_tools.results.metrics import chart_files
from kernels_bench_tools.results.sources import Source, whole_record
from kernels_bench_tools.results.summary import summarize
from kernels_bench_tools.text import title_from_name


def combine(operator: str = "", *, title: str = "") -> Summary:
    """Summarize the records of the cells and files that this cell needs, which ``kbt`` must have started.

    Writes ``latency.svg`` and the other charts, ``latency.csv`` and ``summary.json`` into the working directory, and
    prints the tables. For a file that cannot be read a line is printed; the others are summarized. ``operator`` is by
    default the path of the folder above this notebook's folder, and ``title`` is made from it.
    """
    # Loads matplotlib, which the cell of a suite does not have.
    from kernels_bench_tools.chart.figure import chart_svg

    needs = read_needs("combine")
    notebooks = list(dict.fromkeys(need.notebook for need in needs.cells))
    names = Counter(PurePosixPath(notebook).stem for notebook in notebooks)
    if same := [notebook for notebook in notebooks if names[PurePosixPath(notebook).stem] > 1]:
        what = f"needs notebooks of the same name: {', '.join(same)}"
        raise KbtError("combine", what, "", "Rename them: a file's name is the implementation's id")

    def note(error: RecordError) -> None:
        print(f"Skipped: {error}")

    # The folder above the notebook's, or its own where there is none above.
    folders = PurePosixPath(needs.notebook).parts[:-1]
    operator = operator or "/".join(folders[:-1] or folders) or PurePosixPath(needs.notebook).stem
    sources = cell_sources(needs, note)
    folder = operator_of(needs.notebook)
    for file in sorted(needs.files):
        # Messages are published, and this machine's paths mean nothing there.
        path, project = Path(file), needs.project
        name = path.relative_to(project).as_posix() if path.is_relative_to(project) else path.name
        owner = Owner(folder, path.stem, [path.parent.name]) if is_committed(path) else None
        sources.append(Source(records=read_records(path, name, note, owner)))
    summary = summarize(operator, title or title_from_name(operator.rpartition("/")[2]), sources, pairs=True)
    pages = {record.impl: source.page for source in sources if source.page for record in source.records}
    for chart in chart_files():
        before = Path(needs.previous, f"{chart}.svg")
        known = before.read_bytes() if needs.previous and before.is_file() else b""
        write_atomically(Path(f"{chart}.svg"), chart_svg(summary, chart, pages, known))
    write_atomically(Path("latency.csv"), latency_csv(summary).encode())
    write_struct(Path("summary.json"), summary)
    print(text_table(summary))
    drawn = ", ".join(f"{chart}.svg" for chart in chart_files())
    print(f"Wrote {drawn}, latency.csv and summary.json.")
    return summary


def cell_sources(needs: Needs, on_problem: Callable[[RecordError], None]) -> list[Source]:
    """Return the records of the needed cells, a source for each; ``on_problem`` is called for lines that are none."""
    cells = Counter(need.notebook for need in needs.cells)
    return [_cell_source(need, needs, on_problem, shared=cells[need.notebook] > 1) for need in needs.cells]


def read_needs(caller: str) -> Needs:
    try:
        return Needs.load()
    except KeyError:
        raise KbtError(
            caller,
            f"{NEEDS_VARIABLE} is not set",
            "A cell that kbt started",
            "Run it with `kbt build` or `kbt run`",
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise KbtError(
            os.environ[NEEDS_VARIABLE], f"cannot be read: {error}", "The file that kbt writes for this cell"
        ) from error


def _cell_source(
    need: Need, needs: Needs, on_problem: Callable[[RecordError], None], *, shared: bool
) -> Source:
    """Return the records of a cell; without readable ones, a record of how it ended."""
    notebook = PurePosixPath(need.notebook)
    # Cells of one notebook cannot all have its title and id.
    front = msgspec.structs.replace(need.front, title="") if shared else need.front
    own = f"{notebook.stem}_{need.cell}" if shared else notebook.stem
    files = [path for path in sorted(Path(need.directory).glob("*.jsonl")) if not is_plain(path)]
    owner = cell_owner(need.notebook, needs.device)
    records: list[Record] = []
    unreadable = ""
    for path in files:
        problems: list[RecordError] = []
        records += read_records(path, f"{need.notebook} {path.name}", problems.append, owner)
        for error in problems:
            on_problem(error)
            unreadable = f"{path.name} {error.what}"
    for at, record in enumerate(records):
        impl, origin = own if record.impl == notebook.stem else record.impl, record.provenance
        if not record.schema:  # of another harness, which does not know the notebook
            origin = msgspec.structs.replace(origin, notebook=need.notebook, cell=need.cell)
        records[at] = msgspec.structs.replace(record, impl=impl, provenance=origin)
    status, reason = need.status, need.reason
    if status is Status.OK and not records:
        status, reason = Status.INVALID, unreadable or "wrote no records"
    if status is not Status.OK and all(record.workload for record in records):
        implementation = records[0].impl if records else own
        records.append(whole_record(implementation, status, reason, needs.device))
    start = PurePosixPath(needs.notebook).parent
    page = posixpath.relpath(notebook.with_suffix(".html"), start)
    return Source(records=records, front=front, page=page, measured_now=True)
