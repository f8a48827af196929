"""Our kernels compile for a Hopper GPU, without one: the interpreter does not show that. Copies of a kernel stay copies."""

import ast
import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from implementations import code_of, options_of

# Nothing is launched: Triton compiles for a given GPU, and every kernel goes through ptxas.
SCRIPT = """
import json
import os
import sys
from dataclasses import replace

os.environ["TRITON_CACHE_DIR"] = "cache"
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

from kernels_bench_tools.measure.operator import find_operator, tensors_of


class Hopper:
    get_current_target = lambda self: GPUTarget("cuda", 90, 32)
    get_current_device = lambda self: 0
    get_current_stream = lambda self, device=None: 0
    get_device_interface = lambda self: torch.cuda


def compile_only(self, *arguments, grid, warmup, **options):
    kernels.add(self.__name__)
    return launch(self, *arguments, grid=grid, warmup=True, **options)


kernels = set()
driver.set_active(Hopper())
launch, JITFunction.run = JITFunction.run, compile_only
import cell

operator, kernel, sizes, options = find_operator(sys.argv[1]), sys.argv[2], *map(json.loads, sys.argv[3:])
operator = operator.adapted(layout=options.get("layout", ""))
for size in sizes:
    smoke = next(
        one for one in operator.workloads("smoke") if one.axes.get("function", size[0]) == size[0]
    )
    dtype = smoke.dtype if smoke.dtype.startswith("float8") else "bfloat16"
    workload = replace(smoke, axes=dict(zip(operator.axes, size)), dtype=dtype)
    inputs = operator.for_workload(workload).inputs(workload, "cpu", 0)
    getattr(cell, kernel)(*inputs)
    if operator.gradients:
        inputs = [x.requires_grad_() if getattr(x, "is_floating_point", bool)() else x for x in inputs]
        outputs = tensors_of(getattr(cell, kernel)(*inputs))
        if outputs[0].requires_grad:
            torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
print(*sorted(kernels))
"""
# Sizes in the order of the operator's axes: rows in registers and in chunks, few tokens and many, each function.
SIZES: dict[tuple[str, str], list[list[Any]]] = {
    ("layer_norm", "triton_layer_norm"): [[1, 4, columns] for columns in (512, 20000, 40000)],
    ("rms_norm", "triton_rms_norm"): [
        *(["rms_norm", 1, 4, columns] for columns in (512, 20000, 40000)),
        ["add_rms_norm", 1, 4, 4096],
    ],
    ("rms_norm", "triton_gated_rms_norm"): [["rms_norm", 1, 4, 5120], ["rms_norm", 1, 4096, 128]],
    ("rms_norm", "triton_gate_first_rms_norm"): [["rms_norm", 1, 4, 5120], ["rms_norm", 1, 4096, 128]],
    ("activation", "triton_swiglu"): [["swiglu", 4, 11008]],
    ("activation", "triton_gelu"): [["gelu_tanh", 4, 11008]],
    ("activation", "triton_activations"): [["geglu", 4, 5504]],
    ("rotary", "triton_rotary"): [[1, 4, 32, 8, 128]],
    ("cross_entropy", "triton_cross_entropy"): [
        ["forward", 2, 40000],
        ["forward", 300, 5000],
        ["gradients", 300, 5000],
    ],
    ("causal_conv1d", "triton_causal_conv1d"): [[2, 64, 512, 4, "silu"]],
    ("embedding", "triton_embedding"): [[200, 500, 4096]],
    ("kv_store", "triton_kv_store"): [[4, 1, 8, 128, 9, 16]],
    ("flash_attn", "triton_attention"): [
        [1, 512, 512, 8, 8, 128, True],
        [1, 1, 4096, 8, 2, 128, False],
    ],
    ("flash_attn", "gluon_attention"): [[1, 512, 512, 8, 2, 128, True]],
    ("paged_attention", "triton_paged_attention"): [
        [2, context, 32, 8, 128, 16, True] for context in (4096, 64)
    ],
    ("grouped_gemm", "triton_grouped"): [[rows, 8, 1024, 512, False] for rows in (8, 4096)],
    ("grouped_gemm", "gluon_grouped"): [[4096, 8, 1024, 512, False]],
    ("fp8_gemm", "triton_fp8_gemm"): [["row", 1, 4096, 6144], ["block", 1024, 4096, 6144]],
    ("fp8_quant", "triton_fp8_quant"): [["row", 256, 4096], ["tile", 256, 4096], ["row", 2, 20000]],
    ("selective_scan", "triton_selective_scan"): [["prefill", 1, 64, 512, 16], ["step", 1, 64, 1, 16]],
    ("gated_delta_rule", "triton_gated_delta_rule"): [
        ["prefill", 1, 512, 8, 128, 128],
        ["step", 1, 1, 8, 128, 128],
    ],
    ("ssd_scan", "triton_ssd_scan"): [["prefill", 1, 512, 8, 64, 2, 128], ["step", 1, 1, 8, 64, 2, 128]],
    ("deformable_attention", "triton_deformable_attention"): [[1, 300, 8, 32, 4, "100x134 50x67"]],
}


@pytest.mark.parametrize(("operator", "name"), SIZES)
def test_every_kernel_compiles_for_a_hopper_gpu(
    compile_only: Callable[..., str], operator: str, name: str
) -> None:
    code = code_of(operator, name)
    given = json.dumps(SIZES[operator, name]), json.dumps(options_of(operator, name))

    printed = compile_only(code, SCRIPT, operator, name, *given)

    functions = re.findall(r"^@(?:triton|gluon)\.jit.*\ndef (\w+)\(", code, re.M)
    # Kernels are launched with a grid in brackets. What is called, or given to a scan or to a group of warps, is part
    # of one.
    kernels = [name for name in functions if not re.search(rf"(?<!def )\b{name}(\(|, \(|\))", code)]
    assert printed.split() == sorted(kernels)


# A notebook is complete in itself, so the kernels that it shares with others are copies.
def functions_of(operator: str, name: str) -> dict[str, str]:
    """Return the source of each function, without decorators: those that choose a configuration may differ."""
    found = {}
    for node in ast.parse(code_of(operator, name)).body:
        if isinstance(node, ast.FunctionDef):
            node.decorator_list = [one for one in node.decorator_list if "autotune" not in ast.unparse(one)]
            found[node.name] = ast.unparse(node)
    return found


@pytest.mark.parametrize(
    ("copy", "original", "names"),
    [
        ("causal_lm/torch_compiled_model", "decoder_layer/torch_compiled_layer", ""),
        ("causal_lm/triton_model", "decoder_layer/triton_layer", ""),
        ("causal_lm/triton_model", "paged_attention/triton_paged_attention", ""),
        ("decoder_layer/triton_layer", "rms_norm/triton_rms_norm", "_load _load_once_more _store _rms_norm"),
        ("decoder_layer/triton_layer", "activation/triton_swiglu", "_silu_times_up"),
        ("decoder_layer/triton_layer", "rotary/triton_rotary", "_offsets _inside _store_rotated _rotary"),
        ("llama4_moe/triton_llama4_moe", "grouped_gemm/triton_grouped", "_grouped _tile triton_grouped"),
        ("llama4_moe/triton_llama4_moe", "activation/triton_swiglu", "tile_of _silu_times_up _forward"),
        ("mlp/triton_swiglu_mlp", "activation/triton_swiglu", "tile_of _silu_times_up _forward"),
        ("moe/triton_moe", "grouped_gemm/triton_grouped", "_grouped _tile triton_grouped"),
        ("moe/triton_moe", "activation/triton_swiglu", "tile_of _silu_times_up _forward"),
        (
            "rms_norm/triton_gated_rms_norm",
            "rms_norm/triton_gate_first_rms_norm",
            "tile_of _gated_norm _rows_of",
        ),
        ("ssd_scan/triton_ssd_scan", "selective_scan/triton_selective_scan", "_softplus"),
    ],
)
def test_copied_functions_are_those_of_the_original(copy: str, original: str, names: str) -> None:
    own, others = functions_of(*copy.split("/")), functions_of(*original.split("/"))
    for name in names.split() or others.keys() - {"load"}:
        assert own[name] == others[name]
