"""Write down which modules of this package a record passes through: Python imports this at its start, from PYTHONPATH.

A module counts when one of its functions is given, or returns, a record or what a record becomes: itself, in a
collection, or in a field of a dataclass. Of the modules that publish, only what the operator's page calls counts,
and what reads the summary. Each process appends to a file of its own beside this one.
"""

import os
import sys
import threading
from collections import Counter
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

PACKAGE = "kernels_bench_tools"
CARRIERS = {"Latency", "Record", "Row", "Point", "DeviceSummary", "Summary"}
PAGE, READER = f"{PACKAGE}.report.pages", f"{PACKAGE}.report.operators"
FOLDER = Path(__file__).parent
seen: set[str] = set()
looked: Counter[CodeType] = Counter()
OFTEN = 20
"""A function that was looked at as often carries none: looking on would slow down what the judge's clock adds up."""


def carries(value: Any, depth: int = 2) -> bool:
    """Return whether a value is a record or what it becomes, or holds one."""
    kind = type(value)
    ours = kind.__module__.startswith(PACKAGE)
    if ours and kind.__name__ in CARRIERS:
        return True
    if not depth:
        return False
    if kind in {list, tuple}:
        return any(carries(one, depth - 1) for one in value[:2])
    if kind is dict:
        return any(carries(one, depth - 1) for one in list(value.values())[:2])
    fields = getattr(kind, "__dataclass_fields__", {}) if ours else {}
    return any(carries(getattr(value, name, None), depth - 1) for name in fields)


def for_another_page(frame: FrameType) -> bool:
    """Return whether a frame publishes something else than the operator's page."""
    if frame.f_globals["__name__"] == READER:
        return False
    publishes = False
    caller: FrameType | None = frame
    while caller is not None:
        module = caller.f_globals.get("__name__") or ""
        if caller.f_code.co_name == "operator_page" and module == PAGE:
            return False
        publishes |= module.startswith(f"{PACKAGE}.report")
        caller = caller.f_back
    return publishes


def look(frame: FrameType, event: str, value: Any) -> Any:
    """Note the module of a call or a return that carries a record."""
    module = frame.f_globals.get("__name__") or ""
    code = frame.f_code
    if module in seen or not module.startswith(PACKAGE) or looked[code] == OFTEN:
        return None
    looked[code] += event == "call"
    frame.f_trace_lines = False
    names = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    values = [frame.f_locals.get(name) for name in names] if event == "call" else [value]
    if event != "exception" and any(map(carries, values)) and not for_another_page(frame):
        seen.add(module)
        with (FOLDER / f"{os.getpid()}.modules").open("a") as file:
            file.write(f"{module}\n")
    return look


# A profiler would be called for returns, and for functions of C, of all packages as well.
sys.settrace(look)
threading.settrace(look)
