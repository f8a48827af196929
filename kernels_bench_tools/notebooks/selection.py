"""Which cells a command is about."""

from __future__ import annotations

from collections.abc import Sequence

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.notebooks.check import Survey
from kernels_bench_tools.notebooks.graph import CellName
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.text import did_you_mean


def select_notebooks(project: Project, survey: Survey, targets: Sequence[str]) -> list[str]:
    """Return the names of the notebooks that ``targets`` are about; of all for no targets."""
    if not targets:
        return sorted(survey.notebooks)
    paths = project.find_notebooks([_split(target)[0] for target in targets])
    return [project.relative(path) for path in paths]


def select_cells(project: Project, survey: Survey, targets: Sequence[str]) -> list[CellName]:
    """Return the cells that ``targets`` name; all for no targets.

    Args:
        project: The project.
        survey: Its notebooks.
        targets: What :meth:`Project.find_notebooks` accepts, with ``:CELL`` for one cell of it.

    Raises:
        ProjectError: A target names nothing; the nearest name is offered.
    """
    if not targets:
        return list(survey.graph.nodes)
    wanted: set[CellName] = set()
    for target in targets:
        notebooks, cell = _split(target)
        names = {project.relative(path) for path in project.find_notebooks([notebooks])}
        cells = [name for name in survey.graph.nodes if name.notebook in names]
        found = [name for name in cells if not cell or name.cell == cell]
        if cell and not found:
            known = [name.cell for name in cells]
            hint = did_you_mean(
                cell, known, f"Its cells are {', '.join(known)}" if known else "It has no cells"
            )
            raise ProjectError(target, f"there is no cell {cell!r}", "", hint)
        wanted.update(found)
    return [name for name in survey.graph.nodes if name in wanted]


def _split(target: str) -> tuple[str, str]:
    notebooks, colon, cell = target.rpartition(":")
    return (notebooks, cell) if colon else (target, "")
