"""Changes to the measuring process: replaced functions, and threads and child processes that do work."""

from __future__ import annotations

import builtins
import io
import os
import sys
import threading
import time
from collections.abc import Callable
from functools import cache
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
_WATCHED: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (builtins, _CHECKED_BUILTINS),
    (time, ("monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns", "time", "time_ns")),
    *((owner, _CHECKED_OPERATIONS) for owner in (torch, Tensor, torch._C.TensorBase)),
    (torch.UntypedStorage, ("data_ptr", "nbytes")),
    (torch.cuda, ("Event", "Stream", "_sleep", "current_stream", "synchronize")),
    *((owner, ()) for owner in (torch.cuda.Event, torch.cuda.Stream, torch.autograd.profiler.profile)),
    (torch.autograd, ("_engine_run_backward", "grad")),
    (torch.autograd.profiler, ("profile", "record_function")),
    (io, ("BytesIO",)),
    (msgspec, ("convert", "to_builtins")),
    (msgspec.json, ("decode", "encode")),
)
"""Modules and classes, and the names in them that matter; none for all that they define."""
_current_frames = sys._current_frames
_enumerate = threading.enumerate
_EARLIER_THREADS = frozenset(_current_frames())
"""Those from before an implementation is loaded."""


class Bindings:
    """The values that the names used for measuring have when this is made, before an implementation is loaded."""

    def __init__(self) -> None:
        ours = [module for name, module in sorted(sys.modules.items()) if name.partition(".")[0] == _OURS]
        used = {value for module in ours for value in vars(module).values() if isinstance(value, type)}
        classes = {base for value in used for base in value.__mro__}
        own = [base for base in classes if base.__module__.partition(".")[0] not in _EXTENDED]
        self._owners = [*_WATCHED, *((owner, ()) for owner in [*ours, *own])]
        self._bound = self._now()

    def _now(self) -> dict[str, tuple[Any, Any, bool]]:
        """Return by name: its value, the code of a function in Python, and whether a new one hides another value."""
        found: dict[str, tuple[Any, Any, bool]] = {}
        for owner, names in self._owners:
            of_class = isinstance(owner, type)
            title = f"{owner.__module__}.{owner.__qualname__}" if of_class else owner.__name__
            # Inherited or missing names too, since a class can be given its own.
            values = {name: getattr_static(owner, name, None) for name in names} or dict(vars(owner))
            for name, value in values.items():
                built_in = name in _CHECKED_BUILTINS
                if names or ((isinstance(value, _KINDS) or built_in) and not name.startswith(_OF_COMPILER)):
                    hides = of_class or (built_in and not names)
                    found[f"{title}.{name}"] = value, getattr(value, "__code__", None), hides
        return found

    def replaced(self) -> list[str]:
        """Return the names that have another value or other code now."""
        now = self._now()
        names = {
            name
            for name, (value, code, _) in self._bound.items()
            if name not in now or value is not now[name][0] or code is not now[name][1]
        }
        names |= {name for name, (_, _, hides) in now.items() if hides and name not in self._bound}
        return sorted(names)


class Snapshot(NamedTuple):
    """Threads and child processes at one moment."""

    threads: dict[int, int | None]
    """Those that run Python code, this one too, with the number of timeslices they have run: 0 where the system does not
    count them; None for one of an implementation that ``threading`` does not list."""
    children: frozenset[int]
    """Ids of child processes that are not the harness's own."""


def take_snapshot() -> Snapshot:
    """Return the current threads, and the child processes of all threads where the system lists them."""
    counts = {thread.ident: _timeslices(thread.native_id) for thread in _enumerate()}
    threads = {
        ident: counts.get(ident, 0 if ident in _EARLIER_THREADS else None) for ident in _current_frames()
    }
    pids = {int(word) for path in _TASKS.glob("*/children") for word in _read(path).split()}
    commands = {pid: _read(Path(f"/proc/{pid}/cmdline")) for pid in pids}
    own = _read(Path("/proc/self/cmdline"))  # a fork's, too
    children = frozenset(
        pid
        for pid, command in commands.items()  # empty if it has ended
        if command and (command == own or not any(word in command for word in _BACKGROUND))
    )
    return Snapshot(threads, children)


def find_background_work(call: Callable[[], Any], calls: int) -> str:
    """Return which thread or process works beside this many calls; empty if none does.

    Call the function before, so that torch has started its own threads. Threads of native code (OpenMP, the driver)
    do not count, nor do idle pools: an older thread counts if it ran in every call.
    """
    before = take_snapshot()
    for _ in range(calls):
        start = take_snapshot()
        call()
        if started := started_between(start, take_snapshot()):
            return f"a call started {started}, which outlived it"
    ran = thread_that_ran(before, take_snapshot(), calls)
    return f"{ran} during {calls} calls" if ran else ""


def thread_that_ran(before: Snapshot, after: Snapshot, times: int) -> str:
    """Return which other thread ran at least this many times, and how often; empty if none did."""
    for ident in (before.threads.keys() & after.threads.keys()) - {threading.get_ident()}:
        slices = after.threads[ident]
        if slices is None:
            return f"thread {ident}, which threading.enumerate() does not list, was there"
        if (ran := slices - (before.threads[ident] or 0)) >= times:
            return f"thread {_name(ident)} ran {ran} times"
    return ""


def started_between(before: Snapshot, after: Snapshot) -> str:
    """Return the names of the threads and processes that are new; empty if there are none."""
    threads = [f"thread {_name(ident)}" for ident in after.threads.keys() - before.threads.keys()]
    return ", ".join([*threads, *(f"process {pid}" for pid in after.children - before.children)])


def is_idle_pool_thread(ident: int) -> bool:
    """Return whether a thread belongs to a package's pool, or is idle inside the standard library."""
    frame = _current_frames().get(ident)
    while frame is not None:
        file = Path(frame.f_code.co_filename)
        standard = file.is_relative_to(Path(os.__file__).parent) and "site-packages" not in file.parts
        frozen = str(file).startswith("<frozen")
        if not (standard or frozen or any(package in file.parts for package in _POOLS)):
            return False
        frame = frame.f_back
    return True


def _name(ident: int) -> str:
    return next((repr(thread.name) for thread in _enumerate() if thread.ident == ident), str(ident))


def _timeslices(task: int | None) -> int:
    fields = _read(_TASKS / str(task) / "schedstat").split()
    return int(fields[2]) if len(fields) == 3 else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # it has ended, or the system has no such file
        return ""
