"""``combine()``: called by a combine cell to turn records into charts, a table and a summary."""

from __future__ import annotations

import os
import posixpath
from collections import Counter
from pathlib import Path, PurePosixPath

import msgspec

from kernels_bench_tools.errors import KbtError, RecordError
from kernels_bench_tools.file_io import read_file, write_atomically, write_struct
from kernels_bench_tools.records.request import NEEDS_VARIABLE, Needs
from kernels_bench_tools.records.summary import Summary
from kernels_bench_tools.results.counted import Ended, cell_sources, committed_sources
from kernels_bench_tools.results.export import latency_csv, text_table
from kernels_bench_tools.results.metrics import chart_files
from kernels_bench_tools.results.summary import summarize
from kernels_bench_tools.text.names import title_from_name


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
        what = f"needs notebooks with the same name: {', '.join(same)}"
        raise KbtError("combine", what, "", "Rename them: a file's name is the implementation's id")

    def note(error: RecordError) -> None:
        print(f"Skipped: {error}")

    # The folder above the notebook's, or its own where there is none above.
    folders = PurePosixPath(needs.notebook).parts[:-1]
    operator = operator or "/".join(folders[:-1] or folders) or PurePosixPath(needs.notebook).stem
    cells = [
        Ended(
            notebook=need.notebook,
            cell=need.cell,
            front=need.front,
            status=need.status,
            reason=need.reason,
            files=sorted(Path(need.directory).rglob("*.jsonl")),
        )
        for need in needs.cells
    ]
    sources = cell_sources(cells, needs.device, note)
    sources += committed_sources(Path(needs.project), sorted(map(Path, needs.files)), note)
    summary = summarize(operator, title or title_from_name(operator.rpartition("/")[2]), sources, pairs=True)
    start = PurePosixPath(needs.notebook).parent
    # Also of those that were not measured yet: charts with links that appear later would be drawn again.
    linked = [(PurePosixPath(notebook).stem, notebook) for notebook in notebooks]
    linked += [(record.impl, source.notebook) for source in sources for record in source.records]
    pages = {
        implementation: posixpath.relpath(PurePosixPath(notebook).with_suffix(".html"), start)
        for implementation, notebook in linked
        if notebook
    }
    for chart in chart_files():
        before = Path(needs.previous, f"{chart}.svg")
        known = read_file(before) if needs.previous and before.is_file() else b""
        write_atomically(Path(f"{chart}.svg"), chart_svg(summary, chart, pages, known))
    write_atomically(Path("latency.csv"), latency_csv(summary).encode())
    write_struct(Path("summary.json"), summary)
    print(text_table(summary))
    drawn = ", ".join(f"{chart}.svg" for chart in chart_files())
    print(f"Wrote {drawn}, latency.csv and summary.json.")
    return summary


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
