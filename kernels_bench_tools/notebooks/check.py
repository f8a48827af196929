"""Checks of a project's notebooks before anything runs: errors, and advice."""

from __future__ import annotations

from collections.abc import Iterator

from kernels_bench_tools.errors import NotebookError
from kernels_bench_tools.notebooks.document import Notebook
from kernels_bench_tools.notebooks.header import has_undated_packages
from kernels_bench_tools.notebooks.kernel_calls import find_kernel_calls
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.notebooks.survey import survey_project


def check_project(project: Project) -> list[NotebookError]:
    """Return every error in the project's notebooks, each with file and line."""
    return survey_project(project).problems()


def check_advice(project: Project) -> list[str]:
    """Return a line for everything that is allowed but not recommended, such as cells without a date."""
    notebooks = survey_project(project).notebooks.values()
    return [line for notebook in notebooks for line in _advice(notebook)]


def _advice(notebook: Notebook) -> Iterator[str]:
    for line in notebook.nested:
        what = "a python fence in a list or a quotation is an example, not a cell."
        yield f"{notebook.name}:{line}: {what} Remove its indentation if it should run."
    for cell in notebook.active_cells:
        if has_undated_packages(cell.code, cell.deps):
            what = "has no `[tool.uv] exclude-newer`: later builds may install other packages."
            hint = 'Add `exclude-newer = "YYYY-MM-DDT00:00:00Z"` to its header.'
            yield f"{notebook.name}:{cell.file_line}: cell {cell.id!r} {what} {hint}"
    for call in find_kernel_calls(notebook):
        if not call.is_pinned:
            yield f"{call.where}: get_kernel has no version: the kernel may change. Add one, such as @1."
