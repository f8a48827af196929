"""Were the functions that measure and judge replaced? Bound before an implementation is loaded."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from functools import cache
from inspect import getattr_static
from types import BuiltinFunctionType, FunctionType
from typing import Any, NamedTuple

import torch
import torch.autograd.profiler
import torch.profiler
from torch import Tensor

_KINDS = (FunctionType, BuiltinFunctionType, type, staticmethod, classmethod, property, type(cache(int)))
"""Other values are state, which may well change."""

_JUDGES = (
    *("abs", "allclose", "clone", "contiguous", "copy_", "data_ptr", "double", "eq", "equal", "isfinite"),
    *("isnan", "item", "max", "mul", "sub", "sum", "to", "tolist", "untyped_storage", "view", "where"),
    *("__add__", "__eq__", "__getitem__", "__gt__", "__le__", "__lt__", "__mul__", "__sub__", "__truediv__"),
)
_OURS = "kernels_bench_tools"


class Binding(NamedTuple):
    """What a name means."""

    value: Any
    code: Any
    """Of a function that is written in Python."""
    of_class: bool


class Bindings:
    """What the names that measuring depends on mean, at the time this is made."""

    def __init__(self) -> None:
        self._owners = list(_owners())
        self._bound = dict(_bindings(self._owners))

    def replaced(self) -> list[str]:
        """Return the names that now mean something else, or whose code was exchanged."""
        now = dict(_bindings(self._owners))
        names = {name for name, bound in self._bound.items() if not _same(bound, now.get(name))}
        return sorted(names | {name for name in now.keys() - self._bound.keys() if now[name].of_class})


def _owners() -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Yield name, module or class, and the names in it that matter; all that it defines if empty."""
    yield "time", time, ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns")
    yield "torch", torch, _JUDGES
    yield "torch.Tensor", Tensor, _JUDGES
    yield "torch._C.TensorBase", torch._C.TensorBase, _JUDGES
    yield "torch.cuda", torch.cuda, ("Event", "Stream", "_sleep", "current_stream", "synchronize")
    yield "torch.cuda.Event", torch.cuda.Event, ()
    yield "torch.cuda.Stream", torch.cuda.Stream, ()
    yield "torch.profiler", torch.profiler, ("profile", "record_function", "ProfilerActivity")
    yield "torch.profiler.profile", torch.profiler.profile, ()
    yield "torch.autograd.profiler", torch.autograd.profiler, ("profile", "record_function")
    yield "torch.autograd.profiler.profile", torch.autograd.profiler.profile, ()
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] == _OURS:
            yield name, module, ()
            for attribute, value in sorted(vars(module).items()):
                if isinstance(value, type) and value.__module__ == name:
                    yield f"{name}.{attribute}", value, ()


def _bindings(owners: list[tuple[str, Any, tuple[str, ...]]]) -> Iterator[tuple[str, Binding]]:
    for title, owner, names in owners:
        of_class = isinstance(owner, type)
        for name in names:  # inherited or missing ones too: a class can be given one of its own
            value = getattr_static(owner, name, None)
            yield f"{title}.{name}", Binding(value, getattr(value, "__code__", None), of_class)
        for name, value in () if names else tuple(vars(owner).items()):
            if isinstance(value, _KINDS):
                yield f"{title}.{name}", Binding(value, getattr(value, "__code__", None), of_class)


def _same(before: Binding, after: Binding | None) -> bool:
    return after is not None and before.value is after.value and before.code is after.code
