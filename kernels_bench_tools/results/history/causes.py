"""Measurements of a row, what they depend on, and what differs between two of them: the causes of another time."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from msgspec.structs import replace

from kernels_bench_tools.estimate import Estimate
from kernels_bench_tools.git import Commit
from kernels_bench_tools.records.record import Environment, Provenance, Record, Status
from kernels_bench_tools.records.summary import CauseKind, Summary, results_of
from kernels_bench_tools.results.processes import by_workload, estimate, is_disturbed
from kernels_bench_tools.results.speedup import apart, readings
from kernels_bench_tools.text.numbers import deviation
from kernels_bench_tools.text.words import words

_NO_AXES = frozenset({"name", "set", "mode", "device", "seed"})
_DIGEST = 8
_SUPPORT = frozenset(
    words(
        "annotated-doc anyio attrs certifi charset-normalizer click cloudpickle colorama contourpy cycler execnet filelock"
        " fonttools fsspec h11 hf-xet httpcore httpcore2 httpx httpx2 huggingface_hub idna iniconfig jinja2 joblib"
        " kiwisolver markdown-it-py markupsafe matplotlib mdurl mpmath msgspec narwhals networkx nvidia-ml-py opt_einsum"
        " packaging pandas pillow pip pluggy protobuf psutil pygments pyparsing pytest python-dateutil pyyaml regex"
        " requests rich setuptools shellingham six sympy tqdm truststore typer typing_extensions urllib3 wheel"
    )
)
"""Packages that a cell may import and that have no kernels; torch and Triton are in the environment."""


class Cause(NamedTuple):
    kind: CauseKind
    detail: str = ""

    @property
    def short(self) -> str:
        """What differs, in the words of a sentence."""
        return self.detail if self.kind is CauseKind.TOOLCHAIN else self.kind.label

    def __str__(self) -> str:
        named = self.detail and self.kind in {CauseKind.TOOLCHAIN, CauseKind.DEVICE}
        return f"{self.kind.label}: {self.detail}" if named else self.kind.label


class RowName(NamedTuple):
    operator: str
    implementation: str
    device: str
    workload: str
    version: str = ""
    """Which of several is compared with one."""


Facts = Mapping[CauseKind, Mapping[str, str | float]]
"""What a time depends on, by name; what is not known is missing, and the readings are those of the device."""


@dataclass(frozen=True)
class Measurement:
    status: Status
    estimate: Estimate | None
    """The time in ms."""
    processes: int
    time: str
    """When it was measured."""
    facts: Facts
    on_cpu: bool = False


def causes(before: Measurement, after: Measurement) -> list[Cause]:
    """Return what differs between two measurements, as far as both tell; that nothing does if nothing does."""
    differing = []
    for kind in CauseKind:
        old, new = before.facts.get(kind, {}), after.facts.get(kind, {})
        if kind is CauseKind.CODE and "code" in old and "code" in new:
            old = {"code": old["code"]}  # else of the whole notebook, for old records
        if kind is CauseKind.DEVICE:
            sides = ({name: float(value) for name, value in side.items()} for side in (old, new))
            shares = apart(*sides, on_cpu=after.on_cpu)
            most = sorted(shares, key=lambda name: -abs(shares[name]))[:1]
            changed = [f"{name} {deviation(shares[name])}" for name in most]
        else:
            changed = [
                f"{name} {old[name]} → {value}"
                for name, value in new.items()
                if old.get(name, value) != value
            ]
        if changed:
            differing.append(Cause(kind, ", ".join(changed)))
    return differing or [Cause(CauseKind.NOTHING)]


def measurement_of(version: Version, harness: str = "") -> Measurement:
    """Return what the processes of a row measured; old records lack what measured, see :func:`harness_then`."""
    records = version.records
    first = next((record for record in records if record.outcome.ran), records[0])
    axes = {name: value for name, value in first.wl.items() if name not in _NO_AXES}
    timing = {"timer": first.lat_ms.timer.label, "cache": first.lat_ms.cache.label} if first.lat_ms else {}
    facts = _facts(first.env, replace(first.provenance, packages=version.packages), axes, timing, harness)
    status = max((record.outcome for record in records), key=lambda it: it.severity)
    if status is Status.OK and any(map(is_disturbed, records)):
        status = Status.DISTURBED
    on_cpu = first.device is not None and first.device.kind == "cpu"
    facts[CauseKind.DEVICE] = readings(records)
    return Measurement(status, estimate(records), len(records), first.ts, facts, on_cpu)


def points_of(summaries: Iterable[Summary]) -> dict[RowName, Measurement]:
    measurements = {}
    for operator, view, row, about, point in results_of(summaries):
        if about.name and point.status is not Status.ABSENT:
            axes = {**about.axes, "dtype": about.dtype}
            timing = {"timer": point.timer.label, "cache": point.cache.label} if point.p50_ms else {}
            facts = _facts(row.environment, row.provenance, axes, timing, "")
            facts[CauseKind.DEVICE] = {f"peak {name}": value for name, value in view.ceilings.items()}
            name = RowName(operator, row.implementation, view.device.slug, point.workload)
            of_point = (point.status, point.latency, point.processes, point.measured)
            measurements[name] = Measurement(*of_point, facts, view.device.kind == "cpu")
    return measurements


def _facts(
    env: Environment,
    then: Provenance,
    axes: Mapping[str, object],
    timing: Mapping[str, str],
    tree: str,
) -> dict[CauseKind, Mapping[str, str | float]]:
    toolchain = {
        name: version
        for name, version in then.packages.items()
        if name.lower() not in _SUPPORT and name not in {"torch", "triton"}
    }
    toolchain |= {"torch": env.torch, "Triton": env.triton, "CUDA": env.cuda, "driver": env.driver}
    toolchain |= {kernel.repo: (kernel.commit or kernel.digest)[:_DIGEST] for kernel in then.hub}
    harness = {"version": then.harness, "modules": then.harness_digest[:_DIGEST], **timing}
    if not then.harness_digest:
        harness["tree"] = tree[:_DIGEST]
    facts = {
        CauseKind.CODE: {"code": then.code_digest[:_DIGEST], "notebook": then.notebook_digest[:_DIGEST]},
        CauseKind.OPERATOR: {
            "module": then.operator_digest[:_DIGEST],
            **{name: str(axes[name]) for name in axes},
        },
        CauseKind.TOOLCHAIN: toolchain,
        CauseKind.HARNESS: harness,
    }
    return {kind: {name: it for name, it in values.items() if it} for kind, values in facts.items()}


@dataclass(frozen=True)
class Version:
    """The records of a row at one time."""

    records: Sequence[Record]
    packages: Mapping[str, str]
    commit: Commit | None = None
    """Which brought them."""

    @property
    def origin(self) -> str:
        """The commit whose files measured it; empty if it is not known."""
        then = self.records[0].provenance
        return "" if then.dirty else then.commit


def rows_of(records: Sequence[Record]) -> dict[str, Version]:
    packages = {record.run: record.provenance.packages for record in reversed(records)}
    return {name: Version(own, packages[own[0].run]) for name, own in by_workload(records)[0].items()}
