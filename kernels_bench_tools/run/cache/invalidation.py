"""Which cells an edit outdates: those whose own code, or anything that leads to it, is another one now."""

from __future__ import annotations

from pathlib import Path

from kernels_bench_tools.notebooks.check import survey_project
from kernels_bench_tools.notebooks.graph import CellName
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.run.cache.key import Fingerprints
from kernels_bench_tools.run.cache.store import Entry, StoredResult
from kernels_bench_tools.run.environment.base import find_environment
from kernels_bench_tools.schema.device import current_device
from kernels_bench_tools.schema.record import Status

Ingredients = dict[CellName, str]
"""A digest of everything that leads to each cell."""


def digest_ingredients(project: Project, environment: str) -> Ingredients | None:
    """Return a digest of everything that leads to each cell, by the rules of the cache.

    In the place of what a needed cell leaves stands what that cell is made of: whether it will leave the same
    again is not known before it has run.

    Args:
        project: The project, as it is on the disk now.
        environment: ``"uv"`` or ``"current"``.

    Returns:
        The digests; None if something is wrong with a notebook, so that nothing could be built now.
    """
    survey = survey_project(project)
    if survey.problems():
        return None
    prints = Fingerprints(project, survey.graph, current_device(), find_environment(environment))
    digests: Ingredients = {}
    stand_ins: dict[CellName, Entry] = {}
    for name, node in survey.graph.nodes.items():
        digests[name] = prints.key(node, stand_ins)
        result = StoredResult(cell=str(name), status=Status.OK, artifacts={"": digests[name]})
        stand_ins[name] = Entry(Path(), result)
    return digests


def outdated_cells(before: Ingredients | None, now: Ingredients | None) -> set[CellName]:
    """Return the cells that are not what they were, or are no more.

    While something is wrong with a notebook, none are: its author is still writing, and the next build will not
    start before that is mended.
    """
    if before is None or now is None:
        return set()
    return {name for name, digest in before.items() if digest != now.get(name)}
