"""Views: the workloads of a device that are compared with each other, and what people call them.

A view holds the workloads of one function of an operator, one workload set and one mode. Nothing is compared, ranked
or averaged across views: a decode shape says nothing about a training shape, nor SwiGLU about GELU.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from kernels_bench_tools.text import slugify

_SETS = ("default", "large", "decode", "cpu", "smoke")
_MODES = ("", "fwd", "bwd", "fwd_bwd")
_FORWARD = frozenset({"", "fwd"})


class View(NamedTuple):
    """What the workloads of a view have in common; each part is empty where records do not name one."""

    group: str = ""
    set: str = ""
    mode: str = ""
    """``bwd`` or ``fwd_bwd``; empty for the forward pass."""

    @property
    def title(self) -> str:
        """Return what people call it beside other views of its device."""
        return " · ".join(part for part in self if part) or "other"


def view_of(workload: Mapping[str, Any]) -> View:
    """Return the view of a record's workload."""
    group, name, mode = (str(workload.get(part) or "") for part in ("group", "set", "mode"))
    return View(group, name, "" if mode in _FORWARD else mode)


def group_order(implementations: Iterable[Sequence[str]]) -> list[str]:
    """Return an operator's groups in the order of their views.

    Which function matters most, records do not say; the one that most implementations compute comes first. Groups of
    as many are in the order in which an implementation of several lists them, else by name.

    Args:
        implementations: For each implementation its groups, in the order of its workloads; in any order.
    """
    known = sorted(implementations, key=lambda groups: (-len(groups), groups))
    seen = list(dict.fromkeys(group for groups in known for group in groups))
    return sorted(seen, key=lambda group: -sum(group in groups for groups in known))


def in_view_order(views: Collection[View], groups: Sequence[str]) -> list[View]:
    """Return views in order: groups as given, sets from the usual to the special, forward before backward."""

    def key(view: View) -> tuple[int, tuple[int, str], tuple[int, str]]:
        group = groups.index(view.group) if view.group in groups else len(groups)
        return group, _place(view.set, _SETS), _place(view.mode, _MODES)

    return sorted(views, key=key)


def _place(name: str, known: Sequence[str]) -> tuple[int, str]:
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
        key, again = slugify(view.title), 2
        while key in keys:
            key, again = f"{slugify(view.title)}-{again}", again + 1
        keys.append(key)
    return [(view.title, key if at else "") for at, (view, key) in enumerate(zip(views, keys, strict=True))]
