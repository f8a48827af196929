"""The graph of cells: every ``needs=`` resolved, and one order of execution."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from kernels_bench_tools.errors import NotebookError
from kernels_bench_tools.file_io import real_path
from kernels_bench_tools.notebooks.cell import Cell, is_reference
from kernels_bench_tools.notebooks.document import Notebook
from kernels_bench_tools.notebooks.project import Project, is_pattern, join_path, matches
from kernels_bench_tools.text.names import is_unicode
from kernels_bench_tools.text.words import did_you_mean


class CellName(NamedTuple):
    """The name of a cell, written ``layer_norm/impls/mine.md:benchmark``."""

    notebook: str
    cell: str

    def __str__(self) -> str:
        return f"{self.notebook}:{self.cell}"


@dataclass
class Node:
    """A cell with its needs resolved, each list in the order of ``needs=``."""

    name: CellName
    notebook: Notebook
    cell: Cell
    local: list[CellName] = field(default_factory=list)
    """Needed cells of the same notebook."""
    foreign: list[CellName] = field(default_factory=list)
    """Needed cells of other notebooks."""
    whole: dict[str, list[CellName]] = field(default_factory=dict)
    """Notebooks that are needed as a whole, with their cells, which are also in ``foreign``."""
    files: list[Path] = field(default_factory=list)
    """Data files, sorted."""

    @property
    def needs(self) -> list[CellName]:
        return [*self.local, *self.foreign]


@dataclass
class Graph:
    """All cells that are not commented out, in execution order."""

    nodes: dict[CellName, Node]
    problems: list[tuple[str, NotebookError]] = field(default_factory=list)
    """Needs that cannot be resolved, each with the notebook that has it."""

    def closure(self, names: Iterable[CellName]) -> list[CellName]:
        """Return these cells and all that they need, in execution order."""
        wanted: set[CellName] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in wanted:
                wanted.add(name)
                waiting.extend(self.nodes[name].needs)
        return [name for name in self.nodes if name in wanted]


def unknown_cell_hint(cell: str, known: Sequence[str]) -> str:
    return did_you_mean(cell, known, f"Its cells are {', '.join(known)}" if known else "It has no cells")


def build_graph(project: Project, notebooks: Mapping[str, Notebook]) -> Graph:
    """Return the graph over the cells of ``notebooks``, keyed by their names.

    Cells that are ready at the same time are ordered by notebook and position, so the order is deterministic.
    """
    nodes: dict[CellName, Node] = {}
    for name in sorted(notebooks):
        for cell in notebooks[name].active_cells:
            key = CellName(name, cell.id)
            nodes.setdefault(key, Node(key, notebooks[name], cell))
    graph = Graph(nodes)
    for node in nodes.values():
        graph.problems += [(node.name.notebook, error) for error in _resolve(project, notebooks, nodes, node)]
    graph.nodes = _sorted(graph)
    return graph


def _sorted(graph: Graph) -> dict[CellName, Node]:
    position = {name: number for number, name in enumerate(graph.nodes)}
    needs = {name: list(node.needs) for name, node in graph.nodes.items()}
    sorter = TopologicalSorter(needs)
    while True:
        try:
            sorter.prepare()
            break
        except CycleError as error:
            # Remove one edge of the cycle, so that further cycles are found, too.
            cycle: list[CellName] = error.args[1]
            node = graph.nodes[cycle[-1]]
            where = f"{node.name.notebook}:{node.cell.file_line}"
            what = "cells depend on each other in a cycle: " + " needs ".join(map(str, reversed(cycle)))
            problem = NotebookError(where, what, "", "Remove one of these needs")
            graph.problems.append((node.name.notebook, problem))
            needs[cycle[1]].remove(cycle[0])
            sorter = TopologicalSorter(needs)
    order: list[CellName] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=position.__getitem__)
        order += ready
        sorter.done(*ready)
    return {name: graph.nodes[name] for name in order}


def _resolve(
    project: Project, notebooks: Mapping[str, Notebook], nodes: Mapping[CellName, Node], node: Node
) -> Iterator[NotebookError]:
    """Fill the needs of a cell; yield an error for each that cannot be resolved."""
    own = node.name.notebook
    local, foreign, files = dict[CellName, None](), dict[CellName, None](), set[Path]()

    def error(what: str, expected: str = "", remedy: str = "") -> NotebookError:
        return NotebookError(f"{own}:{node.cell.file_line}", f"needs={need} {what}", expected, remedy)

    def cells_of(notebook: str) -> list[CellName]:
        return [CellName(notebook, cell.id) for cell in notebooks[notebook].active_cells]

    def add(notebook: str, cell: str) -> None:
        """Add one cell of a notebook, if it has it; all without ``cell``."""
        cells = cells_of(notebook)
        if not cell:
            node.whole[notebook] = cells
        foreign.update(dict.fromkeys(name for name in cells if not cell or name.cell == cell))

    for need in node.cell.needs:
        if not is_reference(need):
            if CellName(own, need) in nodes:
                local[CellName(own, need)] = None
                continue
            commented = any(cell.id == need for cell in node.notebook.cells if cell.commented)
            what = "is a commented-out cell" if commented else "names no cell of this notebook"
            hint = "Write ./ before the name of a file, and ./path.md:cell for a cell of another notebook"
            yield error(what, "", did_you_mean(need, [name.cell for name in cells_of(own)], hint))
            continue
        path, _, cell = need.partition(":")
        folder = node.notebook.folder
        name = join_path(glob.escape(folder) if is_pattern(path) else folder, path)
        if name is None:
            yield error("is outside the project", "A path inside it, relative to the notebook's folder")
        elif not path.endswith(".md"):
            matching = project.root.glob(name) if is_pattern(need) else [project.root / name]
            data = {file for file in matching if _is_data(project, file)}
            files |= data
            if not data and not is_pattern(need):
                hint = "Correct the path, or use a glob for files that may not exist"
                yield error("names no file", "A data file, or a notebook ending in .md", hint)
        elif is_pattern(path):
            for notebook in sorted(notebooks):
                # Other cells that match are skipped without an error.
                if notebook != own and matches(notebook, name):
                    add(notebook, cell)
        elif name == own:
            yield error("is this notebook itself", "", "Write only the id of the cell")
        elif name not in notebooks:
            hint = did_you_mean(name, notebooks, "`kbt list` shows the notebooks")
            yield error(f"names no notebook of this project ({name})", "", hint)
        elif cell and CellName(name, cell) not in nodes:
            hint = unknown_cell_hint(cell, [known.cell for known in cells_of(name)])
            yield error(f"names no cell of {name}", "", hint)
        else:
            add(name, cell)
    node.local, node.foreign, node.files = list(local), list(foreign), sorted(files)


def _is_data(project: Project, path: Path) -> bool:
    hidden = any(part.startswith(".") for part in path.relative_to(project.root).parts)
    inside = real_path(path).is_relative_to(project.root.resolve())
    is_file = os.path.isfile(path)  # noqa: PTH113 - Path.is_file() raises an error for a name that is too long
    return is_file and not hidden and inside and is_unicode(str(path))
