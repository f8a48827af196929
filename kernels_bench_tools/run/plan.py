"""What a build would run, and why, and which notebooks changes since a revision affect; nothing runs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path

import msgspec

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.git import Repository
from kernels_bench_tools.notebooks.front_matter import unmet_requirement
from kernels_bench_tools.notebooks.graph import CellName, Graph
from kernels_bench_tools.notebooks.project import Project, find_project
from kernels_bench_tools.notebooks.survey import survey_project, survey_targets
from kernels_bench_tools.own_folders import temporary_folder
from kernels_bench_tools.own_process import PACKAGE_FOLDER
from kernels_bench_tools.records.device import current_device
from kernels_bench_tools.run.build import check_workloads
from kernels_bench_tools.run.cache.key import DATA, UPSTREAM, Fingerprints, with_processes
from kernels_bench_tools.run.cache.store import CellCache, Entry
from kernels_bench_tools.run.environment.base import find_environment
from kernels_bench_tools.run.options import BuildOptions
from kernels_bench_tools.run.process.reaper import reaper
from kernels_bench_tools.text.tables import grouped

ORDER = "needs"
"""The ingredient that lists the needed cells; a change of it is shown as the cells that were added or removed."""


class PlannedAction(StrEnum):
    UNCHANGED = "unchanged"
    RUN = "run"
    MAY_RUN = "may run"
    """It runs unless the outputs of the cells before it are the same as last time."""
    UNSUPPORTED = "unsupported"
    """It cannot run on this machine, and is listed with the reason."""
    BROKEN = "broken"
    """There is a mistake in its notebook."""


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
    nodes = survey.graph.nodes
    check_workloads(project, [nodes[name] for name in cells], options.request)
    device, identity = current_device(), find_environment(options.environment).identity()
    prints = Fingerprints(project, survey.graph, device, identity, options.request)
    counts = options.process_counts(device.kind)
    cache, results = CellCache(project.state), dict[CellName, Entry]()
    plans = []
    for name in cells:
        node, plan = nodes[name], CellPlan(cell=str(name), action=PlannedAction.UNCHANGED)
        plans.append(plan)
        if name.notebook in survey.broken:
            plan.action, plan.reason = PlannedAction.BROKEN, survey.broken[name.notebook][0]
            continue
        upstream = [str(need) for need in node.needs if need not in results]
        keys = [] if upstream else prints.keys(node, results, counts)
        digests = [key.digest for key in keys]
        entries = [entry for digest in digests if (entry := cache.find(digest, name))]
        final = [entry for entry in entries if entry.is_final(retry_failed=options.retry_failed)]
        if final:
            results[name] = final[0]
            continue
        if unmet := unmet_requirement(node.notebook.front, device):
            plan.action, plan.reason = PlannedAction.UNSUPPORTED, unmet
            continue
        plan.action, plan.upstream = PlannedAction.MAY_RUN if upstream else PlannedAction.RUN, upstream
        last_key, last = cache.last_key(name), cache.last(name)
        damaged = [cache.damaged[key] for key in (*digests, last_key) if key in cache.damaged]
        entry = cache.find(digests[-1]) if digests else last
        if damaged:
            plan.reason = f"damaged entry ({damaged[0]})"
        elif entry is not None and not entry.is_final(retry_failed=options.retry_failed):
            plan.reason = f"last run failed ({entry.result.status.value})"
        elif not last_key:
            plan.reason = "never ran"
        elif last is None and (cache.folder / last_key).is_dir():
            plan.reason = "its result was stored by another version of kbt"
        elif last is None:
            plan.reason = "its result is no longer stored"
        if last is not None:
            before = last.result.parts
            after = [key.parts for key in keys]
            if not keys:  # the outputs of other cells are not known
                after = with_processes(node, prints.own_parts(node), counts)
                before = {part: digest for part, digest in before.items() if not part.startswith(UPSTREAM)}
            plan.changed = min((differences(before, parts) for parts in after), key=len)
    return plans


def differences(before: Mapping[str, str], after: Mapping[str, str]) -> list[str]:
    """Return the names of the ingredients that were added, removed or changed."""
    names = [*after, *(name for name in before if name not in after)]
    changed = [name for name in names if before.get(name) != after.get(name)]
    moved = any(name.startswith(UPSTREAM) and (name in before) != (name in after) for name in changed)
    return [name for name in changed if not (moved and name == ORDER)]


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
    identity, package = find_environment(environment).identity(), PACKAGE_FOLDER.parent

    def fingerprints(project: Project, graph: Graph, package: Path) -> Fingerprints:
        return Fingerprints(project, graph, current_device(), identity, package=package)

    with temporary_folder(reaper().folder) as folder:
        files = repository.changed_files(commit, folder)
        if not files:
            return []
        earlier = folder / "tree"
        earlier.mkdir()
        repository.check_out(commit, earlier)
        root, before = earlier / project.root.relative_to(repository.top), None
        own = package.is_relative_to(repository.top)
        old_package = earlier / package.relative_to(repository.top) if own else package
        with suppress(KbtError):  # it was no project then
            then = find_project(root) if root.is_dir() else None
            if then and then.root == root:
                before = fingerprints(then, survey_project(then).graph, old_package)
        changed = _changed_cells(fingerprints(project, survey.graph, package), before, cells, files)
    by_notebook = grouped((cell.notebook, survey.graph.nodes[cell]) for cell in changed)
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


def _changed_cells(
    now: Fingerprints, before: Fingerprints | None, cells: Sequence[CellName], files: set[Path]
) -> dict[CellName, list[str]]:
    """Return what changed for each changed cell, in a possible order."""
    earlier = before.graph.nodes if before else {}
    changed: dict[CellName, list[str]] = {}
    for name in cells:
        node, old = now.graph.nodes[name], earlier.get(name)
        own, moved = ["name"], set[CellName]()
        if before is not None and old is not None:
            moved = {*node.needs} ^ {*old.needs}
            try:
                differing = differences(before.own_parts(old), now.own_parts(node))
                sources = now.sources(node)
                own = [part for part in differing if _is_tracked(now.project, part, sources, files)]
            except (KbtError, ValueError, OSError):  # its notebook was broken then
                own = ["code"]
        # The front matter of a needed notebook is an input of the cell.
        moved |= {
            need
            for need in node.foreign
            if need in earlier and earlier[need].notebook.front != now.graph.nodes[need].notebook.front
        }
        others = dict.fromkeys([*node.needs, *(old.needs if old else ())])
        upstream = [need for need in others if need in changed or need in moved]
        if own or upstream:
            own = [part for part in own if not (moved and part == ORDER)]
            changed[name] = [*own, *(f"{UPSTREAM}{need}" for need in upstream)]
    return changed


def _is_tracked(project: Project, part: str, sources: Mapping[str, Path], files: set[Path]) -> bool:
    """Return whether a change is in the repository: a push has no build products, and no files elsewhere."""
    if part.startswith(DATA):
        path = project.root / part.removeprefix(DATA)
        return bool({path, path.resolve()} & files)
    source = sources.get(part)
    return source is None or any(file == source or source in file.parents for file in files)
