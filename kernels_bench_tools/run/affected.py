"""Which notebooks are affected by the changes since a revision: the inputs of their cells are compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.git import Repository
from kernels_bench_tools.notebooks.graph import CellName, Graph, Node
from kernels_bench_tools.notebooks.project import Project, find_project
from kernels_bench_tools.notebooks.survey import survey_project, survey_targets
from kernels_bench_tools.own_folders import temporary_folder
from kernels_bench_tools.own_process import PACKAGE_FOLDER
from kernels_bench_tools.records.device import current_device
from kernels_bench_tools.run.cache.key import DATA, UPSTREAM, Fingerprints
from kernels_bench_tools.run.environment.base import find_environment
from kernels_bench_tools.run.plan import ORDER, differences
from kernels_bench_tools.text import grouped


class AffectedNotebook(msgspec.Struct, kw_only=True):
    """A notebook with cells that would run, or may run, after the changes."""

    notebook: str
    operator: str
    cells: list[str]
    """The ids of these cells, in a possible order."""
    measures: bool
    requires: list[str]
    """Device kinds of which the machine must have one; empty for any machine."""
    changed: dict[str, list[str]]
    """Cell id to what changed: ``code``, ``source of kernels-bench-tools``, ``upstream a.md:x``, …"""


def find_affected(
    project: Project, targets: Sequence[str], revision: str, environment: str
) -> list[AffectedNotebook]:
    """Return the notebooks with cells that changed since ``revision``, or that need cells which did.

    Files are compared as they are on the disk, committed or not. Nothing runs, and nothing is written. Only
    ``targets`` and the notebooks that they need are considered; without targets, all are. A ``ProjectError`` is
    raised if the project is in no repository, or that has no such revision.
    """
    survey, cells = survey_targets(project, targets)
    repository = Repository(project.root)
    commit = repository.resolve(revision)
    files = repository.changed_files(commit)
    if not files:
        return []
    with temporary_folder() as folder:
        earlier = folder / "tree"
        earlier.mkdir()
        repository.check_out(commit, earlier)
        now = _fingerprints(project, survey.graph, environment, PACKAGE_FOLDER.parent)
        before = _earlier_fingerprints(project, repository, earlier, environment)
        changed = _changed_cells(now, before, cells, files)
    return _by_notebook(survey.graph, changed)


def _fingerprints(project: Project, graph: Graph, environment: str, package: Path) -> Fingerprints:
    identity = find_environment(environment).identity()
    return Fingerprints(project, graph, current_device(), environment, identity, package=package)


def _earlier_fingerprints(
    project: Project, repository: Repository, top: Path, environment: str
) -> Fingerprints | None:
    """Return those of the project at the earlier revision; None if it was no project then."""
    root, package = top / project.root.relative_to(repository.top), PACKAGE_FOLDER.parent
    if package.is_relative_to(repository.top):
        package = top / package.relative_to(repository.top)
    try:
        found = find_project(root) if root.is_dir() else None
        if found is None or found.root != root:
            return None
        return _fingerprints(found, survey_project(found).graph, environment, package)
    except KbtError:
        return None


def _changed_cells(
    now: Fingerprints, before: Fingerprints | None, cells: Sequence[CellName], files: set[Path]
) -> dict[CellName, list[str]]:
    """Return what changed for each changed cell, in a possible order."""
    earlier = before.graph.nodes if before else {}
    changed: dict[CellName, list[str]] = {}
    for name in cells:
        node, old = now.graph.nodes[name], earlier.get(name)
        if before is None or old is None:
            own, moved = ["name"], set[CellName]()
        else:
            own, moved = _own_changes(now, before, node, old, files), {*node.needs} ^ {*old.needs}
        # The front matter of a needed notebook is an input of the cell.
        moved |= {
            one
            for one in node.foreign
            if one in earlier and earlier[one].notebook.front != now.graph.nodes[one].notebook.front
        }
        others = dict.fromkeys([*node.needs, *(old.needs if old else ())])
        upstream = [one for one in others if one in changed or one in moved]
        if own or upstream:
            own = [what for what in own if not (moved and what == ORDER)]
            changed[name] = [*own, *(f"{UPSTREAM}{one}" for one in upstream)]
    return changed


def _own_changes(
    now: Fingerprints, before: Fingerprints, node: Node, old: Node, files: set[Path]
) -> list[str]:
    try:
        earlier = before.own_parts(old)
    except (KbtError, ValueError, OSError):  # its notebook was broken then
        return ["code"]
    inputs = now.inputs(node)
    found = differences(earlier, now.own_parts(node))
    return [name for name in found if _is_tracked(now.project, name, inputs, files)]


def _is_tracked(project: Project, name: str, inputs: Mapping[str, Path], files: set[Path]) -> bool:
    """Return whether a change is in the repository: a push has no build products, and no files elsewhere."""
    if name.startswith(DATA):
        path = project.root / name.removeprefix(DATA)
        return bool({path, path.resolve()} & files)
    source = inputs.get(name)
    return source is None or any(file == source or source in file.parents for file in files)


def _by_notebook(graph: Graph, changed: Mapping[CellName, list[str]]) -> list[AffectedNotebook]:
    by_notebook = grouped((cell.notebook, graph.nodes[cell]) for cell in changed)
    return [
        AffectedNotebook(
            notebook=name,
            operator=nodes[0].notebook.operator,
            cells=[node.name.cell for node in nodes],
            measures=any(node.cell.measures for node in nodes),
            requires=nodes[0].notebook.front.requires,
            changed={node.name.cell: changed[node.name] for node in nodes},
        )
        for name, nodes in sorted(by_notebook.items())
    ]
