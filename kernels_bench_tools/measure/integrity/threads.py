"""Threads and child processes of this process: which there are, and which did something."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

_TASKS = Path("/proc/self/task")
_BACKGROUND = ("kernels_bench_tools", "_inductor", "resource_tracker")
"""Children whose command line names one of these are the harness's own or torch.compile's."""
_POOLS = ("torch", "triton", "tqdm", "kernels_bench_tools")
"""Packages that start threads which wait for work, the first time they are used."""
_current_frames = sys._current_frames
_enumerate = threading.enumerate


@dataclass(frozen=True)
class Census:
    """Who is there at one moment."""

    threads: frozenset[int]
    """Identifiers of threads that run Python code, this one included."""
    children: frozenset[int]
    """Process ids."""
    turns: dict[int, int] = field(default_factory=dict)
    """Python thread to how often the kernel has let it run; empty where the system does not count."""


def take_census() -> Census:
    """Return the threads and children of now."""
    turns = {
        thread.ident: _turns(thread.native_id) for thread in _enumerate() if thread.ident and thread.native_id
    }
    return Census(frozenset(_current_frames()), _children(), {key: n for key, n in turns.items() if n})


def find_injection(call: Callable[[], Any], calls: int) -> str:
    """Return which thread or process works beside the calls; empty if none does.

    Nothing of torch's is lazily started any more once a function was called with such inputs; so warm up
    before. Threads of native code (OpenMP, the driver) do not count. Nor do pools that wait: a thread
    from before the calls is at work if it had a turn in every one of them.

    Args:
        call: Calls the function.
        calls: How often.
    """
    before = take_census()
    for _ in range(calls):
        start = take_census()
        call()
        found = newcomers(start, take_census())
        if found:
            return f"a call started {found}, which outlived it"
    after = take_census()
    for ident in before.threads - {threading.get_ident()}:
        had_turns = after.turns.get(ident, 0) - before.turns.get(ident, 0)
        if ident in after.threads and had_turns >= calls:
            return f"thread {_name(ident)} had {had_turns} turns during {calls} calls"
    return ""


def newcomers(before: Census, after: Census) -> str:
    """Return the threads and processes that were not there before, in words; empty if there are none."""
    threads = [_name(ident) for ident in after.threads - before.threads]
    children = [str(process) for process in after.children - before.children]
    return ", ".join([f"thread {name}" for name in threads] + [f"process {number}" for number in children])


def waits_for_work(ident: int) -> bool:
    """Return whether a thread is of a package's pool, or idle inside the standard library."""
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
    """Return the processes that this one's threads started; none where the system does not list them."""
    found: set[int] = set()
    for path in _TASKS.glob("*/children"):
        found.update(int(word) for word in _read(path).split())
    return frozenset(process for process in found if not _is_ours(process))


def _is_ours(process: int) -> bool:
    command = _read(Path(f"/proc/{process}/cmdline"))
    return not command or any(word in command for word in _BACKGROUND)  # an empty one has ended


def _turns(task: int) -> int:
    fields = _read(_TASKS / str(task) / "schedstat").split()
    return int(fields[2]) if len(fields) == 3 else 0


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:  # it ended meanwhile, or the system has no such file
        return ""
