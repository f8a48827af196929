"""What a build would run, and why, without running anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import msgspec

from kernels_bench_tools.notebooks.front_matter import unmet_requirement
from kernels_bench_tools.notebooks.graph import CellName, Node
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.notebooks.survey import survey_targets
from kernels_bench_tools.records.device import current_device
from kernels_bench_tools.run.build import BuildOptions, check_workloads
from kernels_bench_tools.run.cache.entry import Entry
from kernels_bench_tools.run.cache.key import UPSTREAM, Fingerprints
from kernels_bench_tools.run.cache.store import CellCache
from kernels_bench_tools.run.environment.base import find_environment

ORDER = "needs"
"""The ingredient that lists the needed cells; a change of it is shown as the cells that were added or removed."""


class PlannedAction(StrEnum):
    """What a build would do with a cell."""

    UNCHANGED = "unchanged"
    RUN = "run"
    MAY_RUN = "may run"
    """It runs unless the outputs of the cells before it are the same as last time."""
    UNSUPPORTED = "unsupported"
    """It cannot run on this machine, and is listed with the reason."""


class CellPlan(msgspec.Struct, kw_only=True):
    """What a build would do with a cell, and why."""

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
        """Return what a build would do with a cell."""
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
