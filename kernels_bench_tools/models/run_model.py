"""Measure a way to run models of Hugging Face transformers: what a notebook of ``transformers_models/`` calls."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from kernels_bench_tools.measure.device.environment import torch_device
from kernels_bench_tools.measure.task import LoadFailure, Task
from kernels_bench_tools.models.effect import measure_change
from kernels_bench_tools.records.build import TRANSFORMERS, CellContext
from kernels_bench_tools.records.record import Failure, Record, Status

FILE = "effect.jsonl"
"""The file of records, in the working directory."""


def run_model(change: Callable[[Any], Any], *, device: str | None = None) -> list[Record]:
    """Measure a model of transformers with and without a change; append and return a record of each forward pass.

    ``kbt effect FOLDER/NOTEBOOK --framework transformers --model MODEL`` chooses the model. Without it, as in
    ``kbt build``, the only record says so.

    Args:
        change: Gets a copy of the model, on the same weights, and changes it in place, or returns what is called in
            its place. That it computes the same is checked: each replaced module, and the logits.
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
    failure = None
    if not context.effect or context.effect.framework != TRANSFORMERS:
        name = f"{context.operator}/{task.implementation}"
        reason = f"`kbt effect {name} --framework {TRANSFORMERS} --model MODEL` measures it"
        failure = LoadFailure(Status.UNSUPPORTED, Failure(type="Unsupported", msg=reason))
    return measure_change(task, change, context, partial(print, end="", flush=True), failure)
