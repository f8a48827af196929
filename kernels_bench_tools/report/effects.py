"""Committed effects of implementations on models, for the pages of both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from markupsafe import Markup

from kernels_bench_tools.records.committed import effect_part
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.model import model_and_framework, phase_sizes
from kernels_bench_tools.report.chart import inline_chart
from kernels_bench_tools.report.operators import OperatorReport, notebook_title
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.report.paths import page_path
from kernels_bench_tools.results.effects import (
    Breakdown,
    EffectRow,
    EffectSummary,
    breakdown_of,
    draw_effect,
    read_effect,
)
from kernels_bench_tools.text import grouped


@dataclass(frozen=True)
class Effects:
    """The committed effects of a project, which are read and drawn only for pages that show them."""

    files: Sequence[Path] = ()

    def files_of(self, model: str) -> list[Path]:
        """Return the files of a model, including those measured in transformers."""
        return [file for file in self.files if model_and_framework(file.parent.name)[0] == model]

    def of(self, model: str) -> list[EffectSummary]:
        """Return what was measured of a model: GPUs first, then by device and implementation."""
        found = [one for file in self.files_of(model) if (one := self._summaries[file])]
        return sorted(found, key=lambda one: (one.device.kind == "cpu", one.device.slug))

    def files_with(self, operator: str, implementation: str) -> list[Path]:
        """Return the files of an implementation, alone or together with others."""
        part = effect_part(f"{operator}/{implementation}")
        return [file for file in self.files if part in file.stem.split("+")]

    def models_with(self, operator: str, implementation: str) -> list[str]:
        """Return the models in which an implementation was measured."""
        files = self.files_with(operator, implementation)
        return sorted({model_and_framework(file.parent.name)[0] for file in files if self._summaries[file]})

    @cached_property
    def _summaries(self) -> dict[Path, EffectSummary | None]:
        return {file: read_effect(file) for file in self.files}


@dataclass(frozen=True)
class Candidate:
    """Implementations that were measured together in a model, with the notebook of each that the project still has."""

    summary: EffectSummary
    titles: Sequence[tuple[str, str]]
    """Title and URL of each, the URL empty without a page."""
    is_stale: bool
    ladders: dict[str, Markup]
    """Charts by phase for which something was predicted; none if they could not be drawn."""

    @property
    def framework(self) -> str:
        """Return whose modules computed the model; empty for this project's."""
        return model_and_framework(self.summary.model)[1]


@dataclass(frozen=True)
class DeviceEffects:
    """What was measured of a model on a device."""

    device: Device
    candidates: Sequence[Candidate]

    @cached_property
    def phases(self) -> dict[str, list[tuple[Candidate, list[EffectRow]]]]:
        """The rows of each candidate by phase: passes over most tokens first, training last."""
        found = grouped(
            (phase, (candidate, rows))
            for candidate in self.candidates
            for phase, rows in candidate.summary.phases.items()
        )

        def order(phase: str) -> tuple[bool, int, int]:
            sizes = phase_sizes(phase)
            return sizes.trains, -sizes.tokens, sizes.sequences

        return {phase: found[phase] for phase in sorted(found, key=order)}

    @cached_property
    def breakdowns(self) -> dict[str, Breakdown]:
        """Where the time of each phase goes: of the whole model if that was measured, and the newest."""
        found: dict[str, tuple[bool, str, Breakdown]] = {}
        for phase, candidates in self.phases.items():
            for candidate, rows in candidates:
                if breakdown := breakdown_of(rows):
                    one = (not rows[0].effect.layers, candidate.summary.measured, breakdown)
                    found[phase] = max(one, found.get(phase, one), key=lambda it: it[:2])
        return {phase: breakdown for phase, (*_, breakdown) in found.items()}

    def best(self, phase: str) -> tuple[Candidate, EffectRow] | None:
        """Return the shortest pass of the whole model, as it is run; None if none was measured."""
        passes = [
            (candidate, row)
            for candidate, rows in self.phases.get(phase, ())
            for row in rows
            if row.tokens_per_s and not row.effect.layers
        ]
        return min(passes, key=lambda one: one[1].candidate_ms, default=None)

    @property
    def failed(self) -> list[Candidate]:
        """The candidates that could not be measured."""
        return [one for one in self.candidates if not one.summary.rows]


def device_effects(
    effects: Effects, model: str, operators: Iterable[OperatorReport], page: Page
) -> list[DeviceEffects]:
    """Return what a model's page shows of effects, by device."""
    by_name = {operator.folder.rpartition("/")[2]: operator for operator in operators}
    found = grouped(
        (summary.device.slug, _candidate(summary, by_name, page)) for summary in effects.of(model)
    )
    return [DeviceEffects(candidates[0].summary.device, candidates) for candidates in found.values()]


def _candidate(summary: EffectSummary, operators: dict[str, OperatorReport], page: Page) -> Candidate:
    notebooks = {}
    for name in summary.implementations:
        folder, _, implementation = name.rpartition("/")
        operator = operators.get(folder.rpartition("/")[2])
        notebooks[name] = operator.notebook_of(implementation) if operator else None
    titles = [
        (notebook_title(notebook), page.url(page_path(notebook.path)))
        if notebook
        else (name.rpartition("/")[2], "")
        for name, notebook in notebooks.items()
    ]
    code = {name: [cell.code for cell in one.cells] if one else [] for name, one in notebooks.items()}
    ladders = {}
    if summary.predicted_phases and (drawn := draw_effect(summary)):
        panels, _ = inline_chart(drawn, "", page.unique_id, lambda _: titles[0][1] or None)
        ladders = {panel.view.removeprefix(f"{summary.device.slug}-"): panel.figure for panel in panels}
    return Candidate(summary, titles, summary.has_other_code(code), ladders)
