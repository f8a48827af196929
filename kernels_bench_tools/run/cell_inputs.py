"""What a cell is told: who it is, and where the results of its needs are.

uvnote's variables name the folders of those needs that ended well, ours describe them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import msgspec

from kernels_bench_tools.file_io import write_struct
from kernels_bench_tools.notebooks.graph import CellName, Graph, Node
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.run.cache.store import Entry
from kernels_bench_tools.run.checkout import Checkout
from kernels_bench_tools.schema.build import (
    CONTEXT_VARIABLE,
    FORWARD,
    NEEDS_VARIABLE,
    CellContext,
    Need,
    Needs,
    code_digest,
)
from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.record import Status
from kernels_bench_tools.text import environment_key


def cell_context(
    node: Node,
    environment: str,
    workloads: str,
    checkout: Checkout,
    *,
    mode: str = FORWARD,
    process: int = 0,
    processes: int = 1,
) -> CellContext:
    """Return what a cell is told about itself.

    Args:
        node: The cell.
        environment: ``"uv"`` or ``"current"``.
        workloads: Names of workload sets, for a cell that measures.
        checkout: The state of the repository.
        mode: One of ``MODES``, for a cell that measures.
        process: Which of the cell's processes is told, from 0.
        processes: How many measure it.
    """
    notebook = node.notebook
    return CellContext(
        operator=notebook.operator,
        implementation=notebook.implementation,
        notebook=notebook.name,
        notebook_digest=notebook.digest,
        cell=node.cell.id,
        code_digest=code_digest(node.cell.code),
        commit=checkout.commit,
        dirty=checkout.dirty,
        environment=environment,
        workloads=workloads if node.cell.measures else "",
        mode=mode if node.cell.measures else FORWARD,
        family=notebook.front.family,
        process=process,
        processes=processes,
    )


def cell_needs(
    project: Project, graph: Graph, node: Node, results: Mapping[CellName, Entry], device: Device
) -> Needs:
    """Return what a cell is told about the cells of other notebooks, and the files, that it needs."""
    return Needs(
        project=str(project.root),
        notebook=node.name.notebook,
        device=device,
        cells=[
            Need(
                notebook=name.notebook,
                cell=name.cell,
                front=graph.nodes[name].notebook.front,
                status=results[name].result.status,
                reason=results[name].result.reason,
                directory=str(results[name].artifacts),
            )
            for name in node.foreign
        ],
        files=[str(path) for path in node.files],
    )


class Needy(Protocol):
    """A cell, as far as its needs go."""

    @property
    def local(self) -> list[CellName]:
        """Needed cells of the same notebook."""
        ...

    @property
    def foreign(self) -> list[CellName]:
        """Needed cells of other notebooks."""
        ...

    @property
    def whole(self) -> dict[str, list[CellName]]:
        """Notebooks that are needed as a whole, each with its cells."""
        ...


def hand_over(
    folder: Path, context: CellContext, needs: Needs, node: Needy, results: Mapping[CellName, Entry]
) -> dict[str, str]:
    """Write what the cell is told into ``folder``; return the variables that name it.

    Args:
        folder: A folder of this run alone, but not the cell's current folder.
        context: Who the cell is.
        needs: What it needs.
        node: The cell.
        results: How the cells that it needs ended.
    """
    write_struct(folder / "context.json", context, sync=False)
    write_struct(folder / "needs.json", needs, sync=False)
    return {
        CONTEXT_VARIABLE: str(folder / "context.json"),
        NEEDS_VARIABLE: str(folder / "needs.json"),
        **_uvnote_variables(folder, node, results),
    }


def _uvnote_variables(folder: Path, node: Needy, results: Mapping[CellName, Entry]) -> dict[str, str]:
    """Return uvnote's variables; as there, a need that failed has none."""
    needs = [*node.local, *node.foreign]
    good = {name: str(results[name].artifacts) for name in needs if results[name].result.status is Status.OK}
    inputs = {f"UVNOTE_INPUT_{environment_key(n.cell)}": good[n] for n in node.local if n in good}
    variables = dict(inputs)
    if inputs:
        variables["UVNOTE_INPUTS"] = ",".join(inputs)
    for name in node.foreign:
        if name in good:
            variables[f"UVNOTE_FILE_{_stem_key(name.notebook)}_{environment_key(name.cell)}"] = good[name]
    for notebook, cells in node.whole.items():
        manifest = folder / f"{_stem_key(notebook)}.json"
        manifest.write_bytes(msgspec.json.encode({n.cell: good[n] for n in cells if n in good}))
        variables[f"UVNOTE_FILE_{_stem_key(notebook)}"] = str(manifest)
    return variables


def _stem_key(notebook: str) -> str:
    return environment_key(notebook.rpartition("/")[2].removesuffix(".md"))
