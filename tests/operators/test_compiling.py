"""Our kernels compile for a Hopper GPU, without one: the interpreter does not show that."""

import re
from pathlib import Path
from typing import Any

import pytest
from implementations import code_of

# Nothing is launched: Triton compiles for a given GPU, and every kernel goes through ptxas.
PRELUDE = """
import os
os.environ["TRITON_CACHE_DIR"] = "cache"
import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver
from triton.runtime.jit import JITFunction

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

def x(*shape, dtype=torch.bfloat16, leaf=False):
    return torch.zeros(shape, dtype=dtype).requires_grad_(leaf)

def backward(outputs):
    outputs = outputs if isinstance(outputs, tuple) else (outputs,)
    torch.autograd.backward(outputs, [torch.ones_like(output) for output in outputs])
"""
NORM = """
for columns in (512, 20000, 40000):  # in registers and in chunks
    f, weight = cell.{name}, x(columns)
    f(x(4, columns), weight{bias})
    backward(f(x(4, columns, leaf=True), x(columns, leaf=True){bias}))
"""
GATED_NORM = """
for rows, columns in ((4, 5120), (4096, 128)):
    cell.{name}(x(rows, columns), x(rows, columns), x(columns))
"""
CALLS: dict[tuple[str, str], str] = {
    ("layer_norm", "triton_layer_norm"): NORM.format(name="triton_layer_norm", bias=", weight"),
    ("rms_norm", "triton_rms_norm"): NORM.format(name="triton_rms_norm", bias="")
    + "backward(f(x(4, 4096, leaf=True), x(4096, leaf=True), x(4, 4096, leaf=True)))",
    ("activation", "triton_swiglu"): "backward(cell.triton_swiglu(x(4, 22016, leaf=True)))",
    ("activation", "triton_gelu"): """
backward(cell.triton_gelu(x(4, 11008, leaf=True), "tanh"))
""",
    ("rotary", "triton_rotary"): """
q, k = x(1, 4, 32, 128, leaf=True), x(1, 4, 8, 128, leaf=True)
backward(cell.triton_rotary(q, k, x(4, 64), x(4, 64)))
""",
    ("cross_entropy", "triton_cross_entropy"): """
for tokens, vocabulary in ((2, 40000), (300, 5000)):
    target = torch.zeros(tokens, dtype=torch.int64)
    backward(cell.triton_cross_entropy(x(tokens, vocabulary, leaf=True), target))
cell.triton_cross_entropy(x(tokens, vocabulary), target, True)
""",
    ("causal_conv1d", "triton_causal_conv1d"): """
cell.triton_causal_conv1d(x(2, 64, 512), x(64, 4), x(64), "silu")
""",
    ("embedding", "triton_embedding"): """
backward(cell.triton_embedding(x(500, 4096, leaf=True), torch.zeros(200, dtype=torch.int64)))
""",
    ("kv_store", "triton_kv_store"): """
slots = torch.zeros(4, dtype=torch.int64)
cell.triton_kv_store(x(4, 8, 128), x(4, 8, 128), x(9, 16, 8, 128), x(9, 16, 8, 128), slots)
""",
    ("flash_attn", "triton_attention"): """
for queries, keys, heads, causal in ((512, 512, 8, True), (1, 4096, 2, False)):
    cell.triton_attention(x(1, queries, 8, 128), x(1, keys, heads, 128), x(1, keys, heads, 128), causal)
""",
    ("flash_attn", "gluon_attention"): """
cell.gluon_attention(x(1, 512, 8, 128), x(1, 512, 2, 128), x(1, 512, 2, 128), True)
""",
    ("paged_attention", "triton_paged_attention"): """
tables, lengths = torch.zeros(2, 256, dtype=torch.int64), torch.ones(2, dtype=torch.int64)
for blocks in (256, 4):
    cell.triton_paged_attention(x(2, 32, 128), *[x(512, 16, 8, 128)] * 2, tables[:, :blocks], lengths)
""",
    ("matmul", "triton_matmul"): """
for tokens in (1, 1024):
    cell.triton_matmul(x(tokens, 4096), x(6144, 4096), x(6144))
""",
    ("grouped_gemm", "triton_grouped"): """
ends = torch.zeros(8, dtype=torch.int32)
for rows in (8, 4096):
    cell.triton_grouped(x(rows, 1024), x(8, 512, 1024), ends)
""",
    ("grouped_gemm", "gluon_grouped"): """
ends = torch.zeros(8, dtype=torch.int32)
cell.gluon_grouped(x(4096, 1024), x(8, 512, 1024), ends)
""",
    ("fp8_gemm", "triton_fp8_gemm"): """
fp8 = torch.float8_e4m3fn
for tokens, scales in ((1, ((1, 1), (6144, 1))), (1024, ((1024, 32), (48, 32)))):
    of_x, of_weight = (x(*shape, dtype=torch.float32) for shape in scales)
    cell.triton_fp8_gemm(x(tokens, 4096, dtype=fp8), of_x, x(6144, 4096, dtype=fp8), of_weight)
""",
    ("fp8_quant", "triton_fp8_quant"): """
for block in ((1, 4096), (128, 128)):
    cell.triton_fp8_quant(x(256, 4096), *block)
cell.triton_fp8_quant(x(2, 20000), 1, 20000)
""",
    ("activation", "triton_activations"): """
cell.triton_activations(x(4, 11008), "geglu")
""",
    ("rms_norm", "triton_gated_rms_norm"): GATED_NORM.format(name="triton_gated_rms_norm"),
    ("rms_norm", "triton_gate_first_rms_norm"): GATED_NORM.format(name="triton_gate_first_rms_norm"),
    ("selective_scan", "triton_selective_scan"): """
single = dict(dtype=torch.float32)
for tokens, state in ((512, None), (1, x(1, 64, 16, **single))):
    of_token, of_state, channel = x(1, 64, tokens), x(1, 16, tokens), x(64, **single)
    cell.triton_selective_scan(
        of_token, of_token, x(64, 16, **single), of_state, of_state, channel, of_token, channel, state
    )
""",
    ("gated_delta_rule", "triton_gated_delta_rule"): """
for tokens, state in ((512, None), (1, x(1, 8, 128, 128, dtype=torch.float32))):
    values, numbers = x(1, tokens, 8, 128), x(1, tokens, 8)
    cell.triton_gated_delta_rule(values, values, values, numbers.float(), numbers, state)
""",
    ("ssd_scan", "triton_ssd_scan"): """
for tokens, state in ((512, None), (1, x(1, 8, 64, 128, dtype=torch.float32))):
    head, group = x(8, dtype=torch.float32), x(1, tokens, 2, 128)
    value, steps = x(1, tokens, 8, 64), x(1, tokens, 8)
    cell.triton_ssd_scan(value, steps, head, group, group, head, head, state)
""",
    ("deformable_attention", "triton_deformable_attention"): """
sizes = torch.tensor([[100, 134], [50, 67]])
value, locations = x(1, 16750, 8, 32, dtype=torch.float32), x(1, 300, 8, 2, 4, 2, dtype=torch.float32)
cell.triton_deformable_attention(value, sizes, sizes[:, 0], locations, locations[..., 0])
""",
}


@pytest.mark.parametrize(("operator", "name"), CALLS)
def test_every_kernel_compiles_for_a_hopper_gpu(
    compiler: Any, tmp_path: Path, operator: str, name: str
) -> None:
    code = code_of(operator, name)
    (tmp_path / "cell.py").write_text(code, encoding="utf-8")

    printed = compiler.run(tmp_path, f"{PRELUDE}{CALLS[operator, name]}\nprint(*sorted(kernels))")

    functions = re.findall(r"^@(?:triton|gluon)\.jit.*\ndef (\w+)\(", code, re.M)
    # Kernels are launched with a grid in brackets. What is called, or given to a scan or to a group of warps, is part
    # of one.
    kernels = [name for name in functions if not re.search(rf"(?<!def )\b{name}(\(|, \(|\))", code)]
    assert printed.split() == sorted(kernels)
