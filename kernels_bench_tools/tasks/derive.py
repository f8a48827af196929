"""Derive the tasks of models: run their modules on torch's ``meta`` device and note every call.

``python -m kernels_bench_tools.tasks.derive`` writes the files of ``derived/`` again.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
import torch
from torch import Tensor, nn

from kernels_bench_tools.file_io import write_atomically
from kernels_bench_tools.schema.model import DERIVED, ModelTask, ModelTasks, Phase
from kernels_bench_tools.tasks.baseline.build import build_model
from kernels_bench_tools.tasks.baseline.forward_context import plan_batch, set_forward_context
from kernels_bench_tools.tasks.baseline.L4.causal_lm import CausalLM
from kernels_bench_tools.tasks.config import config_keys, load_config

PHASES = {"prefill-2048": (1, 2048, 2048), "decode-1": (1, 1, 1024), "decode-32": (32, 1, 1024)}
"""Sequences, new tokens of each, and all tokens of each."""
BLOCK_SIZE = 16
_LEVEL = re.compile(r"\.L([1-4])\.")
_NUMBER = re.compile(r"\.\d+(?=\.|$)")


def derive(model: str) -> ModelTasks:
    """Return the tasks of a model that comes with this package, such as ``llama-3.1-8b``."""
    config = load_config(model)
    built = build_model(config)
    parameters = sum(parameter.numel() for parameter in built.parameters())
    phases = [_phase(built, name, *sizes) for name, sizes in PHASES.items()]
    return ModelTasks(model=model, source=config.source, parameters=parameters, phases=phases)


def _phase(model: CausalLM, name: str, sequences: int, tokens: int, context: int) -> Phase:
    blocks = -(-context // BLOCK_SIZE)
    model.allocate_kv_cache(sequences * blocks, BLOCK_SIZE)
    tables = torch.zeros(sequences, blocks, dtype=torch.long, device="meta")
    positions, batch = plan_batch([tokens] * sequences, [context] * sequences, tables, BLOCK_SIZE)
    tasks: dict[tuple[int, str, tuple[str, ...]], ModelTask] = {}

    def note(
        level: int, path: str, module: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any]
    ) -> None:
        kind, inputs = type(module).__name__, [*_inputs(module, args, named)]
        new = ModelTask(level=level, module=kind, inputs=inputs, calls=0, paths=[])
        task = tasks.setdefault((level, kind, tuple(inputs)), new)
        task.calls += 1
        if (where := _NUMBER.sub(".*", path)) not in task.paths:
            task.paths.append(where)

    handles = []
    for path, module in model.named_modules():
        if match := _LEVEL.search(type(module).__module__):
            level = int(match[1])
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
    return Phase(name=name, sequences=sequences, tokens=tokens, context=context, tasks=found)


def _inputs(module: nn.Module, args: tuple[Any, ...], named: Mapping[str, Any]) -> Iterator[str]:
    given = inspect.signature(module.forward).bind(*args, **named).arguments
    for name, value in given.items():
        if isinstance(value, Tensor):
            yield f"{name} {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"


if __name__ == "__main__":
    for key in config_keys():
        write_atomically(
            DERIVED / f"{key}.json", msgspec.json.format(msgspec.json.encode(derive(key))) + b"\n"
        )
