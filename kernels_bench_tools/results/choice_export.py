"""What was chosen as data for an engine, and as a ``KernelConfig`` of transformers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

import msgspec

from kernels_bench_tools.records.model_workloads import axes_of
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import Point, Verdict
from kernels_bench_tools.results.choose import Measured, choose
from kernels_bench_tools.results.effects import EffectRow, EffectVerdict
from kernels_bench_tools.results.metrics import speedup_with_interval
from kernels_bench_tools.text import grouped


class _Layer(NamedTuple):
    """A layer of transformers for which the Hub has a kernel of which there are measurements."""

    operator: str
    implementation: str
    kernel: str
    version: int


_LAYERS = {
    "RMSNorm": _Layer("rms_norm", "liger_rms_norm", "kernels-community/liger-kernels:LigerRMSNorm", 3),
    "SwiGLUMLP": _Layer("activation", "liger_swiglu", "kernels-community/liger-kernels:LigerSwiGLUMLP", 3),
    "rotary_pos_emb": _Layer(
        "rotary", "hf_kernels_rotary", "kernels-community/rotary:apply_rotary_transformers", 2
    ),
}
"""By the names of transformers' own table, with the implementation here that launches the same kernels."""


class Line(msgspec.Struct, kw_only=True):
    """The fastest implementation of a workload, and what not to use for it."""

    operator: str
    workload: str
    axes: dict[str, int | bool | str]
    phases: list[str] = []
    """Of the model that has this workload, or the one nearest to it."""
    near: str = ""
    fastest: str
    ms: float | None
    speedup: float | None
    speedup_low: float | None
    speedup_high: float | None
    verdict: Verdict
    ties: list[str]
    avoid: dict[str, str]
    """Implementations that are slower than the baseline or failed, and how."""
    records: dict[str, str] = {}
    """Files with the records of the implementations that are named, within the project."""

    @property
    def named(self) -> list[str]:
        return [self.fastest, *self.ties, *self.avoid]


class EffectLine(NamedTuple):
    """What implementations change in a whole model."""

    implementations: list[str]
    row: EffectRow
    records: str

    @property
    def avoid(self) -> bool:
        return self.row.verdict is EffectVerdict.REGRESSED

    def as_data(self) -> dict[str, object]:
        row = self.row
        named = {"implementations": self.implementations, "phase": row.effect.phase, "how": row.effect.module}
        speedup = {"speedup": row.speedup, "low": row.low, "high": row.high, "verdict": row.verdict}
        return {**named, **speedup, "avoid": self.avoid, "records": self.records}

    def __str__(self) -> str:
        row = self.row
        speedup = speedup_with_interval(row.speedup, row.low, row.high)
        where = f"{', '.join(self.implementations)}, {row.effect.phase}, {row.effect.module}"
        return f"{where}: {speedup}, {row.verdict.label}{': do not use it so' if self.avoid else ''}"


def line_of(measured: Measured, phases: Sequence[str] = ()) -> Line | None:
    """Return the line of a measured workload; None if nothing can be chosen for it."""
    choice = choose(measured)
    if choice is None:
        return None
    return Line(
        operator=measured.operator,
        workload=measured.workload.name,
        axes=axes_of(measured.workload),
        phases=list(phases),
        near=measured.near,
        fastest=choice.implementation,
        ms=choice.p50_ms,
        speedup=choice.speedup,
        speedup_low=choice.speedup_low,
        speedup_high=choice.speedup_high,
        verdict=choice.verdict,
        ties=choice.ties,
        avoid={name: why for name, point in _points(measured).items() if (why := _reason_against(point))},
    )


def _points(measured: Measured) -> dict[str, Point]:
    return {row.implementation: row.points[measured.number] for row in measured.view.rows}


def _reason_against(point: Point) -> str:
    if point.status is Status.OK:
        speedup = speedup_with_interval(point.speedup, point.speedup_low, point.speedup_high)
        return speedup if point.verdict is Verdict.SLOWER else ""
    return "" if point.status in {Status.UNSUPPORTED, Status.ABSENT, Status.INVALID} else point.status.label


def kernel_config(
    title: str, workloads: Mapping[str, Sequence[tuple[str, Measured]]], effects: Iterable[EffectLine]
) -> str:
    """Return Python code with a ``KernelConfig`` of the layers whose kernel is faster for some and slower for none.

    ``workloads`` are those of each operator in the model, with the phase.
    """
    lines, notes = [], []
    for name, layer in _LAYERS.items():
        found = [
            (phase, measured.workload.name, point)
            for phase, measured in workloads.get(layer.operator, ())
            if (point := _points(measured).get(layer.implementation))
        ]
        verdicts = {point.verdict for _, _, point in found}
        taken = Verdict.FASTER in verdicts and Verdict.SLOWER not in verdicts
        taken = taken and all(point.status is Status.OK for *_, point in found)
        notes.append(
            f"# {name}: {layer.operator}/{layer.implementation} {'' if taken else 'is left out'}".rstrip()
        )
        notes += [
            f"#   {', '.join(phases)}, {workload}: {speedup}"
            for (workload, speedup), phases in grouped(
                ((workload, _said(point)), phase) for phase, workload, point in found
            ).items()
        ] or ["#   no records"]
        if taken:
            lines.append(f'        "{name}": {{"cuda": ("{layer.kernel}", {{"version": {layer.version}}})}},')
    measured_effects = [f"#   {one}" for one in effects]
    whole = ["# Measured in the whole model:", *measured_effects] if measured_effects else []
    code = ["from transformers import KernelConfig", "", "kernel_config = KernelConfig("]
    mapping = ["    {", *lines, "    },"] if lines else ["    {},"]
    end = ["    inherit_mapping=False,", ")", "# model.set_use_kernels(True, kernel_config)"]
    return "\n".join([f"# {title}", *notes, *whole, *code, *mapping, *end])


def _said(point: Point) -> str:
    if point.status is not Status.OK:
        return point.status.label
    speedup = speedup_with_interval(point.speedup, point.speedup_low, point.speedup_high)
    return f"{speedup}, {point.verdict.label}"
