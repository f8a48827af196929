"""What needs what: every cell's needs resolved, and one order in which cells can run."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

from kernels_bench_tools.errors import NotebookError
from kernels_bench_tools.notebooks.cell import Cell
from kernels_bench_tools.notebooks.document import Notebook
from kernels_bench_tools.notebooks.paths import is_pattern, join, matches
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.text import did_you_mean


class CellName(NamedTuple):
    """Which cell: it reads ``layer_norm/impls/mine.md:benchmark``."""

    notebook: str
    cell: str

    def __str__(self) -> str:
        """Return the name as ``needs=`` and the command line spell it."""
        return f"{self.notebook}:{self.cell}"


@dataclass
class Node:
    """A cell with its needs resolved, each in the order of ``needs=``."""

    name: CellName
    notebook: Notebook
    cell: Cell
    local: list[CellName] = field(default_factory=list)
    """Needed cells of the same notebook."""
    foreign: list[CellName] = field(default_factory=list)
    """Needed cells of other notebooks."""
    whole: dict[str, list[CellName]] = field(default_factory=dict)
    """Notebooks that are needed as a whole, each with its cells; these are in ``foreign``, too."""
    files: list[Path] = field(default_factory=list)
    """Data files, sorted."""

    @property
    def needs(self) -> list[CellName]:
        """All needed cells."""
        return [*self.local, *self.foreign]


@dataclass
class Graph:
    """Every cell that can run, each after the cells that it needs."""

    nodes: dict[CellName, Node]
    problems: list[tuple[str, NotebookError]] = field(default_factory=list)
    """Needs that cannot be met, each with the notebook at fault."""

    def closure(self, names: Iterable[CellName]) -> list[CellName]:
        """Return these cells and everything that they need, in the order in which they can run."""
        wanted: set[CellName] = set()
        waiting = list(names)
        while waiting:
            name = waiting.pop()
            if name not in wanted:
                wanted.add(name)
                waiting.extend(self.nodes[name].needs)
        return [name for name in self.nodes if name in wanted]


def build_graph(project: Project, notebooks: Mapping[str, Notebook]) -> Graph:
    """Return the graph over the cells of ``notebooks``, keyed by their names.

    Cells that are ready together come in the order of their notebooks' names and of their text, so the
    order is the same everywhere.
    """
    nodes: dict[CellName, Node] = {}
    for name in sorted(notebooks):
        for cell in notebooks[name].cells:
            if not cell.commented:
                key = CellName(name, cell.id)
                nodes.setdefault(key, Node(key, notebooks[name], cell))
    graph = Graph(nodes)
    for node in nodes.values():
        resolver = _Resolver(project, notebooks, graph, node)
        graph.problems += [(node.name.notebook, error) for error in resolver.resolve()]
    graph.nodes = _in_order(graph)
    return graph


def _in_order(graph: Graph) -> dict[CellName, Node]:
    position = {name: number for number, name in enumerate(graph.nodes)}
    needs = {name: list(node.needs) for name, node in graph.nodes.items()}
    sorter = TopologicalSorter(needs)
    while True:
        try:
            sorter.prepare()
            break
        except CycleError as error:
            # Without one of its edges the rest can be ordered, and further circles be found.
            cycle: list[CellName] = error.args[1]
            _report_cycle(graph, list(reversed(cycle)))
            needs[cycle[1]].remove(cycle[0])
            sorter = TopologicalSorter(needs)
    order: list[CellName] = []
    while sorter.is_active():
        ready = sorted(sorter.get_ready(), key=position.__getitem__)
        order += ready
        sorter.done(*ready)
    return {name: graph.nodes[name] for name in order}


def _report_cycle(graph: Graph, cycle: list[CellName]) -> None:
    node = graph.nodes[cycle[0]]
    what = "cells need one another in a circle: " + " needs ".join(str(name) for name in cycle)
    where = f"{node.name.notebook}:{node.cell.file_line}"
    graph.problems.append((node.name.notebook, NotebookError(where, what, "", "Remove one of these needs")))


class _Resolver:
    """Finds what one cell's ``needs=`` names."""

    def __init__(self, project: Project, notebooks: Mapping[str, Notebook], graph: Graph, node: Node) -> None:
        self.project = project
        self.notebooks = notebooks
        self.graph = graph
        self.node = node
        self.where = f"{node.name.notebook}:{node.cell.file_line}"

    def resolve(self) -> Iterator[NotebookError]:
        """Fill the node; yield each need that cannot be met."""
        for need in self.node.cell.local_needs:
            yield from self._local(need)
        for reference in self.node.cell.references:
            path, _, cell = reference.partition(":")
            name = join(self.node.notebook.folder, path)
            if name is None:
                yield self._wrong(
                    reference, "leaves the project", "A path from the notebook's folder within it"
                )
            elif not path.endswith(".md"):
                yield from self._data(reference, name)
            elif is_pattern(path):
                self._notebooks(name, cell)
            else:
                yield from self._notebook(reference, name, cell)
        self.node.files = sorted(set(self.node.files))

    def _wrong(self, need: str, what: str, expected: str = "", remedy: str = "") -> NotebookError:
        return NotebookError(self.where, f"needs={need} {what}", expected, remedy)

    def _local(self, need: str) -> Iterator[NotebookError]:
        name = CellName(self.node.name.notebook, need)
        if name in self.graph.nodes:
            self._add(self.node.local, name)
            return
        known = [one.cell for one in self.graph.nodes if one.notebook == name.notebook]
        commented = any(cell.id == need for cell in self.node.notebook.cells if cell.commented)
        what = "is a cell that is commented out" if commented else "names no cell of this notebook"
        hint = "Write ./ before the name of a file, and ./path.md:cell for a cell of another notebook"
        yield self._wrong(need, what, "", did_you_mean(need, known, hint))

    def _notebook(self, reference: str, name: str, cell: str) -> Iterator[NotebookError]:
        notebook = self.notebooks.get(name)
        if notebook is None or name == self.node.name.notebook:
            what = "is this notebook itself" if notebook else f"names no notebook of this project ({name})"
            hint = did_you_mean(name, self.notebooks, "`kbt list` shows the notebooks")
            yield self._wrong(reference, what, "", "Name the cell alone" if notebook else hint)
            return
        cells = [one for one in self.graph.nodes if one.notebook == name]
        if not cell:
            self.node.whole[name] = cells
        elif CellName(name, cell) not in self.graph.nodes:
            known = [one.cell for one in cells]
            hint = did_you_mean(
                cell, known, f"Its cells are {', '.join(known)}" if known else "It has no cells"
            )
            yield self._wrong(reference, f"names no cell of {name}", "", hint)
            return
        for one in cells:
            if not cell or one.cell == cell:
                self._add(self.node.foreign, one)

    def _notebooks(self, pattern: str, cell: str) -> None:
        """Add what a glob finds; a notebook without such a cell is none of its business."""
        for name in sorted(self.notebooks):
            if name == self.node.name.notebook or not matches(name, pattern):
                continue
            cells = [one for one in self.graph.nodes if one.notebook == name]
            if not cell:
                self.node.whole[name] = cells
            for one in cells:
                if not cell or one.cell == cell:
                    self._add(self.node.foreign, one)

    def _data(self, reference: str, name: str) -> Iterator[NotebookError]:
        if is_pattern(name):
            self.node.files += [path for path in self.project.root.glob(name) if self._is_data(path)]
        elif self._is_data(self.project.root / name):
            self.node.files.append(self.project.root / name)
        else:
            hint = "Correct the path, or use a glob for files that may not exist"
            yield self._wrong(reference, "names no file", "A data file, or a notebook ending in .md", hint)

    def _is_data(self, path: Path) -> bool:
        hidden = any(part.startswith(".") for part in path.relative_to(self.project.root).parts)
        return path.is_file() and not hidden and path.resolve().is_relative_to(self.project.root.resolve())

    @staticmethod
    def _add(names: list[CellName], name: CellName) -> None:
        if name not in names:
            names.append(name)
