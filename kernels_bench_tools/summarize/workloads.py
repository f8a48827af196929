"""Workloads as people read them: their axes, their order, and labels that show only what varies."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kernels_bench_tools.schema.summary import WorkloadSummary
from kernels_bench_tools.summarize.views import view_of

_NOT_AXES = frozenset({"name", "dtype", "device", "seed", "set", "group", "mode"})
_WHOLE_WORDS = {"len": "Length", "dim": "Dim", "num": "Number"}


class Labels(NamedTuple):
    """How a chart names its workloads."""

    ticks: list[str]
    """One for each workload, all different."""
    axis: str
    """What the ticks are values of, and what all workloads have in common."""


def axis_title(name: str) -> str:
    """Return an axis as a column is titled.

    >>> axis_title("seq_len"), axis_title("batch")
    ('Seq Length', 'Batch')
    """
    return " ".join(_WHOLE_WORDS.get(word, word.capitalize()) for word in name.split("_") if word) or name


def workload_summary(workload: Mapping[str, Any]) -> WorkloadSummary:
    """Return the workload of a record: its name, dtype, view, and axes in the record's order."""
    view = view_of(workload)
    return WorkloadSummary(
        name=str(workload.get("name", "")),
        dtype=str(workload.get("dtype", "")),
        set=view.set,
        group=view.group,
        mode=view.mode,
        axes={name: value for name, value in workload.items() if name not in _NOT_AXES},
    )


def axis_names(workloads: Iterable[WorkloadSummary]) -> list[str]:
    """Return the names of all axes, in the order in which they first appear."""
    return list(dict.fromkeys(name for workload in workloads for name in workload.axes))


def in_order(workloads: Sequence[WorkloadSummary]) -> list[WorkloadSummary]:
    """Return the workloads sorted by their axes, numbers as numbers, so that a chart's line rises.

    Axes that are switches or words, such as ``causal``, count before those that are sizes, or the line would go up
    and down between the two.
    """
    names = axis_names(workloads)
    settings = [name for name in names if _is_setting(workload.axes.get(name) for workload in workloads)]
    order = settings + [name for name in names if name not in settings]

    def key(workload: WorkloadSummary) -> tuple[Any, ...]:
        return *(_rank(workload.axes.get(name)) for name in order), workload.dtype, workload.name

    return sorted(workloads, key=key)


def _is_setting(values: Iterable[Any]) -> bool:
    return all(value is None or isinstance(value, bool | str) for value in values)


def _rank(value: Any) -> tuple[int, float, str]:
    """Return a key that orders numbers before words before nothing."""
    if isinstance(value, int | float):
        return 0, float(value), ""
    return (2, 0.0, "") if value is None else (1, 0.0, str(value))


def labels(workloads: Sequence[WorkloadSummary]) -> Labels:
    """Return short labels of the axes that vary; the workloads' names where those are not enough."""
    names = axis_names(workloads)
    values = {name: [_text(name, workload.axes.get(name)) for workload in workloads] for name in names}
    if any(workload.dtype for workload in workloads):
        values["dtype"] = [workload.dtype.removeprefix("torch.") or "–" for workload in workloads]
    varying = [name for name, found in values.items() if len(set(found)) > 1]
    fixed = [name for name in values if name not in varying]
    common = ", ".join(_fixed(name, values[name][0]) for name in fixed)
    ticks = [" × ".join(parts) for parts in zip(*(values[name] for name in varying), strict=True)]
    if len(set(ticks)) < len(workloads):
        return Labels([workload.name for workload in workloads], common or "workload")
    return Labels(ticks, " × ".join(varying) + (f"   ({common})" if common else ""))


def _fixed(name: str, text: str) -> str:
    return text if name == "dtype" or text in {name, f"not {name}"} else f"{name} {text}"


def _text(name: str, value: Any) -> str:
    if isinstance(value, bool):
        return name if value else f"not {name}"
    return "–" if value is None else f"{value:g}" if isinstance(value, float) else str(value)
