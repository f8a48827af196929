"""Derive the tasks of models: run their modules on torch's ``meta`` device and note every call.

``python -m kernels_bench_tools.models.derive`` writes the files of ``derived/`` again.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import wraps
from itertools import chain, product
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from kernels_bench_tools.file_io import write_atomically
from kernels_bench_tools.models.baseline.forward_context import plan_batch, set_forward_context
from kernels_bench_tools.models.baseline.L4 import CausalLM, build_model
from kernels_bench_tools.models.calls import Key, ModuleCall, describe, hooked, level_of, modules_of_levels
from kernels_bench_tools.models.config import config_keys, load_config, splitting_problems
from kernels_bench_tools.records.model import (
    RANKS,
    ModelTask,
    ModelTasks,
    Phase,
    Sizes,
    derived_folder,
    phase_sizes,
)

PHASES = ("prefill-2048", "decode-1", "decode-32")
BLOCK_SIZE = 16
_NUMBER = re.compile(r"\.\d+(?=\.|$)")


def derive(model: str, ranks: int = 1) -> ModelTasks:
    """Return the tasks of a model that comes with this package, such as ``llama-3.1-8b``, or of the first of its ranks.

    Raises:
        ModelError: The model is not known, or cannot be split over this many ranks.
    """
    config = load_config(model)
    built = build_model(config, size=ranks)
    parameters = sum(parameter.numel() for parameter in built.parameters())
    outputs: dict[Any, Any] = {}
    for module in built.modules():
        if level_of(module) == 1:
            module.forward = _computed_once(module, outputs)
    phases = [_phase(built, name, phase_sizes(name)) for name in PHASES]
    return ModelTasks(model=model, source=config.source, parameters=parameters, phases=phases)


def _computed_once(module: nn.Module, outputs: dict[Any, Any]) -> Callable[..., Any]:
    """Return ``forward`` of a kernel that takes the output of an equal call: on ``meta`` only shapes matter, and torch finds them slowly."""
    forward = module.forward
    own = type(module), *map(describe, module.parameters())

    @wraps(forward)
    def computed_once(*args: Any, **named: Any) -> Any:
        given = chain(args, *named.items())
        key = own, *(describe(value) if isinstance(value, Tensor) else value for value in given)
        if key not in outputs:
            outputs[key] = forward(*args, **named)
        return outputs[key]

    return computed_once


def _phase(model: CausalLM, name: str, sizes: Sizes) -> Phase:
    blocks = -(-sizes.context // BLOCK_SIZE)
    model.allocate_kv_cache(sizes.sequences * blocks, BLOCK_SIZE)
    tables = torch.zeros(sizes.sequences, blocks, dtype=torch.long, device="meta")
    new, lengths = [sizes.tokens] * sizes.sequences, [sizes.context] * sizes.sequences
    positions, batch = plan_batch(new, lengths, tables, BLOCK_SIZE)
    tasks: dict[Key, ModelTask] = {}
    paths = {module: _NUMBER.sub(".*", path) for path, module in model.named_modules()}

    def note(call: ModuleCall) -> None:
        level, kind, inputs = key = call.key
        new = ModelTask(level=level, module=kind, inputs=[*inputs], calls=0, paths={})
        task, where = tasks.setdefault(key, new), paths[call.module]
        task.calls += 1
        task.paths[where] = task.paths.get(where, 0) + 1

    with torch.no_grad(), set_forward_context(batch), hooked(modules_of_levels(model, 1, 2, 3, 4), note):
        model.compute_logits(model(torch.zeros_like(positions), positions))
    found = sorted(tasks.values(), key=lambda task: (task.level, -task.calls, task.module, task.inputs))
    return Phase(
        name=name, sequences=sizes.sequences, tokens=sizes.tokens, context=sizes.context, tasks=found
    )


def write_all() -> None:
    """Write the tasks of all models, for each number of ranks that a model can be split over."""
    for key, ranks in product(config_keys(), RANKS):
        if not splitting_problems(load_config(key), ranks):
            folder = derived_folder(ranks)
            folder.mkdir(exist_ok=True)
            tasks = msgspec.json.encode(derive(key, ranks))
            lines = re.sub(rb'(?=\{"(?:name|level)":)', b"\n", tasks)  # one for each phase and task
            write_atomically(folder / f"{key}.json", lines + b"\n")


if __name__ == "__main__":
    write_all()
