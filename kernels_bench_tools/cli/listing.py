"""``kbt list``: the operators, their implementations, and where each has been measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from kernels_bench_tools.cli.coverage import (
    EARLIER_CODE,
    NOT_TRIED,
    Coverage,
    coverage_tables,
    find_coverage,
)
from kernels_bench_tools.cli.options import Json, Paths
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.notebooks.document import Notebook, read_notebook
from kernels_bench_tools.notebooks.project import find_project, operators
from kernels_bench_tools.text import did_you_mean, title_from_name


class ListedImplementation(msgspec.Struct, kw_only=True):
    """An implementation as ``kbt list`` shows it."""

    operator: str
    implementation: str
    title: str
    family: str
    baseline: bool
    requires: list[str]
    recorded: list[str]
    """Slugs of the devices that have committed records of it."""
    notebook: str


def list_notebooks(
    paths: Paths = None,
    records: Annotated[
        bool,
        typer.Option(
            "--records",
            help="List what the committed records cover: each workload set by device and mode, "
            "and whether its code has changed since.",
        ),
    ] = False,
    device: Annotated[
        str, typer.Option("--device", metavar="SLUG", help="With --records: of this device only.")
    ] = "",
    json: Json = False,
) -> None:
    """List the operators with their implementations, then the other notebooks."""
    project = find_project(Path.cwd())
    wanted = set(project.find_notebooks(paths or []))
    notebooks = [
        read_notebook(project, path)
        for known in operators(project).values()
        for path in known
        if path in wanted
    ]
    if records:
        _show_coverage(_on_device(find_coverage(notebooks), device), json)
        return
    others = sorted(project.relative(path) for path in wanted - {notebook.path for notebook in notebooks})
    listed = [_listed(notebook) for notebook in notebooks]
    if json:
        print(msgspec.json.encode({"implementations": listed, "notebooks": others}).decode())
        return
    _print(listed, others)


def _listed(notebook: Notebook) -> ListedImplementation:
    records = notebook.path.parents[1] / "results" / "records"
    stem = notebook.implementation
    return ListedImplementation(
        operator=notebook.operator,
        implementation=stem,
        title=notebook.front.title or title_from_name(stem),
        family=notebook.front.family,
        baseline=notebook.front.baseline,
        requires=notebook.front.requires,
        recorded=sorted(path.parent.name for path in records.glob(f"*/{stem}.jsonl")),
        notebook=notebook.name,
    )


def _on_device(rows: list[Coverage], device: str) -> list[Coverage]:
    """Return the rows of one device, all if ``device`` is empty."""
    known = sorted({row.device for row in rows})
    if device and device not in known:
        hint = did_you_mean(device, known, f"Those with records are {', '.join(known)}" if known else "")
        raise ProjectError(f"--device {device}", "has no records here", "The slug of a device", hint)
    return [row for row in rows if device in {"", row.device}]


def _show_coverage(rows: list[Coverage], json: bool) -> None:
    if json:
        print(msgspec.json.encode({"records": rows}).decode())
        return
    console = _console()
    for table in coverage_tables(rows):
        console.print(table, "")
    counts = (
        (len(rows), "workload sets"),
        (sum(row.earlier_code for row in rows), EARLIER_CODE),
        (sum(not row.rows for row in rows), NOT_TRIED),
    )
    print(", ".join(f"{count} {what}" for count, what in counts))


def _print(listed: list[ListedImplementation], others: list[str]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("operator", "implementation", "family", "needs", "recorded on"):
        table.add_column(column, overflow="fold")
    for entry in listed:
        family = f"{entry.family} (baseline)" if entry.baseline else entry.family
        needs = " or ".join(entry.requires) or "any device"
        table.add_row(entry.operator, entry.implementation, family, needs, ", ".join(entry.recorded) or "-")
    _console().print(table)
    count = len({entry.operator for entry in listed})
    print(f"\n{count} operator{'s' if count != 1 else ''}, {len(listed)} implementations")
    if others:
        print("other notebooks: " + ", ".join(others))


def _console() -> Console:
    console = Console(soft_wrap=False)
    # A pipe has no width; a table must not be folded for one it was not asked to fit.
    return console if console.is_terminal else Console(width=200)
