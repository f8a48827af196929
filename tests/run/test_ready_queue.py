"""The order in which cells start: the one first that took the longest in earlier builds."""

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from kernels_bench_tools.notebooks.cell import Cell
from kernels_bench_tools.notebooks.document import Notebook
from kernels_bench_tools.notebooks.graph import CellName, Graph, Node
from kernels_bench_tools.records.build import FrontMatter
from kernels_bench_tools.run.schedule import ReadyQueue

NOTEBOOK = Notebook(Path("n.md"), "n.md", "", FrontMatter(), [])
BASELINE = Notebook(Path("n.md"), "n.md", "", FrontMatter(baseline=True), [])


def named(cell: str) -> CellName:
    return CellName("n.md", cell)


def graph_of(needs: dict[str, list[str]]) -> Graph:
    """A graph of cells, each given after those that it needs."""
    nodes = {}
    for cell, needed in needs.items():
        node = Node(named(cell), NOTEBOOK, Cell(cell, "", [], [], []))
        node.local = [named(need) for need in needed]
        nodes[node.name] = node
    return Graph(nodes)


def order(needs: dict[str, list[str]], seconds: dict[str, float]) -> list[str]:
    """The order in which one worker would start the cells."""
    graph = graph_of(needs)
    queue = ReadyQueue(graph, list(graph.nodes), {named(cell): value for cell, value in seconds.items()})
    started = []
    while (name := queue.pop()) is not None:
        started.append(name.cell)
        queue.done(name)
    return started


def test_the_longest_cell_starts_first():
    needs = {"a": [], "b": [], "c": [], "after-b": ["b"]}

    assert order(needs, {"a": 2, "b": 3, "c": 5, "after-b": 9}) == ["c", "b", "after-b", "a"]


def test_a_baseline_starts_last():
    graph = graph_of({"a": [], "b": []})
    graph.nodes[named("a")].notebook = BASELINE

    assert ReadyQueue(graph, list(graph.nodes), {named("a"): 9.0, named("b"): 1.0}).pop() == named("b")


@given(
    st.lists(st.sets(st.integers(0, 30)), max_size=25), st.lists(st.floats(0, 100), min_size=25, max_size=25)
)
def test_every_cell_starts_once_and_after_its_needs(edges, seconds):
    needs = {f"c{n}": [f"c{need}" for need in sorted(some) if need < n] for n, some in enumerate(edges)}
    started_cells = order(needs, {f"c{n}": value for n, value in enumerate(seconds)})

    assert sorted(started_cells) == sorted(needs)
    assert all(
        started_cells.index(need) < started_cells.index(cell) for cell, some in needs.items() for need in some
    )
