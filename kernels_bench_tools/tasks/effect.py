"""The effect of an implementation on a model: times with and without it, at each level that it reaches.

All is measured in one process on one set of weights, by replacing ``forward`` of the modules and putting it back.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from statistics import median
from time import perf_counter
from typing import Any, Protocol

import msgspec
import torch
from torch import Tensor, nn

from kernels_bench_tools.measure.device.environment import (
    describe_device,
    describe_environment,
    imported_packages,
)
from kernels_bench_tools.measure.operator import failed_status, failure_of, tensors_of
from kernels_bench_tools.measure.record import RecordFile
from kernels_bench_tools.measure.timing.cuda import CudaTimer
from kernels_bench_tools.measure.timing.cupti import record_activities, retry
from kernels_bench_tools.measure.timing.sampling import Call, summarize
from kernels_bench_tools.schema.build import TRANSFORMERS, CellContext, EffectRequest
from kernels_bench_tools.schema.model import Sizes, phase_sizes
from kernels_bench_tools.schema.record import (
    SCHEMA,
    CacheState,
    Effect,
    Failure,
    Latency,
    Record,
    Status,
    Timer,
)
from kernels_bench_tools.tasks.baseline.build import build_model
from kernels_bench_tools.tasks.baseline.forward_context import plan_batch, set_forward_context
from kernels_bench_tools.tasks.baseline.L4.causal_lm import CausalLM
from kernels_bench_tools.tasks.config import config_from_huggingface
from kernels_bench_tools.tasks.derive import BLOCK_SIZE, describe_inputs, level_of
from kernels_bench_tools.tasks.replacement import Replacement, Substitute, replace
from kernels_bench_tools.text import milliseconds

SECONDS = 1.0
"""For the samples of one row, unless ``MIN_ROUNDS`` take longer."""
MIN_ROUNDS, MAX_ROUNDS = 4, 100
"""A round times both sides twice, in the order ABCCBA."""
CALLS = 10
"""Of a module in one sample, of which the median counts."""
WARM_ROUNDS = 2
HOST_BOUND = 1.1
"""A forward pass waits for the host if it takes this many times as long as its kernels."""
LIMIT_EPS = 4
"""Largest relative error of a kernel's result compared with the baseline's, in units of the type's epsilon. Twice as much
for a block with a kernel inside, whose products round again."""
TIE_EPS = 2
"""Logits that differ by less, relative to the largest, are tied."""
SIDES = ("baseline", "candidate", "again")
WEIGHT_STD = 0.02
_LISTED = 10
"""Paths that a record lists."""

Side = AbstractContextManager[None]
Sample = Callable[[], float]


class EffectError(Exception):
    """The model cannot be measured with the implementation, or computes something else with it."""


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
    task = substitutes[0].task
    file = RecordFile(Path(task.file))
    make = _Records(substitutes, context)
    failure = next((one.task.failure for one in substitutes if one.task.failure), None)
    try:
        if failure:
            make.fail(file, failure.status, failure.failure)
        else:
            _measure(substitutes, context, lambda one: print(_line(file.append(make(one)))))
    except EffectError as error:
        make.fail(
            file, Status.ERROR, Failure(type=type(error).__name__.removesuffix("Error"), msg=str(error))
        )
    except Exception as error:
        make.fail(file, failed_status(error), failure_of(error))
    return list(file.records)


@dataclass(frozen=True, kw_only=True)
class Row:
    """One module of a level, or a way to time the whole model."""

    level: int
    module: str
    phase: str
    calls: int
    samples: Mapping[str, Sequence[float]]
    """Milliseconds, by side."""
    timer: Timer
    predicted_ms: float | None = None
    launches: Mapping[str, int] = field(default_factory=dict)
    host_ms: Mapping[str, float] = field(default_factory=dict)
    agreement: Mapping[str, float] = field(default_factory=dict)
    reached: Mapping[str, Any]
    """The fields of :class:`Effect` that say how many instances were replaced."""

    def median(self, side: str) -> float:
        """Return a side's median in milliseconds."""
        return median(self.samples[side])


def _measure(substitutes: Sequence[Substitute], context: CellContext, add: Callable[[Row], object]) -> None:
    assert context.effect
    device = substitutes[0].task.device
    model, make_pass = _model(context.effect, device)
    replacement = replace(model, substitutes)
    found = False
    with torch.no_grad():
        for phase in context.effect.phases:
            for row in _Phase(model, replacement, device, phase, make_pass(phase)).rows():
                add(row)
                found = True
    if not found:
        names = ", ".join(sorted(one.__name__ for one in replacement.classes))
        raise NotPropagatedError(f"the model calls no {names} in {', '.join(context.effect.phases)}")


def _model(request: EffectRequest, device: str) -> tuple[nn.Module, Callable[[str], ForwardPass]]:
    """Return a model with random weights, and what makes the forward pass of a phase."""
    if request.framework == TRANSFORMERS:
        # Only this framework needs the package.
        from kernels_bench_tools.tasks.transformers_model import TransformersPass, transformers_model

        model = transformers_model(request, device)
        return model, partial(TransformersPass, model, device)
    ours = random_model(request, device)
    return ours, partial(_PagedPass, ours, device)


def random_model(request: EffectRequest, device: str) -> CausalLM:
    """Return a model of this project with random weights, the same in every process."""
    config = config_from_huggingface(request.config, request.model)
    if request.layers:
        layers = min(request.layers, config.num_hidden_layers)
        config = msgspec.structs.replace(config, num_hidden_layers=layers)
    model = build_model(config, device)
    randomize(model, device)
    return model


def randomize(model: nn.Module, device: str) -> None:
    """Give a model the weights that are the same in every process."""
    generator = torch.Generator(device).manual_seed(0)
    for name, weight in model.named_parameters():
        weight.data.normal_(1.0 if "norm" in name else 0.0, WEIGHT_STD, generator=generator)
    model.eval()


class ForwardPass(Protocol):
    """A model with a batch."""

    decodes: bool
    """Whether each sequence gets one token, so that a CUDA graph can be replayed."""

    def __call__(self) -> Tensor:
        """Return the logits of all new tokens."""

    def context(self) -> AbstractContextManager[object]:
        """Return the context in which modules of the model can be called alone."""


class _PagedPass:
    """A forward pass of a model of this project, with a paged cache."""

    def __init__(self, model: CausalLM, device: str, name: str) -> None:
        self._model = model
        sizes = phase_sizes(name)
        known = len(model.model.layers[0].self_attn.rotary_emb.cos_sin_cache)
        if sizes.context > known:
            raise EffectError(
                f"{name} has sequences of {sizes.context} tokens, and the model {known} positions"
            )
        self._positions, self._batch = _fill_cache(model, device, sizes)
        self._ids = random_tokens(len(model.model.embed_tokens.weight), self._positions.shape, device)
        self.decodes = sizes.tokens == 1

    def __call__(self) -> Tensor:
        with self.context():
            return self._model.compute_logits(self._model(self._ids, self._positions))

    def context(self) -> AbstractContextManager[object]:
        return set_forward_context(self._batch)


def random_tokens(vocabulary: int, shape: Sequence[int], device: str) -> Tensor:
    """Return tokens, the same in every process."""
    generator = torch.Generator(device).manual_seed(1)
    return torch.randint(vocabulary, tuple(shape), generator=generator, device=device)


class _Phase:
    """The measurement of a forward pass."""

    def __init__(
        self, model: nn.Module, replacement: Replacement, device: str, name: str, forward: ForwardPass
    ) -> None:
        self._model, self._replacement, self._name, self._device = model, replacement, name, device
        self._cuda = device.startswith("cuda")
        self.forward = forward

    def rows(self) -> Iterator[Row]:
        """Yield the rows of levels 1 to 4; none if the model calls nothing that is replaced in this phase."""
        blocks = note_calls(self._model, self._replacement.classes, self.forward)
        if not blocks:
            return
        called = self._replacement.called(self.forward)
        missing = sorted(self._replacement.instances.keys() - called)
        if not called:
            raise NotPropagatedError(f"none of {', '.join(missing)} is called in {self._name}")
        self._reached = {
            "replaced": len(self._replacement.instances),
            "called": len(called),
            "missing": missing[:_LISTED],
        }
        saved: dict[_Key, float] = {}
        """Milliseconds that a call of a replaced module takes less, by its inputs."""
        host: dict[_Key, float] = {}
        for key, block in sorted(blocks.items()):
            row = self._block(block, saved)
            if not block.inside:
                saved[key] = row.median("baseline") - row.median("candidate")
                host[key] = row.host_ms["baseline"] - row.host_ms["candidate"] if row.host_ms else saved[key]
            yield row
        calls = {key: block.calls for key, block in blocks.items() if not block.inside}
        yield from self._whole(
            sum(count * saved[key] for key, count in calls.items()),
            sum(count * host[key] for key, count in calls.items()),
        )

    def _block(self, block: Block, saved: Mapping[_Key, float]) -> Row:
        """Return the row of a module of levels 1 to 3, called alone with the inputs of the first of its calls."""

        def call() -> Any:
            with self.forward.context():
                return block.module(*block.args, **block.named)

        if not block.inside:
            self._require_same(block, call)
        samples = self._sample(lambda _: self._timer(call))
        predicted = None
        if block.inside:
            less = sum(count / block.calls * saved[key] for key, count in block.inside.items())
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
            calls=block.calls,
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

    def _whole(self, saved_ms: float, host_saved_ms: float) -> Iterator[Row]:
        """Yield the rows of the whole model."""
        agreement = self._agreement()
        busy, busy_row = 0.0, None
        if self._cuda:
            launches: dict[str, int] = {}

            def busy_ms(side: str) -> float:
                activities = record_activities(self.forward)
                launches[side] = len(activities)
                return sum(one.duration_ns for one in activities) / 1e6

            samples = self._sample(lambda side: lambda: busy_ms(side))
            busy_row = self._model_row("device", samples, saved_ms, Timer.CUPTI, agreement, launches)
            busy = busy_row.median("baseline")
            yield busy_row
        samples = self._sample(lambda _: lambda: _wall_ms(self.forward, self._device))
        waits = self._cuda and median(samples["baseline"]) > HOST_BOUND * busy
        yield self._model_row(
            "eager",
            samples,
            host_saved_ms if waits else saved_ms,
            Timer.MONOTONIC,
            {} if busy_row else agreement,
        )
        if self._cuda and self.forward.decodes:
            samples = self._sample(lambda _: self._graph())
            yield self._model_row("CUDA graph", samples, saved_ms, Timer.MONOTONIC)

    def _model_row(
        self,
        how: str,
        samples: Mapping[str, Sequence[float]],
        saved_ms: float,
        timer: Timer,
        agreement: Mapping[str, float] = {},
        launches: Mapping[str, int] = {},
    ) -> Row:
        return Row(
            level=4,
            module=how,
            phase=self._name,
            calls=1,
            samples=samples,
            timer=timer,
            predicted_ms=max(median(samples["baseline"]) - saved_ms, 0.0),
            launches=launches,
            agreement=agreement,
            reached=self._reached,
        )

    def _graph(self) -> Sample:
        """Return a timer of the forward pass as a CUDA graph."""
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            self.forward()
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            self.forward()
        return lambda: _wall_ms(graph.replay, self._device)

    def _side(self, side: str) -> Side:
        return self._replacement.active() if side == "candidate" else nullcontext()

    def _sample(self, timer: Callable[[str], Sample]) -> dict[str, list[float]]:
        """Return samples of all sides, which take turns; ``timer`` makes the timer of a side."""
        timers: dict[str, Sample] = {}
        for side in SIDES:
            with self._side(side):
                timers[side] = timer(side)
        samples: dict[str, list[float]] = {side: [] for side in SIDES}
        start, rounds = perf_counter(), -WARM_ROUNDS
        while rounds < MIN_ROUNDS or (rounds < MAX_ROUNDS and perf_counter() - start < SECONDS):
            for side in (*SIDES, *reversed(SIDES)):
                with self._side(side):
                    ms = timers[side]()
                if rounds >= 0:
                    samples[side].append(ms)
            rounds += 1
            start = perf_counter() if rounds == 0 else start
        return samples

    def _require_same(self, block: Block, call: Callable[[], Any]) -> None:
        """Raise ``EffectError`` unless a module computes the same with the implementation."""
        expected = [one.float().clone() for one in tensors_of(call()) if one is not None]
        kept = block.args
        block.args = tuple(_copied(one) for one in kept)  # which it may overwrite
        try:
            with self._side("candidate"):
                found = [one for one in tensors_of(call()) if one is not None]
        finally:
            block.args = kept
        eps = max((torch.finfo(one.dtype).eps for one in found if isinstance(one, Tensor)), default=0.0)
        for number, (one, other) in enumerate(zip(found, expected, strict=True)):
            error = float((one.float() - other).norm() / other.norm().clamp_min(1e-30))
            if not error <= LIMIT_EPS * eps * (1 if block.level == 1 else 2):
                raise EffectError(
                    f"{block.name} computes something else with it: output {number} differs by {error:.2g} of its norm"
                )

    def _agreement(self) -> dict[str, float]:
        """Return how the logits with the implementation differ from those without."""
        with self._side("baseline"):
            expected = self.forward()
        with self._side("candidate"):
            found = self.forward()
        return compare_logits(found, expected)


def compare_logits(found: Tensor, expected: Tensor) -> dict[str, float]:
    """Return relative error, mean KL divergence, and the share of equal first choices among tokens without a tie.

    Both are (tokens, vocabulary).
    """
    eps = torch.finfo(expected.dtype).eps
    error = square = divergence = 0.0
    same = clear = 0
    for ours, theirs in zip(found.split(256), expected.split(256), strict=True):
        ours, theirs = ours.float(), theirs.float()
        error += float((ours - theirs).square().sum())
        square += float(theirs.square().sum())
        logs = theirs.log_softmax(-1)
        divergence += float((logs.exp() * (logs - ours.log_softmax(-1))).sum())
        first, second = theirs.topk(2, dim=-1).values.unbind(-1)
        untied = first - second > TIE_EPS * eps * first.abs()
        same += int((untied & (ours.argmax(-1) == theirs.argmax(-1))).sum())
        clear += int(untied.sum())
    return {
        "relative_error": (error / square) ** 0.5 if square else error,
        "kl": divergence / len(expected),
        "top1": same / clear if clear else 1.0,
    }


_Key = tuple[int, str, tuple[str, ...]]
"""Level, class and inputs."""


@dataclass
class Block:
    """Calls of one class with inputs of the same shapes."""

    level: int
    name: str
    module: nn.Module
    """The first that was called."""
    args: tuple[Any, ...]
    named: dict[str, Any]
    calls: int = 0
    inside: Counter[_Key] = field(default_factory=Counter)
    """Calls of replaced modules inside of all of its calls; empty for a replaced module."""


def note_calls(
    model: nn.Module, classes: set[type[nn.Module]], forward: Callable[[], Any]
) -> dict[_Key, Block]:
    """Return the calls, in a forward pass, of modules of ``classes``, and of the blocks and layers that call them."""
    blocks: dict[_Key, Block] = {}
    running: list[_Key] = []

    def before(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        level, name = level_of(module), type(module).__name__
        key = (level, name, tuple(describe_inputs(module, args, named)))
        block = blocks.setdefault(key, Block(level, name, module, args, named))
        block.calls += 1
        if type(module) in classes:
            for outer in running:
                blocks[outer].inside[key] += 1
        running.append(key)

    def after(*_: Any) -> None:
        running.pop()

    handles = []
    for module in model.modules():
        if level_of(module) in {1, 2, 3}:
            handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(module.register_forward_hook(after))
    try:
        forward()
    finally:
        for handle in handles:
            handle.remove()
    names = {one.__name__ for one in classes}
    found = {key: block for key, block in blocks.items() if block.inside or key[1] in names}
    for key, block in found.items():
        block.name = _label(key, [other for other in found if other[1] == block.name])
    return found


def _label(key: _Key, alike: Sequence[_Key]) -> str:
    """Return the name of a class, with what distinguishes its inputs from those of its other calls."""
    label = key[1]
    arguments = [dict(one.split(" ", 1) for one in inputs) for *_, inputs in alike]
    own = dict(one.split(" ", 1) for one in key[2])
    if extra := [name for name in own if not all(name in other for other in arguments)]:
        label += f" with {', '.join(extra)}"
    if sum(other.keys() == own.keys() for other in arguments) > 1:
        shape = next(iter(own.values())).partition("[")[2].rstrip("]")
        label += f" of {shape.replace(', ', '×')}"
    return label


def _fill_cache(model: CausalLM, device: str, sizes: Sizes) -> tuple[Tensor, Any]:
    """Make a cache with random keys and values; return the positions of the new tokens and what attention needs."""
    blocks = -(-sizes.context // BLOCK_SIZE)
    model.allocate_kv_cache(sizes.sequences * blocks, BLOCK_SIZE)
    generator = torch.Generator(device).manual_seed(2)
    for layer in model.model.layers:
        layer.self_attn.kv_cache.normal_(generator=generator)
    order = torch.randperm(sizes.sequences * blocks, generator=generator, device=device)
    new, lengths = [sizes.tokens] * sizes.sequences, [sizes.context] * sizes.sequences
    return plan_batch(new, lengths, order.view(sizes.sequences, blocks), BLOCK_SIZE)


def _copied(value: Any) -> Any:
    """Return a copy of a tensor in the same layout; other values as they are."""
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


class _Records:
    """Makes the records of a run."""

    def __init__(self, substitutes: Sequence[Substitute], context: CellContext) -> None:
        assert context.effect
        first, task = substitutes[0], substitutes[0].task
        self._request = context.effect
        self._common: dict[str, Any] = {
            "schema": SCHEMA,
            "run": uuid.uuid4().hex,
            "op": first.operator.name,
            "impl": task.implementation,
            "tags": task.tags,
            "device": describe_device(task.device),
            "process": context.process,
        }
        self._context, self._task = context, task

    def __call__(self, row: Row) -> Record:
        """Return the record of a row."""
        latencies = {side: _latency(samples, row.timer) for side, samples in row.samples.items()}
        effect = Effect(
            model=self._request.model,
            others=[one.implementation for one in self._request.others],
            phase=row.phase,
            layers=self._request.layers,
            level=row.level,
            module=row.module,
            calls=row.calls,
            baseline=latencies["baseline"],
            again=latencies["again"],
            predicted_ms=row.predicted_ms,
            **row.reached,
            launches=row.launches.get("candidate"),
            baseline_launches=row.launches.get("baseline"),
            host_ms=row.host_ms.get("candidate"),
            baseline_host_ms=row.host_ms.get("baseline"),
        )
        name = f"{self._request.model}_{row.phase}_L{row.level}_{row.module}"
        return self._record(
            wl={"name": name, "device": self._common["device"].kind},
            status=Status.OK,
            ok=True,
            lat_ms=latencies["candidate"],
            corr=dict(row.agreement),
            effect=effect,
        )

    def fail(self, file: RecordFile, status: Status, failure: Failure) -> None:
        """Append a record that says why there are no others."""
        file.append(self._record(status=status, err=failure))

    def _record(self, **fields: Any) -> Record:
        packages = imported_packages()
        return Record(
            ts=datetime.now(UTC).isoformat(timespec="milliseconds"),
            env=describe_environment(self._task.device),
            provenance=msgspec.structs.replace(self._context.provenance(), packages=packages),
            **self._common,
            **fields,
        )


def _latency(samples: Sequence[float], timer: Timer) -> Latency:
    calls = [Call(ms) for ms in samples]
    return summarize(
        calls,
        timer=timer,
        cache=CacheState.HOT,
        input_sets=1,
        warmup=2 * WARM_ROUNDS,
        stop_reason="max_seconds",
    )


def _line(record: Record) -> str:
    effect, latency = record.effect, record.lat_ms
    assert effect
    assert latency
    times = f"{milliseconds(effect.baseline.p50)} -> {milliseconds(latency.p50)} ms"
    return f"{effect.phase}  L{effect.level} {effect.module} ({effect.calls} calls)  {times}\n"
