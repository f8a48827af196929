"""``kbt list``: the operators, their implementations, and where each has been measured."""

from __future__ import annotations

from pathlib import Path

import msgspec
from rich.console import Console
from rich.table import Table

from kernels_bench_tools.cli.options import Json
from kernels_bench_tools.naming import title_from_name
from kernels_bench_tools.notebooks.document import Notebook, read_notebook
from kernels_bench_tools.notebooks.project import find_project, operators


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


def list_notebooks(json: Json = False) -> None:
    """List the operators with their implementations, then the other notebooks."""
    project = find_project(Path.cwd())
    listed = [
        _listed(operator, read_notebook(project, path))
        for operator, paths in operators(project).items()
        for path in paths
    ]
    shown = {entry.notebook for entry in listed}
    others = [name for path in project.notebook_paths() if (name := project.relative(path)) not in shown]
    if json:
        print(msgspec.json.encode({"implementations": listed, "notebooks": others}).decode())
        return
    _print(listed, others)


def _listed(operator: str, notebook: Notebook) -> ListedImplementation:
    records = notebook.path.parents[1] / "results" / "records"
    stem = notebook.path.stem
    return ListedImplementation(
        operator=operator,
        implementation=stem,
        title=notebook.front.title or title_from_name(stem),
        family=notebook.front.family,
        baseline=notebook.front.baseline,
        requires=notebook.front.requires,
        recorded=sorted(path.parent.name for path in records.glob(f"*/{stem}.jsonl")),
        notebook=notebook.name,
    )


def _print(listed: list[ListedImplementation], others: list[str]) -> None:
    table = Table(box=None, pad_edge=False, header_style="bold")
    for column in ("operator", "implementation", "family", "needs", "recorded on"):
        table.add_column(column, overflow="fold")
    for entry in listed:
        family = f"{entry.family} (baseline)" if entry.baseline else entry.family
        needs = " or ".join(entry.requires) or "any device"
        table.add_row(entry.operator, entry.implementation, family, needs, ", ".join(entry.recorded) or "-")
    console = Console(soft_wrap=False)
    if not console.is_terminal:
        # A pipe has no width; a table must not be folded for one it was not asked to fit.
        console = Console(width=200)
    console.print(table)
    count = len({entry.operator for entry in listed})
    print(f"\n{count} operator{'s' if count != 1 else ''}, {len(listed)} implementations")
    if others:
        print("other notebooks: " + ", ".join(others))
