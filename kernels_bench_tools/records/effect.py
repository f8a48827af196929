"""Summaries of effects: what implementations change in a model, by level. Times are milliseconds."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from kernels_bench_tools.records.build import TRANSFORMERS, code_digest
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.model import phase_sizes
from kernels_bench_tools.records.record import Effect, Part, Provenance
from kernels_bench_tools.text import grouped, size

MODEL_LEVEL = 4
"""Level of a whole model."""
LISTED = 10
"""Paths of instances that were not called which a record lists."""


def model_of_framework(model: str, framework: str) -> str:
    """Return the name that records of effects have for a model: that of another framework is a model of its own."""
    return f"{model}-{framework}" if framework else model


def model_and_framework(name: str) -> tuple[str, str]:
    """Return a model and its framework, empty for this project's, from the name in records of effects."""
    model = name.removesuffix(f"-{TRANSFORMERS}")
    return model, TRANSFORMERS if model != name else ""


class EffectVerdict(StrEnum):
    """How a measured speed-up relates to noise and to the prediction."""

    CONFIRMED = "confirmed"
    """As predicted."""
    SHORT = "short"
    """Less than predicted."""
    OVER = "over"
    """More than predicted."""
    FASTER = "faster"
    """Of a single kernel, for which nothing is predicted."""
    BELOW_NOISE = "below noise"
    """Not distinguishable from no change."""
    REGRESSED = "regressed"
    """Slower."""
    NONE = "no verdict"
    """Measured in too few processes."""


class EffectRow(msgspec.Struct, kw_only=True):
    """A level of a model with and without an implementation, over all processes."""

    effect: Effect
    """Of the first process, for its names and counts."""
    processes: int
    baseline_ms: float
    candidate_ms: float
    predicted: float | None
    """Speed-up; None for a single kernel."""
    speedup: float
    low: float | None
    high: float | None
    noise: float
    """Largest difference between two samples of the baseline in one process, as a share of its time."""
    verdict: EffectVerdict
    cause: str = ""
    """Why the verdict is not that of the prediction, in one line; empty if there is nothing to explain."""
    agreement: dict[str, float]
    """How the logits agree, or loss and gradients, for one row of a whole model."""
    peak_bytes: int | None = None
    """Memory of a pass with the implementation in addition to weights, inputs and cache, for one row of a whole model."""

    @property
    def tokens_per_s(self) -> tuple[float, float] | None:
        """New tokens a second without and with the implementation; None of what is not a whole pass as it is run."""
        if self.effect.level < MODEL_LEVEL or self.effect.module == "device":
            return None
        sizes = phase_sizes(self.effect.phase)
        tokens = 1000 * sizes.sequences * sizes.tokens
        return tokens / self.baseline_ms, tokens / self.candidate_ms

    @property
    def costs(self) -> list[tuple[str, str, str]]:
        """What a whole pass does besides taking time, as a name and the text without and with the implementation."""
        found = []
        if self.effect.baseline_launches is not None and self.effect.launches is not None:
            found.append(("kernels", f"{self.effect.baseline_launches:,}", f"{self.effect.launches:,}"))
        if self.effect.baseline_peak_bytes is not None and self.peak_bytes is not None:
            found.append(("peak memory", size(self.effect.baseline_peak_bytes), size(self.peak_bytes)))
        if self.tokens_per_s:
            without, having = self.tokens_per_s
            found.append(("tokens/s", f"{without:,.0f}", f"{having:,.0f}"))
        return found


class Breakdown(msgspec.Struct, kw_only=True):
    """Where the time of a forward pass without the implementation goes."""

    parts: list[Part]
    """The kernels, the longest first, and then what is outside of them."""
    idle: dict[str, float]
    """Milliseconds in which the device waits, by how the model was run: ``eager`` or ``CUDA graph``."""

    @property
    def total_ms(self) -> float:
        """Time of all parts."""
        return sum(part.ms for part in self.parts)

    @property
    def kernels(self) -> list[Part]:
        """The parts that were measured alone, too."""
        return [part for part in self.parts if part.alone_ms is not None]


def breakdown_of(rows: Iterable[EffectRow]) -> Breakdown | None:
    """Return where the time of a forward pass goes, given its rows; None if its kernels were not measured."""
    models = {row.effect.module: row for row in rows if row.effect.level == MODEL_LEVEL}
    parts = next((row.effect.parts for row in models.values() if row.effect.parts), None)
    if parts is None:
        return None
    device = models.pop("device", None)
    idle = {how: max(row.baseline_ms - device.baseline_ms, 0.0) for how, row in models.items() if device}
    return Breakdown(parts=parts, idle=idle)


class EffectSummary(msgspec.Struct, kw_only=True):
    """What an implementation, or several together, changes in a model on a device."""

    model: str
    implementations: list[str]
    """Each as ``operator/implementation``."""
    digests: dict[str, list[str]]
    """Of the code of each that was measured, see :func:`kernels_bench_tools.records.build.code_digest`; empty if not known."""
    device: Device
    provenance: Provenance
    """Provenance of the first record."""
    measured: str
    """Time of the newest record."""
    rows: list[EffectRow]
    """By phase, the levels of each in ascending order."""
    reason: str = ""
    """Why there are no rows."""

    @property
    def phases(self) -> dict[str, list[EffectRow]]:
        """The rows of each phase."""
        return grouped((row.effect.phase, row) for row in self.rows)

    def has_other_code(self, code: Mapping[str, Iterable[str]]) -> bool:
        """Return whether code has changed since a measurement; ``code`` has the cells of each implementation that exists."""
        return any(
            set(self.digests.get(name, ())) - {"", *map(code_digest, cells)}
            for name, cells in code.items()
            if cells
        )

    @property
    def predicted_phases(self) -> dict[str, list[EffectRow]]:
        """The rows of each phase of which anything was predicted; of the others only the whole model was measured."""
        return {phase: rows for phase, rows in self.phases.items() if any(row.predicted for row in rows)}
