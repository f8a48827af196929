"""Views: workloads of one function, set and mode on a device. Nothing is compared, ranked or averaged across views."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kernels_bench_tools.records.request import RANDOM
from kernels_bench_tools.records.summary import WorkloadSummary
from kernels_bench_tools.text.names import make_unique, slugify

_SETS = ("default", "large", "decode", "cpu", "smoke")
_MODES = ("", "fwd", "bwd", "fwd_bwd")
_FORWARD = frozenset({"", "fwd"})
_NOT_AXES = frozenset({"name", "dtype", "device", "seed", "set", "group", "mode"})
_WHOLE_WORDS = {"len": "Length", "dim": "Dim", "num": "Number"}


class View(NamedTuple):
    """What the workloads of a view have in common; a part is empty where records do not name one."""

    group: str = ""
    set: str = ""
    mode: str = ""
    """``bwd`` or ``fwd_bwd``; empty for the forward pass."""

    @property
    def title(self) -> str:
        return " · ".join(part for part in self if part) or "other"


DRAWN = RANDOM.rstrip(":")
"""The set of all workloads that were drawn, whatever their seed, in views."""


def view_of(workload: Mapping[str, Any]) -> View:
    group, name, mode = (str(workload.get(part) or "") for part in ("group", "set", "mode"))
    return View(group, DRAWN if name.startswith(RANDOM) else name, "" if mode in _FORWARD else mode)


def group_order(implementations: Iterable[Sequence[str]]) -> list[str]:
    """Return an operator's groups: that of most implementations first, ties as in an implementation, then by name."""
    known = sorted(implementations, key=lambda groups: (-len(groups), groups))
    seen = list(dict.fromkeys(group for groups in known for group in groups))
    return sorted(seen, key=lambda group: -sum(group in groups for groups in known))


def in_view_order(views: Collection[View], groups: Sequence[str]) -> list[View]:
    """Return views in order: groups as given, sets from the usual to the special, forward before backward."""

    def key(view: View) -> tuple[tuple[int, str], ...]:
        return _position(view.group, groups), _position(view.set, _SETS), _position(view.mode, _MODES)

    return sorted(views, key=key)


def _position(name: str, known: Sequence[str]) -> tuple[int, str]:
    """Return a key that sorts the known names first, then others by name, then none."""
    if name in known:
        return known.index(name), ""
    return (len(known), name) if name else (len(known) + 1, "")


def titles_and_keys(views: Sequence[View]) -> list[tuple[str, str]]:
    """Return each view's title, and its key for ids: both empty for the only view, the key for the first one."""
    if len(views) == 1:
        return [("", "")]
    keys: list[str] = []
    for view in views:
        keys.append(make_unique(slugify(view.title), keys))
    return [(view.title, key if at else "") for at, (view, key) in enumerate(zip(views, keys, strict=True))]


class Labels(NamedTuple):
    ticks: list[str]
    """One for each workload, all different."""
    axis: str
    """Title: the axes that vary, and the values that all workloads share."""


def axis_title(name: str) -> str:
    """Return the title of an axis's column.

    >>> axis_title("seq_len"), axis_title("batch")
    ('Seq Length', 'Batch')
    """
    return " ".join(_WHOLE_WORDS.get(word, word.capitalize()) for word in name.split("_") if word) or name


def workload_summary(workload: Mapping[str, Any]) -> WorkloadSummary:
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
    return list(dict.fromkeys(name for workload in workloads for name in workload.axes))


def in_order(workloads: Sequence[WorkloadSummary]) -> list[WorkloadSummary]:
    """Return the workloads sorted by their axes; settings such as ``causal`` before sizes, or lines would zigzag."""
    names = axis_names(workloads)
    values = {name: [each.axes.get(name) for each in workloads] for name in names}
    sizes = [name for name in names if not all(isinstance(it, bool | str | None) for it in values[name])]
    order = [name for name in names if name not in sizes] + sizes

    def key(workload: WorkloadSummary) -> tuple[Any, ...]:
        return *(_rank(workload.axes.get(name)) for name in order), workload.dtype, workload.name

    return sorted(workloads, key=key)


def _rank(value: Any) -> tuple[int, float, str]:
    """Return a key that orders numbers before words before None."""
    if isinstance(value, int | float):
        return 0, float(value), ""
    return (2, 0.0, "") if value is None else (1, 0.0, str(value))


def labels(workloads: Sequence[WorkloadSummary]) -> Labels:
    """Return short labels of the axes that vary; the workloads' names where those are not enough."""
    names = axis_names(workloads)
    values = {name: [_text(name, workload.axes.get(name)) for workload in workloads] for name in names}
    if any(workload.dtype for workload in workloads):
        values["dtype"] = [workload.dtype.removeprefix("torch.") or "–" for workload in workloads]
    varying = [name for name, of_axis in values.items() if len({*of_axis}) > 1]
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
