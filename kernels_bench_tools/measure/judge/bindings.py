"""Changes to the measuring process: replaced functions, and threads and child processes that do work."""

from __future__ import annotations

import builtins
import gc
import io
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cache, partial
from inspect import getattr_static
from pathlib import Path
from types import BuiltinFunctionType, FunctionType, MappingProxyType
from typing import Any, NamedTuple

import msgspec
import torch
import torch.autograd.profiler
from torch import Tensor

_KINDS = (
    *(FunctionType, BuiltinFunctionType, type, staticmethod, classmethod, property),
    *(type(cache(int)), MappingProxyType),
)
"""Values of other types are state, which may change."""
_CHECKED_OPERATIONS = (
    *("abs", "allclose", "clone", "contiguous", "copy_", "data_ptr", "double", "eq", "equal", "isfinite"),
    *("isnan", "item", "max", "mul", "sub", "sum", "to", "tolist", "untyped_storage", "view", "where"),
    *("__add__", "__eq__", "__getitem__", "__gt__", "__le__", "__lt__", "__mul__", "__sub__", "__truediv__"),
    *("__getattribute__", "detach", "device", "dtype", "is_conj", "is_cuda", "is_meta", "is_neg", "layout"),
    *("__len__", "empty", "numel", "numpy", "set_", "shape", "storage_offset", "stride"),
    *("fill_", "is_floating_point", "dim", "element_size", "Generator", "randperm", "view_as"),
    *("is_complex", "resolve_conj", "resolve_neg"),
)
"""Functions, methods and properties of torch that timing and the comparison of outputs use."""
_CHECKED_BUILTINS = (
    *("all", "enumerate", "float", "getattr", "int", "isinstance", "iter", "len", "list", "map", "max"),
    *("min", "next", "open", "range", "reversed", "sum", "super", "tuple", "type", "zip"),
)
"""Built-in functions that they use, which a name in a module can hide."""
_OURS = "kernels_bench_tools"
_MONITORING_TOOLS, _SIGNALS = 6, sorted(signal.valid_signals())
_OF_COMPILER = ("__compiled_fn_", "__resume_at_")
"""Names that torch.compile adds to the module of a function, and removes when it is reset."""

_TASKS = Path("/proc/self/task")
_BACKGROUND = (_OURS, "_inductor", "resource_tracker")
"""Child processes with one of these in their command line are the harness's own or torch.compile's."""
# Otherwise the compiler's pool of processes starts a thread a while after a call has compiled, which looks like the call's.
os.environ.setdefault("TORCHINDUCTOR_QUIESCE_ASYNC_COMPILE_POOL", "0")
_POOLS = ("torch", "triton", "tqdm", _OURS)
"""Packages that start pools of threads on first use."""
_EXTENDED = ("builtins", "torch")
"""Packages whose classes other packages may extend; of torch, those above are checked."""
_current_frames = sys._current_frames
_enumerate = threading.enumerate
_EARLIER_THREADS = frozenset(_current_frames())
"""Those from before an implementation is loaded."""


class Binding(NamedTuple):
    """The value of a name."""

    value: Any
    code: Any
    """Its code object, for a Python function."""
    hides: bool
    """Whether a new name hides another value: that of a base class, or a built-in function."""


class Bindings:
    """The values that the names used for measuring have when this is made, before an implementation is loaded."""

    def __init__(self) -> None:
        self._owners = list(_owners())
        self._bound = dict(_bindings(self._owners))
        self._hooks = _hooks()

    def replaced(self) -> list[str]:
        """Return the names that have another value or other code now."""
        now = dict(_bindings(self._owners))
        names = {
            name
            for name, bound in self._bound.items()
            if name not in now or bound.value is not now[name].value or bound.code is not now[name].code
        }
        names |= {name for name in now.keys() - self._bound.keys() if now[name].hides}
        return sorted(names) + [name for name, hook in _hooks() if (name, hook) not in self._hooks]


def replaced_methods(one: Any, kind: type) -> list[str]:
    """Return the names of methods that an object has instead of those of its class, or that it is of another class."""
    if type(one) is not kind:
        return [f"{kind.__name__}.__class__"]
    return [f"{kind.__name__}.{name}" for name in sorted(vars(one)) if callable(getattr(kind, name, None))]


def _hooks() -> list[tuple[str, Any]]:
    """Return what Python calls between the calls of a thread: it could do the work of a call after its time was taken.

    Callbacks and handlers of packages, such as JAX's for the garbage collector, are not among them.
    """
    found = [("sys.setprofile", sys.getprofile()), ("sys.settrace", sys.gettrace())]
    if monitoring := getattr(sys, "monitoring", None):  # since Python 3.12
        tools = map(monitoring.get_tool, range(_MONITORING_TOOLS))
        found += [("sys.monitoring", tool) for tool in tools if tool]
    callbacks: list[tuple[str, Any]] = [("gc.callbacks", one) for one in gc.callbacks]
    callbacks += [(f"handler of signal {number:d}", signal.getsignal(number)) for number in _SIGNALS]
    return found + [(name, one) for name, one in callbacks if _is_of_script(one)]


def _is_of_script(function: Any) -> bool:
    """Return whether a function's code is in the script, whatever it says of its module."""
    while isinstance(function, partial):
        function = function.func
    function = getattr(function, "__func__", function)
    called = function if hasattr(function, "__globals__") else type(function).__call__
    return getattr(called, "__globals__", None) is vars(sys.modules["__main__"])


def _owners() -> Iterator[tuple[str, Any, tuple[str, ...]]]:
    """Yield name, module or class, and the names in it that matter; empty for all that it defines."""
    yield "builtins", builtins, _CHECKED_BUILTINS
    yield "time", time, ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns")
    yield "torch", torch, _CHECKED_OPERATIONS
    yield "torch.Tensor", Tensor, _CHECKED_OPERATIONS
    yield "torch._C.TensorBase", torch._C.TensorBase, _CHECKED_OPERATIONS
    yield "torch.UntypedStorage", torch.UntypedStorage, ("data_ptr", "nbytes")
    yield "torch.cuda", torch.cuda, ("Event", "Stream", "_sleep", "current_stream", "synchronize")
    yield "torch.cuda.Event", torch.cuda.Event, ()
    yield "torch.cuda.Stream", torch.cuda.Stream, ()
    yield "torch.autograd", torch.autograd, ("_engine_run_backward", "grad")
    yield "torch.autograd.profiler", torch.autograd.profiler, ("profile", "record_function")
    yield "torch.autograd.profiler.profile", torch.autograd.profiler.profile, ()
    yield "io", io, ("BytesIO",)
    yield "msgspec", msgspec, ("convert", "to_builtins")
    yield "msgspec.json", msgspec.json, ("decode", "encode")
    classes: dict[str, type] = {}
    for name, module in sorted(sys.modules.items()):
        if name.partition(".")[0] == _OURS:
            yield name, module, ()
            used = [value for value in vars(module).values() if isinstance(value, type)]
            classes |= {
                f"{one.__module__}.{one.__qualname__}": one for value in used for one in value.__mro__
            }
    for title, one in sorted(classes.items()):
        if title.partition(".")[0] not in _EXTENDED:
            yield title, one, ()


def _bindings(owners: list[tuple[str, Any, tuple[str, ...]]]) -> Iterator[tuple[str, Binding]]:
    for title, owner, names in owners:
        of_class = isinstance(owner, type)
        for name in names:  # inherited or missing names too, since a class can be given its own
            value = getattr_static(owner, name, None)
            yield f"{title}.{name}", Binding(value, getattr(value, "__code__", None), of_class)
        for name, value in () if names else tuple(vars(owner).items()):
            built_in = name in _CHECKED_BUILTINS
            if (isinstance(value, _KINDS) or built_in) and not name.startswith(_OF_COMPILER):
                code = getattr(value, "__code__", None)
                yield f"{title}.{name}", Binding(value, code, of_class or built_in)


@dataclass(frozen=True)
class ThreadSnapshot:
    """Threads and child processes at one moment."""

    threads: frozenset[int]
    """Identifiers of threads that run Python code, including this one."""
    children: frozenset[int]
    """Process ids."""
    timeslices: dict[int, int] = field(default_factory=dict)
    """Python thread to the number of timeslices it has run; empty where the system does not count them."""
    hidden: frozenset[int] = frozenset()
    """Those of an implementation that ``threading`` does not list, so that their timeslices are not known."""


def take_snapshot() -> ThreadSnapshot:
    """Return the current threads and child processes."""
    counts = {
        thread.ident: _timeslices(thread.native_id)
        for thread in _enumerate()
        if thread.ident and thread.native_id
    }
    threads = frozenset(_current_frames())
    return ThreadSnapshot(
        threads,
        _children(),
        {key: n for key, n in counts.items() if n},
        threads - counts.keys() - _EARLIER_THREADS,
    )


def find_background_work(call: Callable[[], Any], calls: int) -> str:
    """Return which thread or process works beside this many calls; empty if none does.

    Call the function before, so that torch has started its own threads. Threads of native code (OpenMP, the driver)
    do not count, nor do idle pools: an older thread counts if it ran in every call.
    """
    before = take_snapshot()
    for _ in range(calls):
        start = take_snapshot()
        call()
        started = started_between(start, take_snapshot())
        if started:
            return f"a call started {started}, which outlived it"
    ran = thread_that_ran(before, take_snapshot(), calls)
    return f"{ran} during {calls} calls" if ran else ""


def thread_that_ran(before: ThreadSnapshot, after: ThreadSnapshot, times: int) -> str:
    """Return which other thread ran at least this many times, and how often; empty if none did."""
    for ident in (before.threads & after.threads) - {threading.get_ident()}:
        if ident in after.hidden:
            return f"thread {ident}, which threading.enumerate() does not list, was there"
        ran = after.timeslices.get(ident, 0) - before.timeslices.get(ident, 0)
        if ran >= times:
            return f"thread {_name(ident)} ran {ran} times"
    return ""


def started_between(before: ThreadSnapshot, after: ThreadSnapshot) -> str:
    """Return the names of the threads and processes that are new; empty if there are none."""
    threads = [_name(ident) for ident in after.threads - before.threads]
    children = [str(process) for process in after.children - before.children]
    return ", ".join([f"thread {name}" for name in threads] + [f"process {number}" for number in children])


def is_idle_pool_thread(ident: int) -> bool:
    """Return whether a thread belongs to a package's pool, or is idle inside the standard library."""
    frame = _current_frames().get(ident)
    files = []
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    return all(_is_background(Path(file)) for file in files)


def _is_background(file: Path) -> bool:
    standard = file.is_relative_to(Path(os.__file__).parent) and "site-packages" not in file.parts
    return standard or str(file).startswith("<frozen") or any(package in file.parts for package in _POOLS)


def _name(ident: int) -> str:
    names = [thread.name for thread in _enumerate() if thread.ident == ident]
    return repr(names[0]) if names else str(ident)


def _children() -> frozenset[int]:
    """Return the child processes of all threads; none where the system does not list them."""
    found: set[int] = set()
    for path in _TASKS.glob("*/children"):
        found.update(int(word) for word in _read(path).split())
    return frozenset(process for process in found if not _is_ours(process))


def _is_ours(process: int) -> bool:
    command = _read(Path(f"/proc/{process}/cmdline"))
    forked = command == _read(Path("/proc/self/cmdline"))
    # Empty if it has ended.
    return not command or (not forked and any(word in command for word in _BACKGROUND))


def _timeslices(task: int) -> int:
    fields = _read(_TASKS / str(task) / "schedstat").split()
    return int(fields[2]) if len(fields) == 3 else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended, or the system has no such file
        return ""
