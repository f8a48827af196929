"""The time of each kernel of a model: inside of a forward pass, and alone."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from itertools import cycle
from statistics import median
from time import perf_counter
from typing import Any

from torch import nn

from kernels_bench_tools.measure.timing.cupti import device_ms_by_range, named_range
from kernels_bench_tools.models.calls import Key, ModuleCall, ModuleCalls, hooked, level_of, note_calls
from kernels_bench_tools.models.forward_pass import ForwardPass
from kernels_bench_tools.records.record import Part

_INSTANCES = 8
"""Calls that take turns: the weights of this many do not fit into an L2 cache."""
_PASSES = 3
"""Forward passes of which the median counts, after one that warms up."""


def break_down(
    model: nn.Module, forward: ForwardPass, time_alone: Callable[[Callable[[], Any]], float], *, cuda: bool
) -> list[Part]:
    """Return the time of each module of level 1 in a forward pass, the longest first.

    Calls with inputs of the same shapes are one part. The last part, without a name, is all that is outside of them.
    ``time_alone`` returns the milliseconds of a call. The calls that it gets take turns with the inputs of several
    instances, so that weights are as cold as in the model.
    """
    classes = {type(module) for module in model.modules() if level_of(module) == 1}
    noted = note_calls(model, classes, forward, _INSTANCES)
    found = {key: calls for key, calls in noted.items() if calls.level == 1}
    names = {key: calls.name for key, calls in found.items()}
    passes = [_ms_by_name(model, forward, names, cuda=cuda) for _ in range(1 + _PASSES)][1:]
    parts = [
        Part(
            module=calls.name,
            calls=calls.count,
            ms=median(one[calls.name] for one in passes),
            alone_ms=calls.count * time_alone(_in_turn(calls, forward)),
        )
        for calls in found.values()
    ]
    outside = Part(module="", calls=0, ms=median(one[""] for one in passes))
    return [*sorted(parts, key=lambda part: -part.ms), outside]


def _in_turn(calls: ModuleCalls, forward: ForwardPass) -> Callable[[], Any]:
    """Return a function that makes the first calls again, one each time."""
    turns = cycle(calls.first)

    def call() -> Any:
        with forward.context():
            return next(turns)()

    return call


def _ms_by_name(
    model: nn.Module, forward: ForwardPass, names: Mapping[Key, str], *, cuda: bool
) -> Mapping[str, float]:
    """Return the milliseconds of all calls of each name in one forward pass, and of what is outside of them."""
    found: dict[str, float] = defaultdict(float)
    running: list[AbstractContextManager[None]] = []

    @contextmanager
    def timed(name: str) -> Iterator[None]:
        start = perf_counter()
        yield
        found[name] += 1000 * (perf_counter() - start)

    def before(call: ModuleCall) -> None:
        name = names[call.key]
        running.append(named_range(name) if cuda else timed(name))
        running[-1].__enter__()

    with hooked(model, {1}, before, lambda: running.pop().__exit__(None, None, None)):
        if cuda:
            return device_ms_by_range(forward)
        start = perf_counter()
        forward()
        found[""] = max(1000 * (perf_counter() - start) - sum(found.values()), 0.0)
    return found
