"""Changes to the measuring process: replaced functions of the harness, and threads and child processes that do work.

What is replaced elsewhere, such as in torch or in Python, shows in the judge's clock.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from functools import cache
from pathlib import Path
from time import perf_counter, sleep
from types import BuiltinFunctionType, FunctionType, ModuleType
from typing import Any, NamedTuple

_KINDS = (FunctionType, BuiltinFunctionType, type, staticmethod, classmethod, property, type(cache(int)))
"""Values of other types are state, which may change."""
_OURS = "kernels_bench_tools"
_OF_COMPILER = ("__compiled_fn_", "__resume_at_")
"""Names that torch.compile adds to the module of a function, and removes when it is reset."""
_TASKS = "/proc/self/task"
_BACKGROUND = (_OURS, "_inductor", "resource_tracker")
"""Child processes with one of these in their command line are the harness's own or torch.compile's."""
# Otherwise the compiler's pool of processes starts a thread a while after a call has compiled, which looks like the call's.
os.environ.setdefault("TORCHINDUCTOR_QUIESCE_ASYNC_COMPILE_POOL", "0")
_POOLS = ("torch", "triton", "tqdm", _OURS)
"""Packages that start pools of threads on first use."""
ASLEEP_MS, MOST_PAUSE_SECONDS = 0.03, 0.01
"""What a thread may run after each call that has waited for it, and the longest pause after a call in which others are seen."""
_current_frames = sys._current_frames
_enumerate = threading.enumerate
_EARLIER_THREADS = frozenset(_current_frames())
"""Those from before an implementation is loaded."""


class Bindings:
    """The functions of the harness, and of the classes that it uses, when this is made: before an implementation is loaded."""

    def __init__(self) -> None:
        self._modules = [module for name, module in sys.modules.items() if name.partition(".")[0] == _OURS]
        self._bound = self._now()

    def _now(self) -> dict[str, tuple[Any, Any]]:
        """Return by name: its value, and the code of a function in Python."""
        values = (value for module in self._modules for value in vars(module).values())
        used = {value for value in values if isinstance(value, type) and not _is_extended(value)}
        owners: list[ModuleType | type] = [*self._modules, *used]
        return {
            f"{owner.__name__}.{name}": (value, getattr(value, "__code__", None))
            for owner in owners
            for name, value in _members(owner).items()
            if isinstance(value, _KINDS) and not name.startswith(_OF_COMPILER)
        }

    def replaced(self) -> list[str]:
        """Return the names that have another value or other code now."""
        now = self._now()
        none = None, None
        return [
            name
            for name, bound in sorted(self._bound.items())
            if any(one is not other for one, other in zip(bound, now.get(name, none), strict=True))
        ]


def _is_extended(kind: type) -> bool:
    """Return whether other packages may extend a class."""
    return kind.__module__.partition(".")[0] in ("builtins", "torch")


def _members(owner: ModuleType | type) -> dict[str, Any]:
    if isinstance(owner, ModuleType):
        return vars(owner)
    own = (base for base in reversed(owner.__mro__) if not _is_extended(base))
    return {name: value for base in own for name, value in vars(base).items()}


class Snapshot(NamedTuple):
    """Threads and child processes at one moment."""

    threads: dict[int, int | None]
    """Those that run Python code, this one too, with the nanoseconds that they have run: 0 where the system does not
    count them; None for one of an implementation that ``threading`` does not list."""
    children: frozenset[int]
    """Ids of child processes that are not the harness's own."""


def take_snapshot() -> Snapshot:
    """Return the current threads, and the child processes of all threads where the system lists them."""
    counts = {thread.ident: _run_ns(thread.native_id) for thread in _enumerate()}
    threads = {
        ident: counts.get(ident, 0 if ident in _EARLIER_THREADS else None) for ident in _current_frames()
    }
    # Path.glob takes four times as long.
    tasks = os.listdir(_TASKS) if os.path.isdir(_TASKS) else []  # noqa: PTH112, PTH208
    pids = {int(word) for task in tasks for word in _read(f"{_TASKS}/{task}/children").split()}
    commands = {pid: _read(f"/proc/{pid}/cmdline") for pid in pids}
    own = _read("/proc/self/cmdline")  # a fork's, too
    children = frozenset(
        pid
        for pid, command in commands.items()  # empty if it has ended
        if command and (command == own or not any(word in command for word in _BACKGROUND))
    )
    return Snapshot(threads, children)


def find_background_work(call: Callable[[], Any], calls: int) -> str:
    """Return which thread or process works outside of this many calls; empty if none does.

    Call the function before, so that torch has started its own threads. Threads of native code (OpenMP, the driver)
    do not count, nor do pools that are idle between calls.
    """
    before, grown, ms = take_snapshot(), 0, 0.0
    for _ in range(calls):
        start, began = take_snapshot(), perf_counter()
        call()
        seconds, now = perf_counter() - began, take_snapshot()
        grown += bool(now.threads.keys() - start.threads.keys())
        if started := started_between(start, now if grown == calls else without_idle(now)):
            return f"a call started {started}, which outlived it"
        ms += 1e3 * seconds
        sleep(min(seconds, MOST_PAUSE_SECONDS))  # in which it would do what it has put off
    return thread_that_ran(before, take_snapshot(), calls, ms)


def thread_that_ran(before: Snapshot, after: Snapshot, calls: int, ms: float) -> str:
    """Return which other thread ran longer than this many calls, of so many milliseconds together; empty if none did.

    A thread whose work a call waits for cannot; it needs a moment to go to sleep.
    """
    for ident in (before.threads.keys() & after.threads.keys()) - {threading.get_ident()}:
        ran_ns = after.threads[ident]
        if ran_ns is None:
            return f"thread {ident}, which threading.enumerate() does not list, was there"
        ran_ms = (ran_ns - (before.threads[ident] or 0)) / 1e6
        if ran_ms > ms + ASLEEP_MS * calls:
            return f"thread {_name(ident)} ran {ran_ms:.3g} ms during {calls} calls of {ms:.3g} ms together"
    return ""


def without_idle(found: Snapshot) -> Snapshot:
    """Return a snapshot without the threads that wait in a package's pool, or inside the standard library."""
    return found._replace(threads={one: ran for one, ran in found.threads.items() if not _is_idle(one)})


def started_between(before: Snapshot, after: Snapshot) -> str:
    """Return the names of the threads and processes that are new; empty if there are none."""
    threads = [f"thread {_name(ident)}" for ident in after.threads.keys() - before.threads.keys()]
    return ", ".join([*threads, *(f"process {pid}" for pid in after.children - before.children)])


def _is_idle(ident: int) -> bool:
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


def _run_ns(task: int | None) -> int:
    fields = _read(f"{_TASKS}/{task}/schedstat").split()
    return int(fields[0]) if len(fields) == 3 else 0


def _read(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:  # noqa: PTH123 - a third of the time of Path
            return file.read()
    except OSError:  # it has ended, or the system has no such file
        return ""
