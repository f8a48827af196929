"""The inputs of a cell: its context, and where the results of its needs are.

uvnote's variables name the folders of the needs that succeeded; ours describe all needs.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from kernels_bench_tools.file_io import write_struct
from kernels_bench_tools.notebooks.graph import CellName, Node
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.run.cache.entry import Entry
from kernels_bench_tools.run.cell import CellTask
from kernels_bench_tools.run.git import Checkout, Revision
from kernels_bench_tools.schema.build import (
    CONTEXT_VARIABLE,
    FORWARD,
    NEEDS_VARIABLE,
    CellContext,
    Need,
    Needs,
    code_digest,
)
from kernels_bench_tools.schema.record import Status
from kernels_bench_tools.text import environment_key


def cell_context(
    node: Node,
    environment: str,
    workloads: str,
    checkout: Checkout | Revision,
    *,
    mode: str = FORWARD,
    process: int = 0,
    processes: int = 1,
) -> CellContext:
    """Return the context of one process of a cell.

    Args:
        node: The cell.
        environment: ``"uv"`` or ``"current"``.
        workloads: Names of workload sets, for a cell that measures.
        checkout: The state of the repository.
        mode: One of ``MODES``, for a cell that measures.
        process: The number of the process, from 0.
        processes: How many processes measure the cell.
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


def write_inputs(folder: Path, project: Project, task: CellTask) -> dict[str, str]:
    """Write the inputs of a cell into ``folder``; return the variables that name them.

    Args:
        folder: A folder of this run alone, but not the cell's current folder.
        project: The project.
        task: The cell.
    """
    write_struct(folder / "context.json", task.context)
    write_struct(folder / "needs.json", _needs(project, task))
    return {
        CONTEXT_VARIABLE: str(folder / "context.json"),
        NEEDS_VARIABLE: str(folder / "needs.json"),
        **_uvnote_variables(folder, task.node, task.results),
    }


def _needs(project: Project, task: CellTask) -> Needs:
    nodes, results = task.graph.nodes, task.results
    return Needs(
        project=str(project.root),
        notebook=task.node.name.notebook,
        device=task.device,
        cells=[
            Need(
                notebook=name.notebook,
                cell=name.cell,
                front=nodes[name].notebook.front,
                status=results[name].result.status,
                reason=results[name].result.reason,
                directory=str(results[name].artifacts),
            )
            for name in task.node.foreign
        ],
        files=[str(path) for path in task.node.files],
    )


def _uvnote_variables(folder: Path, node: Node, results: Mapping[CellName, Entry]) -> dict[str, str]:
    """Return uvnote's variables; as in uvnote, a need that failed has none."""
    good = {
        name: str(results[name].artifacts) for name in node.needs if results[name].result.status is Status.OK
    }
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
