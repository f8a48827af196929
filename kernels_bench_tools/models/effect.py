"""The effect of an implementation on a model: records of times with and without it, at each level that it reaches."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import torch
from torch import nn

from kernels_bench_tools.errors import Unsupported
from kernels_bench_tools.hub import loaded_kernels
from kernels_bench_tools.hub.kernel import use_in_transformers
from kernels_bench_tools.measure.device.environment import (
    describe_device,
    describe_environment,
    imported_packages,
    torch_device,
)
from kernels_bench_tools.measure.operator import CallError, failed_status, failure_of
from kernels_bench_tools.measure.task import RecordFile, Task
from kernels_bench_tools.measure.timing.sampling import Call, summarize
from kernels_bench_tools.models.baseline.L4 import CausalLM
from kernels_bench_tools.models.changed_model import ChangedModel
from kernels_bench_tools.models.forward_pass import (
    EffectError,
    PagedPass,
    TransformersPass,
    random_model,
    transformers_model,
)
from kernels_bench_tools.models.phase import WARM_ROUNDS, NotPropagatedError, PhaseMeasurement
from kernels_bench_tools.models.replacement import Replacement, Substitute, replace
from kernels_bench_tools.records.model import phase_sizes
from kernels_bench_tools.records.record import SCHEMA, CacheState, Effect, Failure, Record, Status, Timer
from kernels_bench_tools.records.request import TRANSFORMERS, CellContext, EffectRequest
from kernels_bench_tools.text.numbers import milliseconds

FILE = "effect.jsonl"
"""The file of records of ``run_model``, in the working directory."""

Print = Callable[[str], object]
_Start = tuple[nn.Module, Callable[[], Replacement | ChangedModel]]
"""A model, and what changes it as it is then."""


def measure_effect(substitutes: Sequence[Substitute], context: CellContext, say: Print) -> list[Record]:
    """Measure a model with and without implementations; write and return a record for each level and phase.

    Records name the first implementation. If the model cannot use one of them, a single record without a workload says why.
    """

    def start(request: EffectRequest | None) -> _Start:
        for given in substitutes:
            if failure := given.task.failure:
                raise CallError(failure.status, failure.failure)
        assert request
        make = transformers_model if request.framework == TRANSFORMERS else random_model
        # What cannot be replaced is refused before weights are made.
        replace(make(request, "meta"), substitutes)
        model = make(request, substitutes[0].task.device)
        return model, partial(replace, model, substitutes)

    return _measured(substitutes[0].task, context, start, say)


def run_model(change: Callable[[Any], Any], *, device: str | None = None) -> list[Record]:
    """Measure a model of transformers with and without a change; append and return a record of each forward pass.

    What a notebook of ``transformers_models/`` calls. ``kbt effect FOLDER/NOTEBOOK --framework transformers --model MODEL``
    chooses the model. Without a model, as in ``kbt build``, a single record names this command.

    Args:
        change: Gets a copy of the model, on the same weights, and changes it in place, or returns what is called in
            its place. Each replaced module and the logits are compared with those of the unchanged model.
        device: ``"cuda"`` or ``"cpu"``. Default: the first CUDA device, if there is one.
    """
    context = CellContext.load()
    task = Task(
        operator=context.operator.rpartition("/")[2],
        workloads="",
        device=device or torch_device(),
        implementation=context.implementation or change.__name__,
        tags={"family": context.family} if context.family else {},
        file=FILE,
    )
    return measure_change(task, change, context, partial(print, end="", flush=True))


def measure_change(
    task: Task, change: Callable[[Any], Any], context: CellContext, say: Print
) -> list[Record]:
    """Measure a model of transformers with and without a change; write and return a record for each phase.

    If the model cannot be changed, or its results differ then, a single record without a workload says why.
    """

    def start(request: EffectRequest | None) -> _Start:
        if request is None or request.framework != TRANSFORMERS:
            name = f"{context.operator}/{task.implementation}"
            command = f"kbt effect {name} --framework {TRANSFORMERS} --model MODEL"
            raise Unsupported(f"is measured in a model only, by `{command}`")
        model = transformers_model(request, task.device)
        use_in_transformers()
        return model, partial(ChangedModel, model, change)

    return _measured(task, context, start, say)


def _measured(
    task: Task, context: CellContext, start: Callable[[EffectRequest | None], _Start], say: Print
) -> list[Record]:
    """Write and return the records of all phases, or one of what failed."""
    records, request = _EffectRecords(task, context, say), context.request.effect
    try:
        model, change = start(request)
        assert request
        make_pass = PagedPass if isinstance(model, CausalLM) else TransformersPass
        names: set[str] = set()
        for trains in (False, True):
            if not (phases := [name for name in request.phases if phase_sizes(name).trains is trains]):
                continue
            model.train(trains)  # which kernels transformers chooses depends on it
            changed = change()
            names |= {type(module).__name__ for module in changed.instances.values()}
            runs: Any = changed if isinstance(changed, ChangedModel) else model
            for phase in phases:
                with torch.no_grad():
                    given = phase, model, changed, make_pass(runs, task.device, phase), task.device
                    records.keep(PhaseMeasurement(*given, records.of_module).records())
        if not records.file.records:
            raise NotPropagatedError(
                f"the model calls no {', '.join(sorted(names))} in {', '.join(request.phases)}"
            )
    except EffectError as error:
        kind = type(error).__name__.removesuffix("Error")
        records.fail(Status.ERROR, Failure(type=kind, msg=str(error)))
    except Exception as error:
        records.fail(failed_status(error), failure_of(error))
    return records.file.records


class _EffectRecords:
    """Makes the records of a run, and writes them into the task's file."""

    def __init__(self, task: Task, context: CellContext, say: Print) -> None:
        self.file = RecordFile(Path(task.file))
        self._task, self._context, self._say = task, context, say
        self._run, self._device = uuid.uuid4().hex, describe_device(task.device)

    def keep(self, records: Iterator[Record]) -> None:
        """Print the records of a phase as they are made, and append them after the last."""
        made = []
        for record in records:
            made.append(record)
            effect, latency = record.effect, record.lat_ms
            assert effect
            assert latency
            times = f"{milliseconds(effect.baseline.p50)} -> {milliseconds(latency.p50)} ms"
            self._say(f"{effect.phase}  L{effect.level} {effect.module} ({effect.calls} calls)  {times}\n")
        for record in made:
            self.file.append(record)

    def fail(self, status: Status, failure: Failure) -> None:
        """Append a record that says why there are no others."""
        self.file.append(self._record(status=status, err=failure))

    def of_module(
        self,
        *,
        samples: Mapping[str, Sequence[float]],
        timer: Timer,
        agreement: Mapping[str, float] | None = None,
        peak_bytes: int | None = None,
        **fields: Any,
    ) -> Record:
        """Return the record of samples, in milliseconds by side; ``fields`` are those of :class:`Effect`."""
        request = self._context.request.effect
        assert request
        how: dict[str, Any] = {"timer": timer, "cache": CacheState.HOT, "warmup": 2 * WARM_ROUNDS}
        how |= {"input_sets": 1, "stop_reason": "max_seconds"}
        latencies = {side: summarize([*map(Call, times)], **how) for side, times in samples.items()}
        effect = Effect(
            model=request.model,
            others=[other.implementation for other in request.others],
            other_digests=[other.digest for other in request.others],
            layers=request.layers,
            baseline=latencies["baseline"],
            again=latencies["again"],
            **fields,
        )
        return self._record(
            wl={"name": effect.workload, "device": self._device.kind},
            status=Status.OK,
            ok=True,
            lat_ms=latencies["candidate"],
            corr=dict(agreement or {}),
            peak_bytes=peak_bytes,
            effect=effect,
        )

    def _record(self, **fields: Any) -> Record:
        return Record(
            schema=SCHEMA,
            ts=datetime.now(UTC).isoformat(timespec="milliseconds"),
            run=self._run,
            op=self._task.operator,
            impl=self._task.implementation,
            tags=self._task.tags,
            device=self._device,
            process=self._context.process,
            env=describe_environment(self._task.device),
            provenance=msgspec.structs.replace(
                self._context.provenance(), packages=imported_packages(), hub=loaded_kernels()
            ),
            **fields,
        )
