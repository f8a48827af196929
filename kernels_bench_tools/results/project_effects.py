"""The committed effects of a project, by model, implementation and device."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kernels_bench_tools.records.committed import effect_part
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.model import model_and_framework, phase_sizes
from kernels_bench_tools.results.effects import Breakdown, EffectRow, EffectSummary, breakdown_of, read_effect
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
        files = self.files_with(operator, implementation)
        return sorted({model_and_framework(file.parent.name)[0] for file in files if self._summaries[file]})

    @cached_property
    def _summaries(self) -> dict[Path, EffectSummary | None]:
        return {file: read_effect(file) for file in self.files}


@dataclass(frozen=True)
class DeviceEffects:
    """What was measured of a model on a device."""

    device: Device
    summaries: Sequence[EffectSummary]

    @cached_property
    def phases(self) -> dict[str, list[tuple[EffectSummary, list[EffectRow]]]]:
        """The summaries with their rows by phase: passes over most tokens first, training last."""
        found = grouped(
            (phase, (summary, rows)) for summary in self.summaries for phase, rows in summary.phases.items()
        )

        def order(phase: str) -> tuple[bool, int, int]:
            sizes = phase_sizes(phase)
            return sizes.trains, -sizes.tokens, sizes.sequences

        return {phase: found[phase] for phase in sorted(found, key=order)}

    @cached_property
    def breakdowns(self) -> dict[str, Breakdown]:
        """Where the time of each phase goes: of the whole model if that was measured, and the newest."""
        found: dict[str, tuple[bool, str, Breakdown]] = {}
        for phase, summaries in self.phases.items():
            for summary, rows in summaries:
                if breakdown := breakdown_of(rows):
                    one = (not rows[0].effect.layers, summary.measured, breakdown)
                    found[phase] = max(one, found.get(phase, one), key=lambda it: it[:2])
        return {phase: breakdown for phase, (*_, breakdown) in found.items()}

    def best(self, phase: str) -> tuple[EffectSummary, EffectRow] | None:
        """Return the shortest pass of the whole model, as it is run; None if none was measured."""
        passes = [
            (summary, row)
            for summary, rows in self.phases.get(phase, ())
            for row in rows
            if row.tokens_per_s and not row.effect.layers
        ]
        return min(passes, key=lambda one: one[1].candidate_ms, default=None)

    @property
    def failed(self) -> list[EffectSummary]:
        """What could not be measured."""
        return [one for one in self.summaries if not one.rows]


def effects_by_device(summaries: Iterable[EffectSummary]) -> list[DeviceEffects]:
    """Return what was measured of a model, by device."""
    found = grouped((summary.device.slug, summary) for summary in summaries)
    return [DeviceEffects(own[0].device, own) for own in found.values()]
