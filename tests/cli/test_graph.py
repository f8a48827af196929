"""``kbt graph``: what a replacement of a module reaches, by imports and by calls."""

import json
import subprocess
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from projects import assert_one_line, run_kbt

from kernels_bench_tools.records.model import DERIVED, model_keys, read_model_tasks


@cache
def graph(*arguments: str) -> subprocess.CompletedProcess[str]:
    return run_kbt(Path(), "graph", *arguments)


def reach(module: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(graph(module, "--json").stdout)
    return found


def labels() -> list[str]:
    return [line.lstrip("│├└─ \xa0") for line in graph().stdout.splitlines()]


@pytest.fixture(scope="module")
def imports() -> dict[str, list[str]]:
    found: dict[str, list[str]] = json.loads(graph("--json").stdout)
    return found


def test_a_kernel_reaches_blocks_layers_and_models_through_a_chain_of_imports(
    imports: dict[str, list[str]],
) -> None:
    found = reach("silu_and_mul")

    assert "LlamaMLP" in {one["module"]["class_name"] for one in found["importers"]}
    for one in found["importers"]:
        through = one["through"]
        assert (through[0], through[-1]) == (one["module"]["file"], "L1/silu_and_mul.py")
        assert all(later in imports[earlier] for earlier, later in pairwise(through))
    assert {one["module"]["level"] for one in found["importers"]} == {2, 3, 4}


def test_a_module_that_only_imports_another_one_is_told_from_one_that_calls_it() -> None:
    importers = {one["module"]["class_name"]: one["models"] for one in reach("RMSNorm")["importers"]}

    # Of the attention layers, only those of Qwen3 normalize queries and keys.
    assert importers["LlamaAttention"] == ["qwen3-235b-a22b", "qwen3-30b-a3b", "qwen3-8b"]
    assert importers["DecoderLayer"] == []
    assert importers["LlamaModel"] == model_keys(DERIVED)


def test_calls_are_those_of_the_models_forward_passes() -> None:
    calls = reach("rms_norm")["calls"]

    assert calls["llama-3.1-8b"] == {"prefill-2048": 65, "decode-1": 65, "decode-32": 65}
    assert list(calls) == model_keys(DERIVED)


@pytest.mark.parametrize("model", model_keys(DERIVED))
def test_all_that_a_model_calls_is_reached_by_the_imports_of_its_class(
    model: str, imports: dict[str, list[str]]
) -> None:
    classes = {label.partition("(")[2].rstrip(")"): label.partition(" ")[0] for label in labels()}
    tasks = [task for phase in read_model_tasks(model).phases for task in phase.tasks]
    (top,) = {task.module for task in tasks if task.level == 4 and "" in task.paths}

    reached, left = set(), [classes[top]]
    while left:
        file = left.pop()
        if file not in reached:
            reached.add(file)
            left += imports[file]

    assert {classes[task.module] for task in tasks} <= reached


def test_the_tree_of_a_model_shows_its_layers_blocks_and_kernels() -> None:
    lines = graph().stdout.splitlines()
    llama = lines[: next(n for n, line in enumerate(lines[1:], 1) if line.startswith("L4/"))]

    assert llama[0] == "L4/llama.py (LlamaForCausalLM)"
    assert {"L3/llama_decoder.py (LlamaDecoderLayer)", "L2/attention.py (LlamaAttention)"} <= set(labels())
    assert any(line.endswith("L1/silu_and_mul.py (SiluAndMul)") for line in llama)
    assert not any("moe" in line for line in llama)


def test_a_module_is_named_by_its_file_or_its_class() -> None:
    assert graph("rms_norm").stdout == graph("RMSNorm").stdout


def test_what_is_printed_fits_80_columns() -> None:
    for arguments in ((), ("rms_norm",), ("allreduce",), ("linear",)):
        assert max(map(len, graph(*arguments).stdout.splitlines())) <= 80, arguments


def test_a_module_that_no_other_imports_is_told() -> None:
    assert "is imported by no module\n" in graph("LlamaForCausalLM").stdout


def test_an_unknown_module_is_named_with_the_nearest_known_one() -> None:
    parts = ("kbt: rms_nrm: is not a module of the models. Expected: ", "Did you mean 'rms_norm'?")
    assert_one_line(graph("rms_nrm"), *parts)
