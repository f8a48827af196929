"""The measurement of a phase: times of a model with and without a change, at each level that the change reaches.

All is measured in one process on one set of weights, by replacing ``forward`` of the modules and putting it back.
"""

from __future__ import annotations

import secrets
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from itertools import chain, cycle
from statistics import median
from time import perf_counter, sleep
from typing import Any

import torch
from torch import Tensor, nn

from kernels_bench_tools.measure.judge.memory import fingerprint
from kernels_bench_tools.measure.timing.cuda import CudaTimer
from kernels_bench_tools.measure.timing.cupti import device_ms_by_range, named_range, record_activities, retry
from kernels_bench_tools.models.agreement import compare_logits
from kernels_bench_tools.models.baseline.L4 import CausalLM
from kernels_bench_tools.models.calls import (
    Key,
    ModuleCall,
    ModuleCalls,
    hooked,
    modules_of_levels,
    note_calls,
)
from kernels_bench_tools.models.changed_model import ChangedModel
from kernels_bench_tools.models.comparison import Comparison
from kernels_bench_tools.models.forward_pass import EffectError, ForwardPass, PagedPass
from kernels_bench_tools.models.replacement import Replacement
from kernels_bench_tools.records.record import LISTED, Part, Record, Timer
from kernels_bench_tools.text.tables import grouped

SECONDS, MODEL_SECONDS = 1.0, 3.0
"""For the samples of one row, and of one of a whole model, unless the fewest rounds take longer."""
WARM_ROUNDS, MIN_ROUNDS, MIN_LIMITED_ROUNDS, MAX_ROUNDS = 2, 4, 12, 100
"""Rounds that are not measured, and the fewest and the most that are; the third is the fewest of passes at the power limit. A
round times each side twice, in the order ABCCBA."""
CALLS = 10
"""Of a module in one sample, of which the median counts."""
IDLE_PASSES = 2
"""After a pass at the power limit a GPU is idle for as long as this many passes. Without, the limit slows each by 0 to 8 %."""
FASTEST = 6
"""Samples of kernels at the power limit, each the fastest of several passes: also after idle time, half of them reach it.
On an H200, medians of 24 passes of Llama-3.1-8B differed by up to 1.3 % without idle time, by 0.5 % with it, and the
fastest of four by 0.3 %."""
INSTANCES = 8
"""Calls of a kernel that take turns alone: the weights of this many do not fit into an L2 cache."""
PASSES = 3
"""Forward passes of which the median of a kernel's time counts, after one that warms up."""
HOST_BOUND = 1.1
"""A forward pass waits for the host if it takes this many times as long as its kernels."""
SIDES = ("baseline", "candidate", "again")

Sample = Callable[[], float]
Round = list[tuple[str, float]]
"""Side and milliseconds of each sample."""
Samples = Mapping[str, Sequence[float]]
"""Milliseconds, by side."""


MakeRecord = Callable[..., Record]
"""Makes the record of a module, or of one way to time the whole model, from fields of :class:`Effect`."""


class NotPropagatedError(EffectError):
    """The model never calls the implementation."""


class PhaseMeasurement:
    def __init__(
        self,
        name: str,
        model: nn.Module,
        changed: Replacement | ChangedModel,
        forward: ForwardPass,
        device: str,
        make_record: MakeRecord,
    ) -> None:
        self._name, self._model, self._changed = name, model, changed
        self._forward, self._device, self._cuda = forward, device, device.startswith("cuda")
        self._compare = Comparison(model, changed, forward)
        self._make_record = partial(make_record, phase=name)
        self._saved: dict[Key, tuple[float, float]] = {}
        """What a call of a replaced module takes less of the device's and of the host's milliseconds."""

    def records(self) -> Iterator[Record]:
        """Yield the records of levels 1 to 4, of a changed model only of 4; none if the model calls nothing that is replaced.

        Logits of a timed pass of each way to run the model are compared, and after the last record those for other tokens,
        and in decoding for shorter contexts: none of the records counts if one differs, or a weight has changed.
        """
        changed, forward, compare = self._changed, self._forward, self._compare

        def fingerprints() -> dict[str, int]:
            return {name: fingerprint(weight) for name, weight in self._model.named_parameters()}

        weights = fingerprints()
        blocks: dict[Key, ModuleCalls] = {}
        if isinstance(changed, ChangedModel):
            for call, other in changed.first_calls(forward):
                compare.module(type(call.module).__name__, 2, call, other)
        else:
            blocks = note_calls(self._model, changed.classes, forward)
            if not blocks:
                return
            compare.instances(blocks)
        called = changed.called(forward)
        missing = sorted(changed.instances.keys() - called)
        if not called:
            raise NotPropagatedError(f"{self._name} calls none of the replaced modules: {', '.join(missing)}")
        self._make_record = partial(
            self._make_record,
            replaced=len(changed.instances),
            called=len(called),
            missing=missing[:LISTED],
            kept=changed.kept,
        )
        agreement = compare.whole()
        if forward.trains:
            yield from self._whole(agreement, None, None)
        else:
            with compare.same_experts():
                for key, block in sorted(blocks.items()):
                    yield self._block(key, block)
                calls = {key: blocks[key].count - blocks[key].nested for key in self._saved}
                of_device, of_host = (
                    sum(count * self._saved[key][which] for key, count in calls.items()) if calls else None
                    for which in (0, 1)
                )
                yield from self._whole(agreement, of_device, of_host)
        forward.change()
        if isinstance(forward, PagedPass) and forward.decodes:
            forward.shorten()
            compare.instances(blocks, " with shorter contexts")
        compare.whole()
        after = fingerprints()
        if overwritten := [name for name, weight in weights.items() if after[name] != weight]:
            raise EffectError(f"the implementation changes weights of the model, such as {overwritten[0]}")

    def _block(self, key: Key, block: ModuleCalls) -> Record:
        """Return the record of a module of levels 1 to 3, called alone with the inputs of the first of its calls.

        One that is replaced is compared once more, with other values in the same tensors: nothing may be kept by their address.
        """
        first, call = block.first[0], self._alone(block.first)
        samples = without_drift(self._rounds(lambda _: self._timer(call), SECONDS))
        host: dict[str, float] = {}
        predicted = None
        if block.inside:
            less = sum(count / block.count * self._saved[inner][0] for inner, count in block.inside.items())
            predicted = max(median(samples["baseline"]) - less, 0.0)
        else:
            if not self._changed.in_place:
                for given in first.inputs:
                    is_weight = isinstance(given, nn.Parameter)
                    if isinstance(given, Tensor) and given.is_floating_point() and not is_weight:
                        given.copy_(given.roll(1, -1))
                with self._compare.side("candidate"):
                    output = call()
                changed = " after its inputs changed"
                self._compare.module(block.name, block.level, first, first, output, changed)
            less = median(samples["baseline"]) - median(samples["candidate"])
            if self._cuda:
                for side in SIDES[:2]:
                    with self._compare.side(side):
                        host[side] = median(
                            _wall_ms(call, self._device, until_done=False) for _ in range(CALLS)
                        )
            self._saved[key] = less, host["baseline"] - host["candidate"] if host else less
        return self._make_record(
            level=block.level,
            module=block.name,
            calls=block.count,
            samples=samples,
            timer=Timer.CUPTI if self._cuda else Timer.MONOTONIC,
            predicted_ms=predicted,
            host_ms=host.get("candidate"),
            baseline_host_ms=host.get("baseline"),
        )

    def _alone(self, calls: Sequence[ModuleCall]) -> Callable[[], Any]:
        """Return what makes one of these calls outside of a pass, each in turn."""
        turns = cycle(calls)

        def call() -> Any:
            with self._forward.context():
                return next(turns)()

        return call

    def _timer(self, call: Callable[[], Any]) -> Sample:
        if not self._cuda:
            return lambda: median(_wall_ms(call, self._device) for _ in range(CALLS))
        timer = CudaTimer(call, (), self._device, cold=False)
        return lambda: median(timed.ms for timed in retry(lambda: timer.by_kernels(CALLS)))

    def _whole(
        self, agreement: Mapping[str, float], saved_ms: float | None, host_saved_ms: float | None
    ) -> Iterator[Record]:
        """Yield the records of the whole model; the first has what is known of it without the others."""

        def record(how: str, timer: Timer, samples: Samples, saved: float | None, **details: Any) -> Record:
            predicted = None if saved is None else max(median(samples["baseline"]) - saved, 0.0)
            details |= {"samples": samples, "timer": timer, "predicted_ms": predicted}
            return self._make_record(level=4, module=how, calls=1, **details)

        first: dict[str, Any] = {"agreement": agreement}
        if isinstance(self._model, CausalLM):  # kernels of transformers' models are no modules
            first["parts"] = self._parts()
        limited = self._cuda and not self._forward.decodes
        fewest, idle = (MIN_LIMITED_ROUNDS, IDLE_PASSES) if limited else (MIN_ROUNDS, 0)
        kernels_ms = 0.0
        if self._cuda:
            launches: dict[str, int] = {}

            def busy_ms(side: str) -> float:
                activities = record_activities(partial(self._compare.timed_pass, side))
                launches[side] = len(activities)
                return sum(activity.duration_ns for activity in activities) / 1e6

            first["baseline_peak_bytes"], first["peak_bytes"] = map(self._peak_bytes, SIDES[:2])
            rounds = self._rounds(lambda side: lambda: busy_ms(side), MODEL_SECONDS, fewest, idle)
            samples = fastest(rounds) if limited else without_drift(rounds)
            kernels_ms = median(samples["baseline"])
            first |= {"launches": launches["candidate"], "baseline_launches": launches["baseline"]}
            yield record("device", Timer.CUPTI, samples, saved_ms, **first)
            first = {}

        def eager(side: str) -> Sample:
            return lambda: _wall_ms(partial(self._compare.timed_pass, side), self._device)

        samples = without_drift(self._rounds(eager, MODEL_SECONDS, fewest, idle))
        waits = self._cuda and median(samples["baseline"]) > HOST_BOUND * kernels_ms
        yield record("eager", Timer.MONOTONIC, samples, host_saved_ms if waits else saved_ms, **first)
        if self._cuda and self._forward.decodes:
            pool = torch.cuda.graph_pool_handle()  # shared, so that all sides use the same addresses
            samples = without_drift(self._rounds(lambda side: self._graph(side, pool), MODEL_SECONDS))
            yield record("CUDA graph", Timer.MONOTONIC, samples, saved_ms)

    def _parts(self) -> list[Part]:
        """Return the time of each module of level 1 in a forward pass, the longest first.

        Calls with inputs of the same shapes are one part. The last part, without a name, is all that is outside of them.
        Calls that are timed alone take turns with the inputs of several instances, so that weights are as cold as in the
        model.
        """
        kernels = {type(module) for module in modules_of_levels(self._model, 1)}
        noted = note_calls(self._model, kernels, self._forward, INSTANCES)
        found = {key: calls for key, calls in noted.items() if calls.level == 1}
        names = {key: calls.name for key, calls in found.items()}
        passes = [self._ms_by_name(names) for _ in range(1 + PASSES)][1:]
        parts = []
        for calls in found.values():
            ms = median(times[calls.name] for times in passes)
            alone_ms = calls.count * self._timer(self._alone(calls.first))()
            parts.append(Part(module=calls.name, calls=calls.count, ms=ms, alone_ms=alone_ms))
        outside = Part(module="", calls=0, ms=median(times[""] for times in passes))
        return [*sorted(parts, key=lambda part: -part.ms), outside]

    def _ms_by_name(self, names: Mapping[Key, str]) -> Mapping[str, float]:
        """Return the milliseconds of all calls of each name in one forward pass, and of what is outside of them."""
        found: dict[str, float] = defaultdict(float)

        @contextmanager
        def timed(name: str) -> Iterator[None]:
            start = perf_counter()
            yield
            found[name] += 1000 * (perf_counter() - start)

        running = ExitStack()
        range_of = named_range if self._cuda else timed

        def before(call: ModuleCall) -> None:
            running.enter_context(range_of(names[call.key]))

        with hooked(modules_of_levels(self._model, 1), before, lambda *_: running.close()):
            if self._cuda:
                return device_ms_by_range(self._forward)
            start = perf_counter()
            self._forward()
            found[""] = max(1000 * (perf_counter() - start) - sum(found.values()), 0.0)
        return found

    def _peak_bytes(self, side: str) -> int:
        """Return the memory of a pass in addition to weights, inputs and cache."""
        with self._compare.side(side):
            self._forward()
            self._model.zero_grad()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            self._forward()
            torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)

    def _graph(self, side: str, pool: Any) -> Sample:
        """Return a timer of the forward pass as a CUDA graph with its memory in a pool.

        Raises:
            EffectError: For tokens other than the captured ones, the logits of the graph and of an eager pass differ.
        """
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self._forward()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            logits = self._forward()
        self._forward.change()
        graph.replay()
        if beyond := compare_logits(logits.clone(), self._forward()).beyond:
            raise EffectError(f"the CUDA graph of the {side} does not match an eager pass: {beyond}")
        return lambda: _wall_ms(graph.replay, self._device)

    def _rounds(
        self, timer: Callable[[str], Sample], seconds: float, fewest: int = MIN_ROUNDS, idle: float = 0
    ) -> list[Round]:
        """Return times of all sides, which take turns; ``timer`` makes the timer of a side.

        After each, the device is idle for ``idle`` times as long. What the sides compute in one turn, chosen at random, is compared.
        """
        compare = self._compare
        timers: dict[str, Sample] = {}
        for side in SIDES:
            with compare.side(side):
                timers[side] = timer(side)
        rounds: list[Round] = []
        start, number = perf_counter(), -WARM_ROUNDS
        compared = secrets.randbelow(fewest), secrets.choice((SIDES, SIDES[::-1]))
        while number < fewest or (number < MAX_ROUNDS and perf_counter() - start < seconds):
            times: Round = []
            for sides in (SIDES, SIDES[::-1]):
                self._forward.change()  # nothing can be kept of what a side computed before
                watched = (number, sides) == compared
                for side in sides:
                    with compare.side(side), compare.watched(side) if watched else nullcontext():
                        times.append((side, ms := timers[side]()))
                    sleep(idle * ms / 1000)
                compare.require_same_when_timed()
            if number >= 0:
                rounds.append(times)
            number += 1
            start = perf_counter() if number == 0 else start
        return rounds


def fastest(rounds: Sequence[Round]) -> dict[str, list[float]]:
    """Return ``FASTEST`` samples of each side, or fewer: each is the fastest of as many successive times."""
    samples = grouped(chain.from_iterable(rounds))
    size = max(len(samples[SIDES[0]]) // FASTEST, 1)
    return {
        side: [min(times[first : first + size]) for first in range(0, len(times) - size + 1, size)]
        for side, times in samples.items()
    }


def without_drift(rounds: Sequence[Round]) -> dict[str, list[float]]:
    """Return the samples of each side, scaled so that all rounds have the same median.

    A GPU at its power limit changes its clock during a measurement, for all sides of a round alike.
    """
    levels = [median(ms for _, ms in times) for times in rounds]
    common = median(levels)
    leveled = zip(levels, rounds, strict=True)
    return grouped((side, ms * common / level) for level, times in leveled for side, ms in times)


def _wall_ms(call: Callable[[], Any], device: str, until_done: bool = True) -> float:
    """Return the milliseconds of a call until the device is done, or of the host alone, which issues it."""
    cuda = device.startswith("cuda")
    if cuda:
        torch.cuda.synchronize()
    start = perf_counter()
    call()
    if cuda and until_done:
        torch.cuda.synchronize()
    return 1000 * (perf_counter() - start)
