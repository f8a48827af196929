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
from kernels_bench_tools.schema.build import CONTEXT_VARIABLE, NEEDS_VARIABLE, Need, Needs
from kernels_bench_tools.schema.record import Status
from kernels_bench_tools.text import environment_key


def write_inputs(folder: Path, project: Project, task: CellTask) -> dict[str, str]:
    """Write the inputs of a cell into a folder of this run alone; return the variables that name them."""
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
