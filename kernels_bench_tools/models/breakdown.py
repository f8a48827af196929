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
from kernels_bench_tools.models.calls import Key, ModuleCall, hooked, modules_of_levels, note_calls
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
    kernels = {type(module) for module in modules_of_levels(model, 1)}
    noted = note_calls(model, kernels, forward, _INSTANCES)
    found = {key: calls for key, calls in noted.items() if calls.level == 1}
    names = {key: calls.name for key, calls in found.items()}
    passes = [_ms_by_name(model, forward, names, cuda=cuda) for _ in range(1 + _PASSES)][1:]
    parts = []
    for calls in found.values():
        turns = cycle(calls.first)

        def call(turns: Iterator[ModuleCall] = turns) -> Any:
            with forward.context():
                return next(turns)()

        ms = median(times[calls.name] for times in passes)
        alone_ms = calls.count * time_alone(call)
        parts.append(Part(module=calls.name, calls=calls.count, ms=ms, alone_ms=alone_ms))
    outside = Part(module="", calls=0, ms=median(times[""] for times in passes))
    return [*sorted(parts, key=lambda part: -part.ms), outside]


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

    with hooked(modules_of_levels(model, 1), before, lambda *_: running.pop().__exit__(None, None, None)):
        if cuda:
            return device_ms_by_range(forward)
        start = perf_counter()
        forward()
        found[""] = max(1000 * (perf_counter() - start) - sum(found.values()), 0.0)
    return found
