"""The effect of an implementation on a model: times with and without it, at each level that it reaches.

All is measured in one process on one set of weights, by replacing ``forward`` of the modules and putting it back.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import chain
from math import inf
from statistics import median
from time import perf_counter, sleep
from typing import Any

import torch
from torch import Tensor, nn

from kernels_bench_tools.hub.layer import use_in_transformers
from kernels_bench_tools.measure.correctness.compare import HARD_CAP
from kernels_bench_tools.measure.integrity.memory import fingerprint, same_bits
from kernels_bench_tools.measure.operator import dtype_tolerance, failed_status, failure_of, tensors_of
from kernels_bench_tools.measure.task import LoadFailure, Task
from kernels_bench_tools.measure.timing.cuda import CudaTimer
from kernels_bench_tools.measure.timing.cupti import record_activities, retry
from kernels_bench_tools.models.agreement import (
    Trained,
    compare_gradients,
    compare_logits,
    compare_with_same_experts,
    error_of_parts,
    has_experts,
    keep_experts,
    relative_error,
    untied_tokens,
)
from kernels_bench_tools.models.baseline.L2 import FusedMoE
from kernels_bench_tools.models.baseline.L4 import CausalLM
from kernels_bench_tools.models.breakdown import break_down
from kernels_bench_tools.models.calls import Key, ModuleCall, ModuleCalls, describe, hooked, note_calls
from kernels_bench_tools.models.changed_model import ChangedModel
from kernels_bench_tools.models.effect_records import WARM_ROUNDS, EffectRecords, Row
from kernels_bench_tools.models.forward_pass import EffectError, ForwardPass, PagedPass, random_model
from kernels_bench_tools.models.replacement import Replacement, Substitute, replace
from kernels_bench_tools.models.transformers_model import TransformersPass, transformers_model
from kernels_bench_tools.records.build import TRANSFORMERS, CellContext, EffectRequest
from kernels_bench_tools.records.effect import LISTED
from kernels_bench_tools.records.model import phase_sizes
from kernels_bench_tools.records.record import (
    Failure,
    Part,
    Record,
    Status,
    Timer,
)
from kernels_bench_tools.text import grouped

SECONDS, MODEL_SECONDS = 1.0, 3.0
"""For the samples of one row, and of one of a whole model, unless the fewest rounds take longer."""
MIN_ROUNDS, MIN_LIMITED_ROUNDS, MAX_ROUNDS = 4, 12, 100
"""The second is for passes at the power limit. A round times each side twice, in the order ABCCBA."""
CALLS = 10
"""Of a module in one sample, of which the median counts."""
IDLE_PASSES = 2
"""After a pass at the power limit a GPU is idle for as long as this many passes. Without, the limit slows each by 0 to 8 %."""
FASTEST = 6
"""Samples of kernels at the power limit, each the fastest of several passes: also after idle time, half of them reach it.
On an H200, medians of 24 passes of Llama-3.1-8B differed by up to 1.3 % without idle time, by 0.5 % with it, and the
fastest of four by 0.3 %."""
HOST_BOUND = 1.1
"""A forward pass waits for the host if it takes this many times as long as its kernels."""
HALF_FACTOR, BLOCK_FACTOR, ROUTER_FACTOR = 0.5, 2, 2
"""Limits of a result's norm: in half precision as a multiple of that of a single element, of a block with a kernel inside as a
multiple of a kernel's, and once more of one that computes its router's logits itself. In bfloat16 kernels that round elsewhere
differ by at most 0.6 eps of their norm, with 16 partial sums in half precision by 0.7 eps, and feed-forward layers by 0.9 eps. A
product with weights in 8 bits differs by 1.05 eps, and by 1.5 eps if its inputs are in 8 bits, too."""
SIDES = ("baseline", "candidate", "again")

Side = AbstractContextManager[None]
Sample = Callable[[], float]
Round = list[tuple[str, float]]
"""Side and milliseconds of each sample."""


class NotPropagatedError(EffectError):
    """The model never calls the implementation."""


def measure_effect(
    substitutes: Sequence[Substitute],
    context: CellContext,
    print: Callable[[str], object],  # noqa: A002
) -> list[Record]:
    """Measure a model with and without implementations; write and return a record for each level and phase.

    They are records of the first. If the model cannot use one of them, the only record has no workload, and says why.
    """

    def start(request: EffectRequest) -> _Start:
        theirs = request.framework == TRANSFORMERS
        make = transformers_model if theirs else random_model
        # What cannot be replaced is refused before weights are made.
        replace(make(request, "meta"), substitutes)
        model = make(request, substitutes[0].task.device)
        return model, partial(replace, model, substitutes), TransformersPass if theirs else PagedPass

    failure = next((one.task.failure for one in substitutes if one.task.failure), None)
    return _measured(substitutes[0].task, failure, context, start, print)


def measure_change(
    task: Task,
    change: Callable[[Any], Any],
    context: CellContext,
    print: Callable[[str], object],  # noqa: A002
    failure: LoadFailure | None = None,
) -> list[Record]:
    """Measure a model of transformers with and without a change; write and return a record for each phase.

    If it cannot be changed, or computes something else then, the only record has no workload, and says why. So it does
    if there is a ``failure`` already.
    """

    def start(request: EffectRequest) -> _Start:
        model = transformers_model(request, task.device)
        use_in_transformers()
        return model, partial(ChangedModel, model, change), TransformersPass

    return _measured(task, failure, context, start, print)


_Change = Callable[[], Replacement | ChangedModel]
_MakePass = Callable[[Any, str, str], ForwardPass]
_Start = tuple[nn.Module, _Change, _MakePass]
"""A model, what changes it as it is then, and what makes a pass of it on a device by name."""


def _measured(
    task: Task,
    failure: LoadFailure | None,
    context: CellContext,
    start: Callable[[EffectRequest], _Start],
    print: Callable[[str], object],  # noqa: A002
) -> list[Record]:
    records = EffectRecords(task, context, print)
    try:
        if failure:
            records.fail(failure.status, failure.failure)
        else:
            assert context.effect
            _measure(*start(context.effect), task.device, context.effect, records.keep)
    except EffectError as error:
        records.fail(Status.ERROR, Failure(type=type(error).__name__.removesuffix("Error"), msg=str(error)))
    except Exception as error:
        records.fail(failed_status(error), failure_of(error))
    return records.file.records


def _measure(
    model: nn.Module,
    change: _Change,
    make_pass: _MakePass,
    device: str,
    request: EffectRequest,
    keep: Callable[[Iterator[Row]], bool],
) -> None:
    names: set[str] = set()
    found = False
    for trains in (False, True):
        if not (phases := [name for name in request.phases if phase_sizes(name).trains is trains]):
            continue
        model.train(trains)  # which kernels transformers chooses depends on it
        changed = change()
        names |= {type(one).__name__ for one in changed.instances.values()}
        runs = changed if isinstance(changed, ChangedModel) else model
        with torch.no_grad():
            for phase in phases:
                found |= keep(_Phase(model, changed, device, phase, make_pass(runs, device, phase)).rows())
    if not found:
        raise NotPropagatedError(
            f"the model calls no {', '.join(sorted(names))} in {', '.join(request.phases)}"
        )


class _Phase:
    """The measurement of a forward pass, or of training, of which only the whole model is timed."""

    def __init__(
        self,
        model: nn.Module,
        replacement: Replacement | ChangedModel,
        device: str,
        name: str,
        forward: ForwardPass,
    ) -> None:
        self._model, self._replacement, self._name, self._device = model, replacement, name, device
        self._models = (model, replacement.copy) if isinstance(replacement, ChangedModel) else (model,)
        self._cuda = device.startswith("cuda")
        self.forward = forward
        # All sides have the same experts while they are timed, unless what chooses them is replaced.
        chooses = has_experts(model) and any(map(has_experts, replacement.instances.values()))
        self._comparable = not (forward.trains or chooses)
        self._chooses = chooses and isinstance(replacement, Replacement)
        """Whether replaced modules choose experts. They are compared in timed passes, because logits cannot be."""
        self._in_place = isinstance(replacement, Replacement) and replacement.in_place
        self._blocks: dict[Key, ModuleCalls] = {}
        """Calls of replaced modules, and of the blocks and layers that call them; none of a changed model."""
        self._logits: dict[str, Tensor] | None = None
        """Of timed passes, by side, while they are kept."""

    def rows(self) -> Iterator[Row]:
        """Yield the rows of levels 1 to 4, of a changed model only of 4; none if the model calls nothing that is replaced.

        Logits of a timed pass of each way to run the model are compared, and after the last row those for other tokens, and
        in decoding for shorter contexts: none of the rows counts if one differs, or a weight has changed.
        """
        weights = self._fingerprints()
        found = False
        for row in self._rows():
            found = True
            yield row
        if found:
            self.forward.change()
            if isinstance(self.forward, PagedPass) and self.forward.decodes:
                self.forward.shorten()
                self._compare_instances(" with shorter contexts")
            self._agreement()
            after = self._fingerprints()
            if changed := [name for name, one in weights.items() if after[name] != one]:
                raise EffectError(f"the implementation changes weights of the model, such as {changed[0]}")

    def _fingerprints(self) -> dict[str, int]:
        return {name: fingerprint(weight) for name, weight in self._model.named_parameters()}

    def _rows(self) -> Iterator[Row]:
        changed = self._replacement
        if isinstance(changed, ChangedModel):
            for one, other in changed.first_calls(self.forward):
                self._require_same(type(one.module).__name__, 2, one, other)
        else:
            self._blocks = note_calls(self._model, changed.classes, self.forward)
            if not self._blocks:
                return
        replaced = {key: block for key, block in sorted(self._blocks.items()) if not block.inside}
        if replaced:
            self._compare_instances()
        called = self._replacement.called(self.forward)
        missing = sorted(self._replacement.instances.keys() - called)
        if not called:
            raise NotPropagatedError(f"none of {', '.join(missing)} is called in {self._name}")
        self._reached = {
            "replaced": len(self._replacement.instances),
            "called": len(called),
            "missing": missing[:LISTED],
            "kept": changed.kept if isinstance(changed, ChangedModel) else {},
        }
        agreement = self._agreement()
        if self.forward.trains:
            yield from self._whole(agreement, None, None)
            return
        with keep_experts(() if self._chooses else self._models, self.forward):
            yield from self._timed(replaced.keys(), agreement)

    def _timed(self, replaced: Collection[Key], agreement: Mapping[str, float]) -> Iterator[Row]:
        saved: dict[Key, float] = {}
        """Milliseconds that a call of a replaced module takes less, by its inputs."""
        host: dict[Key, float] = {}
        for key, block in sorted(self._blocks.items()):
            row = self._block(block, saved)
            if key in replaced:
                saved[key] = median(row.samples["baseline"]) - median(row.samples["candidate"])
                host[key] = row.host_ms["baseline"] - row.host_ms["candidate"] if row.host_ms else saved[key]
            yield row
        calls = {key: self._blocks[key].count - self._blocks[key].nested for key in replaced}
        of_device, of_host = (sum(count * one[key] for key, count in calls.items()) for one in (saved, host))
        yield from self._whole(agreement, of_device if calls else None, of_host if calls else None)

    def _block(self, block: ModuleCalls, saved: Mapping[Key, float]) -> Row:
        """Return the row of a module of levels 1 to 3, called alone with the inputs of the first of its calls.

        One that is replaced is compared once more, with other values in the same tensors: nothing may be kept by their address.
        """
        first = block.first[0]

        def call() -> Any:
            with self.forward.context():
                return first()

        samples = without_drift(self._rounds(lambda _: self._timer(call), SECONDS))
        if not (block.inside or self._in_place):
            for one in (*first.args, *first.named.values()):
                if isinstance(one, Tensor) and one.is_floating_point() and not isinstance(one, nn.Parameter):
                    one.copy_(one.roll(1, -1))
            with self._side("candidate"):
                output = call()
            self._require_same(block.name, block.level, first, first, output, " after its inputs changed")
        predicted = None
        if block.inside:
            less = sum(count / block.count * saved[key] for key, count in block.inside.items())
            predicted = max(median(samples["baseline"]) - less, 0.0)
        host = {}
        if self._cuda and not block.inside:
            for side in SIDES[:2]:
                with self._side(side):
                    host[side] = _host_ms(call)
        return Row(
            level=block.level,
            module=block.name,
            phase=self._name,
            calls=block.count,
            samples=samples,
            timer=Timer.CUPTI if self._cuda else Timer.MONOTONIC,
            predicted_ms=predicted,
            host_ms=host,
            reached=self._reached,
        )

    def _timer(self, call: Callable[[], Any]) -> Sample:
        if not self._cuda:
            return lambda: median(_wall_ms(call, self._device) for _ in range(CALLS))
        timer = CudaTimer(call, (), self._device, cold=False)
        return lambda: median(one.ms for one in retry(lambda: timer.by_kernels(CALLS)))

    def _whole(
        self, agreement: Mapping[str, float], saved_ms: float | None, host_saved_ms: float | None
    ) -> Iterator[Row]:
        """Yield the rows of the whole model; the first has what is known of it without the others."""
        first: dict[str, Any] = {"agreement": agreement, "parts": self._parts()}
        busy = 0.0
        limited = self._cuda and not self.forward.decodes
        fewest, idle = (MIN_LIMITED_ROUNDS, IDLE_PASSES) if limited else (MIN_ROUNDS, 0)
        if self._cuda:
            launches: dict[str, int] = {}
            first["peak_bytes"] = {side: self._peak_bytes(side) for side in SIDES[:2]}

            def busy_ms(side: str) -> float:
                activities = record_activities(partial(self._pass, side))
                launches[side] = len(activities)
                return sum(one.duration_ns for one in activities) / 1e6

            rounds = self._rounds(lambda side: lambda: busy_ms(side), MODEL_SECONDS, fewest, idle)
            samples = fastest(rounds) if limited else without_drift(rounds)
            busy = median(samples["baseline"])
            yield self._model_row("device", samples, saved_ms, Timer.CUPTI, launches=launches, **first)
            first = {}
        rounds = self._rounds(
            lambda side: lambda: _wall_ms(partial(self._pass, side), self._device),
            MODEL_SECONDS,
            fewest,
            idle,
        )
        samples = without_drift(rounds)
        waits = self._cuda and median(samples["baseline"]) > HOST_BOUND * busy
        saved = host_saved_ms if waits else saved_ms
        yield self._model_row("eager", samples, saved, Timer.MONOTONIC, **first)
        if self._cuda and self.forward.decodes:
            pool = torch.cuda.graph_pool_handle()  # shared, so that all sides use the same addresses
            samples = without_drift(self._rounds(lambda side: self._graph(side, pool), MODEL_SECONDS))
            yield self._model_row("CUDA graph", samples, saved_ms, Timer.MONOTONIC)

    def _model_row(
        self,
        how: str,
        samples: Mapping[str, Sequence[float]],
        saved_ms: float | None,
        timer: Timer,
        **details: Any,
    ) -> Row:
        return Row(
            level=4,
            module=how,
            phase=self._name,
            calls=1,
            samples=samples,
            timer=timer,
            predicted_ms=None if saved_ms is None else max(median(samples["baseline"]) - saved_ms, 0.0),
            reached=self._reached,
            **details,
        )

    def _pass(self, side: str) -> None:
        logits = self.forward()
        if self._logits is not None:
            self._logits[side] = logits

    def _parts(self) -> list[Part]:
        """Return the time of each kernel; nothing for transformers' models, whose kernels are no modules."""
        if not isinstance(self._model, CausalLM):
            return []
        return break_down(self._model, self.forward, lambda call: self._timer(call)(), cuda=self._cuda)

    def _peak_bytes(self, side: str) -> int:
        """Return the memory of a pass in addition to weights, inputs and cache."""
        with self._side(side):
            self.forward()
            self._model.zero_grad()
            torch.cuda.synchronize()
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
            self.forward()
            torch.cuda.synchronize()
        return int(torch.cuda.max_memory_allocated() - before)

    def _graph(self, side: str, pool: Any) -> Sample:
        """Return a timer of the forward pass as a CUDA graph with its memory in a pool.

        Raises:
            EffectError: The graph computes other logits than the pass, for other tokens than those it was captured with.
        """
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.forward()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=pool):
            logits = self.forward()
        self.forward.change()
        graph.replay()
        if beyond := compare_logits(logits.clone(), self.forward()).beyond:
            raise EffectError(f"the CUDA graph of the {side} computes something else than a pass: {beyond}")
        return lambda: _wall_ms(graph.replay, self._device)

    def _side(self, side: str) -> Side:
        return self._replacement.active() if side == "candidate" else nullcontext()

    def _rounds(
        self, timer: Callable[[str], Sample], seconds: float, fewest: int = MIN_ROUNDS, idle: float = 0
    ) -> list[Round]:
        """Return times of all sides, which take turns; ``timer`` makes the timer of a side.

        After each, the device is idle for ``idle`` times as long.
        """
        timers: dict[str, Sample] = {}
        for side in SIDES:
            with self._side(side):
                timers[side] = timer(side)
        rounds: list[Round] = []
        start, number = perf_counter(), -WARM_ROUNDS
        compared = secrets.randbelow(fewest), secrets.choice((SIDES, SIDES[::-1]))
        while number < fewest or (number < MAX_ROUNDS and perf_counter() - start < seconds):
            found = []
            for sides in (SIDES, SIDES[::-1]):
                self.forward.change()  # nothing can be kept of what a side computed before
                picked = (number, sides) == compared
                self._logits = {} if self._comparable and picked else None
                noted: dict[str, tuple[ModuleCall, Any]] = {}
                for side in sides:
                    with self._side(side), self._noting(noted, picked and side == "candidate"):
                        found.append((side, ms := timers[side]()))
                    sleep(idle * ms / 1000)
                self._require_alike()
                for name, (call, output) in noted.items():
                    self._require_same(name, call.key[0], call, call, output, " in a timed pass")
            if number >= 0:
                rounds.append(found)
            number += 1
            start = perf_counter() if number == 0 else start
        return rounds

    def _require_alike(self) -> None:
        """Raise ``EffectError`` unless the logits of timed passes that were kept agree."""
        kept, self._logits = self._logits, None
        if kept and (beyond := compare_logits(kept["candidate"], kept["baseline"]).beyond):
            raise EffectError(
                f"the model computes something else with the implementation in a timed pass: {beyond}"
            )

    def _compare_instances(self, when: str = "") -> None:
        """Compare each replaced module by itself, after its first call: a kernel may be right with the weights of one only.

        ``when`` is told of one that differs.
        """
        waiting = {*self._replacement.instances.values()}
        running: list[ModuleCall] = []
        compared: list[ModuleCall] = []
        """The call that is being compared, inside of which modules are called again."""

        def after() -> None:
            call = running.pop()
            if call.module in waiting and not compared:
                waiting.remove(call.module)
                compared.append(call)
                block = self._blocks[call.key]
                with torch.no_grad():
                    self._require_same(block.name, block.level, call, call, when=when)
                compared.clear()

        with hooked(self._model, {1, 2}, running.append, after):
            self.forward()

    @contextmanager
    def _noting(self, noted: dict[str, tuple[ModuleCall, Any]], wanted: bool) -> Iterator[None]:
        """Note the last call of each replaced class, with its output, if ``wanted`` and modules are to be compared."""

        def note(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> None:
            noted[type(module).__name__] = ModuleCall(module, args, named), output

        modules = (
            {*self._replacement.instances.values()} if wanted and self._chooses and not self._in_place else ()
        )
        handles = [one.register_forward_hook(note, with_kwargs=True) for one in modules]
        try:
            yield
        finally:
            for handle in handles:
                handle.remove()

    def _require_same(
        self, name: str, level: int, call: ModuleCall, changed: ModuleCall, output: Any = None, when: str = ""
    ) -> None:
        """Raise ``EffectError`` unless a module computes the same with the implementation, or did: ``output``, and ``when``."""
        args, named = _copied(changed.args), _copied(changed.named)  # it may overwrite these
        with self.forward.context():
            theirs = call()
            expected = [one.clone() for one in tensors_of(theirs) if one is not None]
            with self._side("candidate"):
                ours = changed.module(*args, **named) if output is None else output
        found = [one for one in tensors_of(ours) if one is not None]
        if changed.module is not call.module:  # some attention of transformers returns its weights, too
            del found[len(expected) :], expected[len(found) :]
        kinds, wanted = ([_kind(one) for one in some] for some in (found, expected))
        if kinds != wanted or isinstance(ours, tuple) is not isinstance(theirs, tuple):
            a_tuple = "a tuple of " if isinstance(ours, tuple) and not isinstance(theirs, tuple) else ""
            raise EffectError(
                f"{name} returns {a_tuple}{', '.join(kinds) or 'nothing'} with it, not {', '.join(wanted)}"
            )
        limit = max((_norm_limit(one.dtype) for one in expected), default=0.0)
        limit *= 1 if level == 1 else BLOCK_FACTOR
        of_part = HARD_CAP * limit
        # Of experts that are tied either may be chosen, which changes a row.
        if isinstance(call.module, FusedMoE):
            untied = untied_tokens(call.args[1], call.module.top_k)
            found, expected = ([one[untied] for one in some] for some in (found, expected))
        elif has_experts(call.module):
            limit, of_part = ROUTER_FACTOR * limit, inf
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            differs = (
                f"{name} computes something else with the implementation{when}: output {number} differs by"
            )
            if not (error := relative_error(one, other)) <= limit:
                raise EffectError(f"{differs} {error:.2g} of its norm")
            if not (error := error_of_parts(one, other)) <= of_part:
                raise EffectError(f"{differs} {error:.2g} of the norm of a row or column")
        if isinstance(self._replacement, Replacement) and not self._in_place:
            given = zip((*changed.args, *changed.named.values()), (*args, *named.values()), strict=True)
            if not all(same_bits(one, other) for one, other in given if isinstance(one, Tensor)):
                raise EffectError(
                    f"{name} overwrites its input with the implementation, which does not declare in_place=True"
                )

    def _agreement(self) -> dict[str, float]:
        """Return how the logits, or loss and gradients, with the implementation differ from those without."""

        def logits(side: str) -> Tensor:
            with self._side(side):
                return self.forward()

        def trained(side: str) -> Trained:
            loss = logits(side)
            gradients = {name: weight.grad for name, weight in self._model.named_parameters()}
            self._model.zero_grad()
            return loss, gradients

        run, compare = (trained, compare_gradients) if self.forward.trains else (logits, compare_logits)
        found = compare_with_same_experts(
            self._models, partial(run, "baseline"), partial(run, "candidate"), compare
        )
        if found.beyond:
            raise EffectError(f"the model computes something else with the implementation: {found.beyond}")
        return dict(found.data)


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
    levels = [median(ms for _, ms in found) for found in rounds]
    common = median(levels)
    leveled = zip(levels, rounds, strict=True)
    return grouped((side, ms * common / level) for level, found in leveled for side, ms in found)


def _norm_limit(dtype: torch.dtype) -> float:
    """Return the largest error of a kernel's result of this type, relative to its norm."""
    return dtype_tolerance(dtype).rtol * (HALF_FACTOR if dtype.itemsize == 2 else 1)


def _kind(value: Any) -> str:
    return describe(value) if isinstance(value, Tensor) else type(value).__name__


def _copied(value: Any) -> Any:
    """Return a copy of a tensor in the same layout, also inside of a tuple or dictionary; other values as they are."""
    if isinstance(value, tuple):
        return tuple(_copied(one) for one in value)
    if isinstance(value, dict):
        return {name: _copied(one) for name, one in value.items()}
    if not isinstance(value, Tensor):
        return value
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device).copy_(
        value
    )


def _wall_ms(call: Callable[[], Any], device: str) -> float:
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    start = perf_counter()
    call()
    if device.startswith("cuda"):
        torch.cuda.synchronize()
    return 1000 * (perf_counter() - start)


def _host_ms(call: Callable[[], Any]) -> float:
    """Return the host's milliseconds to issue a call, without waiting for the device."""
    times = []
    for _ in range(CALLS):
        torch.cuda.synchronize()
        start = perf_counter()
        call()
        times.append(1000 * (perf_counter() - start))
    return median(times)
