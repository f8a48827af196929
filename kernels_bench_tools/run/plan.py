"""What a build would run, and why, and which notebooks changes since a revision affect; nothing runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

import msgspec

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.git import Repository
from kernels_bench_tools.notebooks.front_matter import unmet_requirement
from kernels_bench_tools.notebooks.graph import CellName, Graph, Node
from kernels_bench_tools.notebooks.project import Project, find_project
from kernels_bench_tools.notebooks.survey import survey_project, survey_targets
from kernels_bench_tools.own_folders import temporary_folder
from kernels_bench_tools.own_process import PACKAGE_FOLDER
from kernels_bench_tools.records.device import current_device
from kernels_bench_tools.run.build import BuildOptions, check_workloads
from kernels_bench_tools.run.cache.entry import Entry
from kernels_bench_tools.run.cache.key import DATA, UPSTREAM, Fingerprints
from kernels_bench_tools.run.cache.store import CellCache
from kernels_bench_tools.run.environment.base import find_environment
from kernels_bench_tools.text import grouped

ORDER = "needs"
"""The ingredient that lists the needed cells; a change of it is shown as the cells that were added or removed."""


class PlannedAction(StrEnum):
    UNCHANGED = "unchanged"
    RUN = "run"
    MAY_RUN = "may run"
    """It runs unless the outputs of the cells before it are the same as last time."""
    UNSUPPORTED = "unsupported"
    """It cannot run on this machine, and is listed with the reason."""


class CellPlan(msgspec.Struct, kw_only=True):
    cell: str
    """``NOTEBOOK:CELL``."""
    action: PlannedAction = msgspec.field(name="verdict")
    reason: str = ""
    """Why its last result cannot be used, where that is not a changed ingredient."""
    changed: list[str] = msgspec.field(default_factory=list)
    """The changed ingredients: ``code``, ``header``, ``source of kernels-bench-tools``, …"""
    upstream: list[str] = msgspec.field(default_factory=list)
    """The cells that it needs and that would run, or may run, before it."""


def plan_build(project: Project, targets: Sequence[str], options: BuildOptions) -> list[CellPlan]:
    """Return what a build of ``targets`` with these options would do with each cell, in its order.

    Nothing runs, and nothing is written.
    """
    survey, cells = survey_targets(project, targets)
    check_workloads(project, [survey.graph.nodes[name] for name in cells], options.workloads)
    device, environment = current_device(), find_environment(options.environment)
    identity, measured = environment.identity(), (options.workloads, options.mode)
    prints = Fingerprints(project, survey.graph, device, environment.name, identity, *measured)
    counts = options.process_counts(device.kind)
    planner = _Planner(prints, CellCache(project.state), counts, options.retry_failed)
    return [planner.plan(survey.graph.nodes[name]) for name in cells]


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the names of the ingredients that were added, removed or changed."""
    names = [*after, *(name for name in before if name not in after)]
    changed = [name for name in names if before.get(name) != after.get(name)]
    moved = any(name.startswith(UPSTREAM) and (name in before) != (name in after) for name in changed)
    return [name for name in changed if not (moved and name == ORDER)]


@dataclass
class _Planner:
    """Plans cells in a possible order."""

    prints: Fingerprints
    cache: CellCache
    counts: Sequence[int]
    """Numbers of processes whose results a build accepts; it runs the last."""
    retry_failed: bool
    results: dict[CellName, Entry] = field(default_factory=dict)
    """The known results."""

    def plan(self, node: Node) -> CellPlan:
        upstream = [str(need) for need in node.needs if need not in self.results]
        found = None if upstream else self._find(node)
        if found is not None:
            self.results[node.name] = found
            return CellPlan(cell=str(node.name), action=PlannedAction.UNCHANGED)
        if unmet := unmet_requirement(node.notebook.front, self.prints.device):
            return CellPlan(cell=str(node.name), action=PlannedAction.UNSUPPORTED, reason=unmet)
        action = PlannedAction.MAY_RUN if upstream else PlannedAction.RUN
        changed = self._changed(node, known=not upstream)
        reason = self._reason(node, known=not upstream)
        return CellPlan(cell=str(node.name), action=action, reason=reason, changed=changed, upstream=upstream)

    def _find(self, node: Node) -> Entry | None:
        entries = (self.cache.find(key, node.name) for key in self._keys(node))
        return next((entry for entry in entries if entry is not None and self._is_final(entry)), None)

    def _is_final(self, entry: Entry) -> bool:
        return entry.is_final(retry_failed=self.retry_failed)

    def _keys(self, node: Node) -> list[str]:
        return [self.prints.key(node, self.results, count) for count in self.counts]

    def _reason(self, node: Node, known: bool) -> str:
        """Return why a cell's last result cannot be used; ``known`` is whether its key is known."""
        last_key, last = self.cache.last_key(node.name), self.cache.last(node.name)
        keys = self._keys(node) if known else []
        for key in (*keys, last_key):
            if key in self.cache.damaged:
                return f"damaged entry ({self.cache.damaged[key]})"
        entry = self.cache.find(keys[-1]) if keys else last
        if entry is not None and not self._is_final(entry):
            return f"last run failed ({entry.result.status.value})"
        if not last_key:
            return "never ran"
        if last is None and (self.cache.folder / last_key).is_dir():
            return "its result was stored by another version of kbt"
        return "" if last is not None else "its result is no longer stored"

    def _changed(self, node: Node, known: bool) -> list[str]:
        """Return what changed since a cell's last result; outputs of other cells only if the key is ``known``."""
        last = self.cache.last(node.name)
        if last is None:
            return []
        before = last.result.parts
        if known:
            after = [self.prints.parts(node, self.results, count) for count in self.counts]
        else:
            before = {name: digest for name, digest in before.items() if not name.startswith(UPSTREAM)}
            after = [self.prints.own_parts(node, count) for count in self.counts]
        return min((differences(before, parts) for parts in after), key=len)


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
