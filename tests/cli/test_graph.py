"""``kbt graph``: what a replacement of a module reaches, by imports and by calls."""

import json
import subprocess
from functools import cache
from itertools import pairwise
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


def test_a_kernel_reaches_blocks_layers_and_models_through_a_chain_of_uses(
    uses: dict[str, list[str]],
) -> None:
    found = reach("silu_and_mul")

    assert "LlamaMLP" in {one["module"]["class_name"] for one in found["users"]}
    for one in found["users"]:
        through = one["through"]
        assert (through[0], through[-1]) == (one["module"]["class_name"], "SiluAndMul")
        assert all(later in uses[earlier] for earlier, later in pairwise(through))
    assert {one["module"]["level"] for one in found["users"]} == {2, 3, 4}


def test_a_module_that_only_names_another_one_is_told_from_one_that_calls_it() -> None:
    users = {one["module"]["class_name"]: one["models"] for one in reach("RMSNorm")["users"]}

    # Of the attention layers, only those of Qwen3 normalize queries and keys.
    assert users["LlamaAttention"] == ["qwen3-235b-a22b", "qwen3-30b-a3b", "qwen3-8b"]
    assert users["DecoderLayer"] == []
    assert users["LlamaModel"] == model_keys(DERIVED)


def test_calls_are_those_of_the_models_forward_passes() -> None:
    calls = reach("rms_norm")["calls"]

    assert calls["llama-3.1-8b"] == {"prefill-2048": 65, "decode-1": 65, "decode-32": 65}
    assert list(calls) == model_keys(DERIVED)


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


def test_the_tree_of_a_model_shows_its_layers_blocks_and_kernels() -> None:
    lines = graph().stdout.splitlines()
    llama = lines[: next(n for n, line in enumerate(lines[1:], 1) if line.startswith("L4 "))]

    assert llama[0] == "L4 LlamaForCausalLM"
    for name in ("L3 LlamaDecoderLayer", "L2 LlamaAttention", "L1 SiluAndMul"):
        assert any(line.strip() == name for line in llama), name
    assert not any("MoE" in line for line in llama)


@pytest.mark.parametrize("name", ["RMSNorm", "rmsnorm"])
def test_case_and_underscores_in_the_name_of_a_module_do_not_matter(name: str) -> None:
    assert graph("rms_norm").stdout == graph(name).stdout
