"""``combine()``: called by a combine cell to turn records into charts, a table and a summary."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path, PurePosixPath

import msgspec

from kernels_bench_tools.errors import KbtError, RecordError
from kernels_bench_tools.file_io import write_atomically, write_struct
from kernels_bench_tools.records.build import NEEDS_VARIABLE, Need, Needs, operator_of
from kernels_bench_tools.records.codec import read_records
from kernels_bench_tools.records.committed import Owner, cell_owner, is_committed
from kernels_bench_tools.records.foreign import is_plain
from kernels_bench_tools.records.record import Record, Status
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
    notebooks = list(dict.fromkeys(one.notebook for one in needs.cells))
    names = Counter(PurePosixPath(notebook).stem for notebook in notebooks)
    if same := [notebook for notebook in notebooks if names[PurePosixPath(notebook).stem] > 1]:
        what = f"needs notebooks of the same name: {', '.join(same)}"
        raise KbtError("combine", what, "", "Rename them: a file's name is the implementation's id")
    operator = operator or _operator(needs.notebook)
    sources = cell_sources(needs, _print_skipped)
    folder = operator_of(needs.notebook)
    for file in sorted(needs.files):
        path, name = Path(file), _within(needs.project, file)
        owner = Owner(folder, path.stem, [path.parent.name]) if is_committed(path) else None
        sources.append(Source(records=_read([(path, name)], owner, _print_skipped)[0]))
    summary = summarize(operator, title or title_from_name(operator.rpartition("/")[2]), sources)
    pages = {record.impl: source.page for source in sources if source.page for record in source.records}
    for chart in chart_files():
        write_atomically(Path(f"{chart}.svg"), chart_svg(summary, chart, pages))
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


def _operator(notebook: str) -> str:
    """Return the folder above the notebook's, or its own where there is none above."""
    folders = PurePosixPath(notebook).parts[:-1]
    return "/".join(folders[:-1] or folders) or PurePosixPath(notebook).stem


def _print_skipped(error: RecordError) -> None:
    print(f"Skipped: {error}")


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
    records, unreadable = _read([(path, f"{need.notebook} {path.name}") for path in files], owner, on_problem)
    records = [
        msgspec.structs.replace(record, impl=own) if record.impl == notebook.stem else record
        for record in records
    ]
    for at, record in enumerate(records):
        if not record.schema:  # of another harness, which does not know the notebook
            origin = msgspec.structs.replace(record.provenance, notebook=need.notebook, cell=need.cell)
            records[at] = msgspec.structs.replace(record, provenance=origin)
    status, reason = need.status, need.reason
    if status is Status.OK and not records:
        status, reason = Status.INVALID, unreadable or "wrote no records"
    if status is not Status.OK and all(record.workload for record in records):
        implementation = records[0].impl if records else own
        records.append(whole_record(implementation, status, reason, needs.device))
    start = PurePosixPath(needs.notebook).parent
    page = posixpath.relpath(notebook.with_suffix(".html"), start)
    return Source(records=records, front=front, page=page, measured_now=True)


def _within(project: str, file: str) -> str:
    """Return the path within the project: messages are published, and this machine's paths mean nothing there."""
    path = Path(file)
    return path.relative_to(project).as_posix() if path.is_relative_to(project) else path.name


def _read(
    files: Iterable[tuple[Path, str]], owner: Owner | None, on_problem: Callable[[RecordError], None]
) -> tuple[list[Record], str]:
    """Return the records of files and their names, and what is wrong with the last line that is not a record."""
    records: list[Record] = []
    unreadable = ""
    for path, name in files:
        problems: list[RecordError] = []
        records += read_records(path, name, problems.append, owner)
        for error in problems:
            on_problem(error)
            unreadable = f"{path.name} {error.what}"
    return records, unreadable
