"""``kbt graph``: what a replacement of a module reaches, by imports and by calls."""

import json
import subprocess
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from projects import run_kbt

from kernels_bench_tools.records.model import DERIVED, model_keys, read_model_tasks


@cache
def graph(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_kbt(Path(), "graph", *arguments)


def reach(module: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(graph(module, "--json").stdout)
    return found


@pytest.fixture(scope="module")
def uses() -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(graph("--json").stdout)
    return found


def test_a_kernel_reaches_blocks_layers_and_models_directly_or_through_others(
    uses: dict[str, list[str]],
) -> None:
    users = {one["module"]["class_name"]: one["module"]["level"] for one in reach("silu_and_mul")["users"]}

    assert users["LlamaMLP"] == 2
    assert set(users.values()) == {2, 3, 4}
    assert all({*uses[name]} & {"SiluAndMul", *users} for name in users)


def test_a_module_that_only_names_another_one_is_told_from_one_that_calls_it() -> None:
    users = {one["module"]["class_name"]: one["models"] for one in reach("RMSNorm")["users"]}

    # Of the attention layers, only those of Qwen3 normalize queries and keys.
    assert users["LlamaAttention"] == ["qwen3-235b-a22b", "qwen3-30b-a3b", "qwen3-8b"]
    assert users["DecoderLayer"] == []
    assert users["LlamaModel"] == model_keys(DERIVED)


@pytest.mark.parametrize("model", ["llama-3.1-8b", "qwen3-30b-a3b"])
def test_all_that_a_model_calls_is_reached_from_its_class(model: str, uses: dict[str, list[str]]) -> None:
    tasks = [task for phase in read_model_tasks(model).phases for task in phase.tasks]
    (top,) = {task.module for task in tasks if task.level == 4 and "" in task.paths}

    reached, left = set(), [top]
    while left:
        name = left.pop()
        if name not in reached:
            reached.add(name)
            left += uses[name]

    assert {task.module for task in tasks} <= reached


def test_without_a_module_each_class_is_listed_with_what_it_uses() -> None:
    lines = graph().stdout.splitlines()
    layer = " ".join(next(line for line in lines if line.startswith("L3 LlamaDecoderLayer")).split())

    assert layer.startswith("L3 LlamaDecoderLayer L3 DecoderLayer") or "L2 Llama" in layer
    assert "MoE" not in layer
