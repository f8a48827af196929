"""Everything that is wrong with a project's notebooks, found before anything runs."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kernels_bench_tools.errors import NotebookError
from kernels_bench_tools.notebooks.cell import Cell
from kernels_bench_tools.notebooks.document import Notebook, survey_notebook
from kernels_bench_tools.notebooks.graph import Graph, build_graph
from kernels_bench_tools.notebooks.header import read_header, uv_settings
from kernels_bench_tools.notebooks.kernel_calls import find_kernel_calls
from kernels_bench_tools.notebooks.project import Project


class NotebooksError(NotebookError):
    """Several things are wrong with notebooks; each is in ``problems``, and all are in the message."""

    def __init__(self, problems: list[NotebookError]) -> None:
        self.problems = problems
        first = problems[0]
        super().__init__(first.where, first.what, first.expected, first.remedy)

    def __str__(self) -> str:
        """Return one line for each problem."""
        return "\n".join(str(problem) for problem in self.problems)


@dataclass(frozen=True)
class Survey:
    """All notebooks of a project, as far as they can be read, with what is wrong with them."""

    notebooks: dict[str, Notebook]
    graph: Graph

    def problems(self, names: Iterable[str] | None = None) -> list[NotebookError]:
        """Return what is wrong with these notebooks, or with all; by notebook, and then as found."""
        wanted = set(self.notebooks if names is None else names)
        found = []
        for name in sorted(wanted):
            found += self.notebooks[name].problems
            found += [error for notebook, error in self.graph.problems if notebook == name]
        return found

    def complain(self, names: Iterable[str] | None = None) -> None:
        """Raise what is wrong with these notebooks, or with all.

        Raises:
            NotebooksError: With every problem.
        """
        problems = self.problems(names)
        if problems:
            raise NotebooksError(problems)


def survey_project(project: Project) -> Survey:
    """Read every notebook of the project, and resolve every need."""
    read = (survey_notebook(project, path) for path in project.notebook_paths())
    notebooks = {notebook.name: notebook for notebook in read}
    graph = build_graph(project, notebooks)
    graph.problems += _script_clashes(notebooks.values())
    return Survey(notebooks, graph)


def _script_clashes(notebooks: Iterable[Notebook]) -> list[tuple[str, NotebookError]]:
    """Return the cells whose scripts would overwrite one another: ``a__b.md:c`` and ``a.md:b__c``."""
    owners: dict[Path, str] = {}
    clashes = []
    for notebook in notebooks:
        for cell in (cell for cell in notebook.cells if not cell.commented):
            owner = owners.setdefault(notebook.script_path(cell), notebook.name)
            if owner != notebook.name:
                what = f"the id {cell.id!r} makes the same file name as a cell of {owner}"
                where = f"{notebook.name}:{cell.file_line}"
                clashes.append((notebook.name, NotebookError(where, what, "", "Give it another `id=`")))
    return clashes


def check_project(project: Project) -> list[NotebookError]:
    """Return everything that is wrong with the project's notebooks, each with file and line."""
    return survey_project(project).problems()


def check_advice(project: Project) -> list[str]:
    """Return what is allowed but will be regretted, such as cells without a date."""
    advice = []
    for notebook in survey_project(project).notebooks.values():
        for line in notebook.nested:
            what = "a python fence in a list or a quotation is an example, not a cell."
            advice.append(f"{notebook.name}:{line}: {what} Move it to the margin if it should run.")
        for cell in notebook.cells:
            if not cell.commented and _is_undated(cell):
                what = "no `[tool.uv] exclude-newer`: next year other packages would be installed."
                hint = 'Add `exclude-newer = "YYYY-MM-DDT00:00:00Z"` to its header.'
                advice.append(f"{notebook.name}:{cell.file_line}: cell {cell.id!r} has {what} {hint}")
        advice += [
            f"{call.where}: get_kernel names no version: another kernel may come tomorrow. Add @1, say."
            for call in find_kernel_calls(notebook)
            if not call.is_pinned
        ]
    return advice


def _is_undated(cell: Cell) -> bool:
    """Return whether a cell installs packages without saying as of when."""
    try:
        header = read_header(cell.code)
    except ValueError:
        return False
    if header is None:
        return bool(cell.deps)
    return bool(header.get("dependencies")) and "exclude-newer" not in uv_settings(header)
