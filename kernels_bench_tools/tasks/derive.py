"""Derive the tasks of models: run their modules on torch's ``meta`` device and note every call.

``python -m kernels_bench_tools.tasks.derive`` writes the files of ``derived/`` again.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from kernels_bench_tools.file_io import write_atomically
from kernels_bench_tools.schema.model import (
    RANKS,
    ModelTask,
    ModelTasks,
    Phase,
    Sizes,
    derived_folder,
    phase_sizes,
)
from kernels_bench_tools.tasks.baseline.build import build_model
from kernels_bench_tools.tasks.baseline.forward_context import plan_batch, set_forward_context
from kernels_bench_tools.tasks.baseline.L4.causal_lm import CausalLM
from kernels_bench_tools.tasks.config import config_keys, load_config, splitting_problems

PHASES = ("prefill-2048", "decode-1", "decode-32")
BLOCK_SIZE = 16
_TRANSFORMERS_LEVELS = (
    ("RMSNorm", 1),
    ("MLP", 2),
    ("Attention", 2),
    ("Experts", 2),
    ("MoeBlock", 2),
    ("DecoderLayer", 3),
)
"""Ends of the names of classes."""
_LEVEL = re.compile(r"\.L([1-4])\.")
_NUMBER = re.compile(r"\.\d+(?=\.|$)")


def derive(model: str, ranks: int = 1) -> ModelTasks:
    """Return the tasks of a model that comes with this package, such as ``llama-3.1-8b``, or of the first of its ranks.

    Raises:
        ModelError: The model is not known, or cannot be split over this many ranks.
    """
    config = load_config(model)
    built = build_model(config, size=ranks)
    parameters = sum(parameter.numel() for parameter in built.parameters())
    phases = [_phase(built, name, phase_sizes(name)) for name in PHASES]
    return ModelTasks(model=model, source=config.source, parameters=parameters, phases=phases)


def _phase(model: CausalLM, name: str, sizes: Sizes) -> Phase:
    blocks = -(-sizes.context // BLOCK_SIZE)
    model.allocate_kv_cache(sizes.sequences * blocks, BLOCK_SIZE)
    tables = torch.zeros(sizes.sequences, blocks, dtype=torch.long, device="meta")
    new, lengths = [sizes.tokens] * sizes.sequences, [sizes.context] * sizes.sequences
    positions, batch = plan_batch(new, lengths, tables, BLOCK_SIZE)
    tasks: dict[tuple[int, str, tuple[str, ...]], ModelTask] = {}

    def note(
        level: int, path: str, module: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any]
    ) -> None:
        kind, inputs = type(module).__name__, [*describe_inputs(module, args, named)]
        new = ModelTask(level=level, module=kind, inputs=inputs, calls=0, paths={})
        task = tasks.setdefault((level, kind, tuple(inputs)), new)
        where = _NUMBER.sub(".*", path)
        task.calls += 1
        task.paths[where] = task.paths.get(where, 0) + 1

    handles = []
    for path, module in model.named_modules():
        if level := level_of(module):
            handles.append(
                module.register_forward_pre_hook(
                    lambda one, args, named, level=level, path=path: note(level, path, one, args, named),
                    with_kwargs=True,
                )
            )
    with torch.no_grad(), set_forward_context(batch):
        model.compute_logits(model(torch.zeros_like(positions), positions))
    for handle in handles:
        handle.remove()
    found = sorted(tasks.values(), key=lambda task: (task.level, -task.calls, task.module, task.inputs))
    return Phase(
        name=name, sequences=sizes.sequences, tokens=sizes.tokens, context=sizes.context, tasks=found
    )


def level_of(module: nn.Module) -> int:
    """Return the level of a module of this project or of transformers; 0 for modules of no level, such as lists."""
    kind = type(module)
    if kind.__module__.startswith("transformers.models."):
        return next((level for end, level in _TRANSFORMERS_LEVELS if kind.__name__.endswith(end)), 0)
    match = _LEVEL.search(kind.__module__)
    return int(match[1]) if match else 0


def describe_inputs(module: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any]) -> Iterator[str]:
    """Yield the tensors among the arguments of a call, such as ``x bfloat16[2048, 4096]``."""
    given = inspect.signature(module.forward).bind(*args, **named).arguments
    for name, value in given.items():
        if isinstance(value, Tensor):
            yield f"{name} {describe(value)}"


def describe(tensor: Tensor) -> str:
    """Return type and shape of a tensor, such as ``bfloat16[2048, 4096]``."""
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"


def write_all() -> None:
    """Write the tasks of all models, for each number of ranks that a model can be split over."""
    for key, ranks in product(config_keys(), RANKS):
        if not splitting_problems(load_config(key), ranks):
            folder = derived_folder(ranks)
            folder.mkdir(exist_ok=True)
            tasks = msgspec.json.format(msgspec.json.encode(derive(key, ranks)))
            write_atomically(folder / f"{key}.json", tasks + b"\n")


if __name__ == "__main__":
    write_all()
