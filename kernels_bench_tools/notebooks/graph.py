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
from kernels_bench_tools.text import did_you_mean, is_unicode


class CellName(NamedTuple):
    """The name of a cell, written ``layer_norm/impls/mine.md:benchmark``."""

    notebook: str
    cell: str

    def __str__(self) -> str:
        """Return the name as in ``needs=`` and on the command line."""
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
        """All needed cells."""
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
    """Return a hint for the id of a cell that a notebook does not have."""
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
        resolver = _Resolver(project, notebooks, graph, node)
        graph.problems += [(node.name.notebook, error) for error in resolver.resolve()]
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
            what = "cells need one another in a circle: " + " needs ".join(map(str, reversed(cycle)))
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


@dataclass
class _Resolver:
    """Resolves the ``needs=`` of one cell."""

    project: Project
    notebooks: Mapping[str, Notebook]
    graph: Graph
    node: Node

    def resolve(self) -> Iterator[NotebookError]:
        """Fill the node; yield an error for each need that cannot be resolved."""
        for reference in self.node.cell.needs:
            if not is_reference(reference):
                yield from self._local(reference)
                continue
            path, _, cell = reference.partition(":")
            folder = self.node.notebook.folder
            name = join_path(glob.escape(folder) if is_pattern(path) else folder, path)
            if name is None:
                expected = "A path within it, relative to the notebook's folder"
                yield self._error(reference, "leaves the project", expected)
            elif not path.endswith(".md"):
                yield from self._data(reference, name)
            elif is_pattern(path):
                for one in sorted(self.notebooks):
                    # Other cells that match are skipped without an error.
                    if one != self.node.name.notebook and matches(one, name):
                        self._add_cells(one, cell)
            else:
                yield from self._notebook(reference, name, cell)
        self.node.files = sorted(set(self.node.files))

    def _error(self, need: str, what: str, expected: str = "", remedy: str = "") -> NotebookError:
        where = f"{self.node.name.notebook}:{self.node.cell.file_line}"
        return NotebookError(where, f"needs={need} {what}", expected, remedy)

    def _local(self, need: str) -> Iterator[NotebookError]:
        name = CellName(self.node.name.notebook, need)
        if name in self.graph.nodes:
            self.node.local = list(dict.fromkeys([*self.node.local, name]))
            return
        known = [one.cell for one in self._cells_of(name.notebook)]
        commented = any(cell.id == need for cell in self.node.notebook.cells if cell.commented)
        what = "is a cell that is commented out" if commented else "names no cell of this notebook"
        hint = "Write ./ before the name of a file, and ./path.md:cell for a cell of another notebook"
        yield self._error(need, what, "", did_you_mean(need, known, hint))

    def _notebook(self, reference: str, name: str, cell: str) -> Iterator[NotebookError]:
        if name == self.node.name.notebook:
            yield self._error(reference, "is this notebook itself", "", "Write the id of the cell alone")
        elif name not in self.notebooks:
            hint = did_you_mean(name, self.notebooks, "`kbt list` shows the notebooks")
            yield self._error(reference, f"names no notebook of this project ({name})", "", hint)
        elif cell and CellName(name, cell) not in self.graph.nodes:
            hint = unknown_cell_hint(cell, [one.cell for one in self._cells_of(name)])
            yield self._error(reference, f"names no cell of {name}", "", hint)
        else:
            self._add_cells(name, cell)

    def _cells_of(self, notebook: str) -> list[CellName]:
        return [one for one in self.graph.nodes if one.notebook == notebook]

    def _add_cells(self, notebook: str, cell: str) -> None:
        """Add one cell of a notebook, if it has it; all without ``cell``."""
        cells = self._cells_of(notebook)
        if not cell:
            self.node.whole[notebook] = cells
        wanted = [one for one in cells if not cell or one.cell == cell]
        self.node.foreign = list(dict.fromkeys([*self.node.foreign, *wanted]))

    def _data(self, reference: str, name: str) -> Iterator[NotebookError]:
        if is_pattern(reference):
            self.node.files += [path for path in self.project.root.glob(name) if self._is_data(path)]
        elif self._is_data(self.project.root / name):
            self.node.files.append(self.project.root / name)
        else:
            hint = "Correct the path, or use a glob for files that may not exist"
            yield self._error(reference, "names no file", "A data file, or a notebook ending in .md", hint)

    def _is_data(self, path: Path) -> bool:
        hidden = any(part.startswith(".") for part in path.relative_to(self.project.root).parts)
        inside = real_path(path).is_relative_to(self.project.root.resolve())
        is_file = os.path.isfile(path)  # noqa: PTH113 - Path.is_file() raises an error for a name that is too long
        return is_file and not hidden and inside and is_unicode(str(path))
