"""What runs next: cells whose needs have ended, the one with the longest way to go behind it first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from heapq import heapify, heappop, heappush

from kernels_bench_tools.notebooks.graph import CellName, Graph

UNKNOWN_SECONDS = 1.0
"""What a cell is taken to need where none of the build has ever run."""


class Agenda:
    """The cells that a build has yet to end, each told of once, as soon as all that it needs have ended.

    Of cells that could start, those come first behind which most seconds of work wait (their own included, on the
    longest way through the cells that need them), as far as earlier builds tell; equal ones come in the order
    of the graph, which is by name. So the order is the same on every machine with the same history.

    Args:
        graph: All cells.
        cells: Those to end, in an order in which they can run. What else they need has ended already.
        seconds: How long cells took when they last ran, as far as known.
    """

    def __init__(self, graph: Graph, cells: Sequence[CellName], seconds: Mapping[CellName, float]) -> None:
        self._position = {name: number for number, name in enumerate(cells)}
        self._missing = {
            name: sum(need in self._position for need in graph.nodes[name].needs) for name in cells
        }
        self._dependents: dict[CellName, list[CellName]] = {name: [] for name in cells}
        for name in cells:
            for need in graph.nodes[name].needs:
                if need in self._dependents:
                    self._dependents[need].append(name)
        self.chains = self._chains(cells, seconds)
        """Seconds from a cell's start to the end of the last one that needs it, if nothing else were to do."""
        self._ready = [self._entry(name) for name in cells if not self._missing[name]]
        heapify(self._ready)

    def take(self) -> CellName | None:
        """Return the next cell whose needs have ended, and do not tell of it again; None if there is none."""
        return heappop(self._ready)[2] if self._ready else None

    def end(self, name: CellName) -> None:
        """Note that a cell has ended, well or not, so that those that waited for it alone can start."""
        for dependent in self._dependents[name]:
            self._missing[dependent] -= 1
            if not self._missing[dependent]:
                heappush(self._ready, self._entry(dependent))

    def order(self, names: Sequence[CellName]) -> list[CellName]:
        """Return cells in the order in which they are to start."""
        return sorted(names, key=self._entry)

    def _entry(self, name: CellName) -> tuple[float, int, CellName]:
        return -self.chains[name], self._position[name], name

    def _chains(self, cells: Sequence[CellName], seconds: Mapping[CellName, float]) -> dict[CellName, float]:
        known = [seconds[name] for name in cells if name in seconds]
        usual = sum(known) / len(known) if known else UNKNOWN_SECONDS
        chains: dict[CellName, float] = {}
        for name in reversed(cells):
            after = max((chains[dependent] for dependent in self._dependents[name]), default=0.0)
            chains[name] = seconds.get(name, usual) + after
        return chains
