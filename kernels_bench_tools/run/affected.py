"""Which notebooks are affected by the changes since a revision: the inputs of their cells are compared."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.notebooks.graph import CellName, Node
from kernels_bench_tools.notebooks.project import Project, find_project
from kernels_bench_tools.notebooks.survey import Survey, survey_project, survey_targets
from kernels_bench_tools.run.cache.key import DATA, UPSTREAM, Fingerprints
from kernels_bench_tools.run.environment.base import PACKAGE_FOLDER, find_environment
from kernels_bench_tools.run.git import Repository
from kernels_bench_tools.run.plan import ORDER, differences
from kernels_bench_tools.schema.device import current_device


class AffectedNotebook(msgspec.Struct, kw_only=True):
    """A notebook with cells that would run, or may run, after the changes."""

    notebook: str
    operator: str
    """Its operator; empty if it belongs to none."""
    cells: list[str]
    """The ids of these cells, in a possible order."""
    measures: bool
    """Whether one of these cells writes records."""
    requires: list[str]
    """Device kinds of which the machine must have one; empty for any machine."""
    changed: dict[str, list[str]]
    """Cell id to what changed: ``code``, ``source of kernels-bench-tools``, ``upstream a.md:x``, …"""


def find_affected(
    project: Project, targets: Sequence[str], revision: str, environment: str
) -> list[AffectedNotebook]:
    """Return the notebooks with cells that changed since ``revision``, or that need cells which did.

    Files are compared as they are on the disk, committed or not. Nothing runs, and nothing is written. Only
    ``targets`` and the notebooks that they need are considered; without targets, all are.

    Raises:
        NotebooksError: Something is wrong with the notebooks concerned.
        ProjectError: The project is in no repository, or that has no such revision.
    """
    survey, cells = survey_targets(project, targets)
    repository = Repository(project.root)
    commit = repository.resolve(revision)
    files = repository.changed_files(commit)
    if not files:
        return []
    with tempfile.TemporaryDirectory(prefix="kbt-") as folder:
        earlier = Path(folder).resolve() / "tree"
        earlier.mkdir()
        repository.check_out(commit, earlier)
        now = _tree(project, survey, environment, PACKAGE_FOLDER.parent)
        before = _earlier_tree(project, repository, earlier, environment)
        changed = _changed_cells(now, before, cells, files)
    return _by_notebook(survey, cells, changed)


@dataclass(frozen=True)
class _Tree:
    """A project, now or at the earlier revision."""

    project: Project
    survey: Survey
    fingerprints: Fingerprints


def _tree(project: Project, survey: Survey, environment: str, package: Path) -> _Tree:
    identity = find_environment(environment).identity
    device = current_device()
    prints = Fingerprints(project, survey.graph, device, environment, identity, package=package)
    return _Tree(project, survey, prints)


def _earlier_tree(project: Project, repository: Repository, top: Path, environment: str) -> _Tree | None:
    """Return the project at the earlier revision; None if it was no project then."""
    root, package = top / project.root.relative_to(repository.top), PACKAGE_FOLDER.parent
    if package.is_relative_to(repository.top):
        package = top / package.relative_to(repository.top)
    try:
        found = find_project(root) if root.is_dir() else None
        if found is None or found.root != root:
            return None
        survey = survey_project(found)
    except KbtError:
        return None
    return _tree(found, survey, environment, package)


def _changed_cells(
    now: _Tree, before: _Tree | None, cells: Sequence[CellName], files: set[Path]
) -> dict[CellName, list[str]]:
    """Return what changed for each changed cell, in a possible order."""
    changed: dict[CellName, list[str]] = {}
    for name in cells:
        node = now.survey.graph.nodes[name]
        old = before.survey.graph.nodes.get(name) if before else None
        if before is None or old is None:
            own, moved = ["name"], set[CellName]()
        else:
            own, moved = _own_changes(now, before, node, old, files), {*node.needs} ^ {*old.needs}
        fronts = _new_fronts(now, before, node) if before else set[str]()
        others = dict.fromkeys([*node.needs, *(old.needs if old else ())])
        upstream = [one for one in others if one in changed or one in moved or one.notebook in fronts]
        if own or upstream:
            own = [what for what in own if not (moved and what == ORDER)]
            changed[name] = [*own, *(f"{UPSTREAM}{one}" for one in upstream)]
    return changed


def _own_changes(now: _Tree, before: _Tree, node: Node, old: Node, files: set[Path]) -> list[str]:
    try:
        earlier = before.fingerprints.own_parts(old)
    except (KbtError, ValueError, OSError):  # its notebook was broken then
        return ["code"]
    inputs = now.fingerprints.inputs(node)
    found = differences(earlier, now.fingerprints.own_parts(node))
    return [name for name in found if _is_tracked(now.project, name, inputs, files)]


def _is_tracked(project: Project, name: str, inputs: Mapping[str, Path], files: set[Path]) -> bool:
    """Return whether a change is in the repository: a push has no build products, and no files elsewhere."""
    if name.startswith(DATA):
        path = project.root / name.removeprefix(DATA)
        return bool({path, path.resolve()} & files)
    source = inputs.get(name)
    return source is None or any(file == source or source in file.parents for file in files)


def _new_fronts(now: _Tree, before: _Tree, node: Node) -> set[str]:
    """Return the needed notebooks whose front matter changed, since that is an input of the cell."""
    names = {need.notebook for need in node.foreign} & before.survey.notebooks.keys()
    return {n for n in names if now.survey.notebooks[n].front != before.survey.notebooks[n].front}


def _by_notebook(
    survey: Survey, cells: Sequence[CellName], changed: Mapping[CellName, list[str]]
) -> list[AffectedNotebook]:
    affected = []
    for name in dict.fromkeys(cell.notebook for cell in cells if cell in changed):
        notebook = survey.notebooks[name]
        own = [cell for cell in cells if cell in changed and cell.notebook == name]
        affected.append(
            AffectedNotebook(
                notebook=name,
                operator=notebook.operator,
                cells=[cell.cell for cell in own],
                measures=any(survey.graph.nodes[cell].cell.measures for cell in own),
                requires=notebook.front.requires,
                changed={cell.cell: changed[cell] for cell in own},
            )
        )
    return sorted(affected, key=lambda one: one.notebook)
