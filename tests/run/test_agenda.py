"""In which order cells start: the longest way through the build first."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels_bench_tools.notebooks.cell import Cell
from kernels_bench_tools.notebooks.document import Notebook
from kernels_bench_tools.notebooks.graph import CellName, Graph, Node
from kernels_bench_tools.run.ready_queue import Agenda
from kernels_bench_tools.schema.build import FrontMatter

NOTEBOOK = Notebook(Path("n.md"), "n.md", "", "", FrontMatter(), [])


def named(cell: str) -> CellName:
    return CellName("n.md", cell)


def graph_of(needs: dict[str, list[str]]) -> Graph:
    """A graph of cells, each given after those that it needs."""
    nodes = {}
    for cell, needed in needs.items():
        node = Node(named(cell), NOTEBOOK, Cell(cell, "", [], [], [], 0, 0))
        node.local = [named(need) for need in needed]
        nodes[node.name] = node
    return Graph(nodes)


def order(needs: dict[str, list[str]], seconds: dict[str, float]) -> list[str]:
    """The order in which one worker would start the cells."""
    graph = graph_of(needs)
    agenda = Agenda(graph, list(graph.nodes), {named(cell): value for cell, value in seconds.items()})
    started = []
    while (name := agenda.take()) is not None:
        started.append(name.cell)
        agenda.end(name)
    return started


def test_the_longest_chain_starts_first():
    needs = {"a": [], "b": [], "c": [], "after-b": ["b"]}

    assert order(needs, {"a": 2, "b": 1, "c": 5, "after-b": 9}) == ["b", "after-b", "c", "a"]


def test_without_a_history_cells_behind_which_most_wait_come_first_then_names():
    assert order({"a": [], "b": [], "c": ["b"], "d": ["c"]}, {}) == ["b", "c", "a", "d"]


def test_a_cell_that_never_ran_is_taken_to_be_like_the_others():
    assert order({"a": [], "b": [], "new": []}, {"a": 1, "b": 9}) == ["b", "new", "a"]


def test_a_need_outside_of_the_agenda_has_ended():
    graph = graph_of({"a": [], "b": ["a"]})

    assert Agenda(graph, [named("b")], {}).take() == named("b")


def test_a_cell_waits_for_all_that_it_needs():
    graph = graph_of({"a": [], "b": [], "c": ["a", "b"]})
    agenda = Agenda(graph, list(graph.nodes), {})
    agenda.end(agenda.take())

    assert agenda.take() == named("b")
    assert agenda.take() is None
    agenda.end(named("b"))
    assert agenda.take() == named("c")


@given(
    st.lists(st.sets(st.integers(0, 30)), max_size=25), st.lists(st.floats(0, 100), min_size=25, max_size=25)
)
def test_every_cell_is_told_of_once_and_after_its_needs(edges, seconds):
    needs = {f"c{n}": [f"c{need}" for need in sorted(some) if need < n] for n, some in enumerate(edges)}
    told = order(needs, {f"c{n}": value for n, value in enumerate(seconds)})

    assert sorted(told) == sorted(needs)
    assert all(told.index(need) < told.index(cell) for cell, some in needs.items() for need in some)


def test_the_order_among_some_is_that_in_which_they_start():
    graph = graph_of({"a": [], "b": [], "c": []})
    agenda = Agenda(graph, list(graph.nodes), {named("b"): 3.0, named("c"): 2.0, named("a"): 1.0})

    assert agenda.order(list(graph.nodes)) == [named("b"), named("c"), named("a")]
    assert agenda.chains[named("b")] == pytest.approx(3.0)
