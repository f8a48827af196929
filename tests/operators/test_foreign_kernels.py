"""What notebooks pass to kernels of others, which devices they refuse, and what they are compared with."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from implementations import assert_correct, function_of, judge, run_cell
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools.errors import Unsupported
from kernels_bench_tools.measure.correctness.compare import compare
from kernels_bench_tools.measure.correctness.errors import WrongResultError
from kernels_bench_tools.measure.judge.changing_inputs import InputChanges
from kernels_bench_tools.measure.operator import find_operator
from kernels_bench_tools.operators.fp8_gemm import dequantized, torch_linear
from kernels_bench_tools.operators.fp8_quant import torch_quantize


def apply_rotary(
    x1: Tensor, x2: Tensor, cos: Tensor, sin: Tensor, out1: Tensor, out2: Tensor, conj: bool
) -> None:
    # What the kernel's binding asks for.
    assert x1.dtype == x2.dtype == cos.dtype == sin.dtype == out1.dtype == out2.dtype
    assert x1.shape == x2.shape == out1.shape == out2.shape
    assert not conj
    out1.copy_(x1 * cos - x2 * sin)
    out2.copy_(x1 * sin + x2 * cos)


def causal_conv1d_fn(x: Tensor, weight: Tensor, bias: Tensor | None = None, **named: Any) -> Tensor:
    assert bias is not None
    assert named.get("activation") in (None, "silu", "swish")
    assert all(value is None or value is False for name, value in named.items() if name != "activation")
    result: Tensor = find_operator("causal_conv1d").reference(x, weight, bias, named.get("activation"))
    return result


@pytest.mark.parametrize(
    ("operator", "name", "function", "dtype", "axes"),
    [
        ("rotary", "hf_kernels_rotary", apply_rotary, "bfloat16", {}),
        ("causal_conv1d", "hf_kernels_causal_conv1d", causal_conv1d_fn, "float32", {}),
        ("causal_conv1d", "hf_kernels_causal_conv1d", causal_conv1d_fn, "float32", {"activation": "none"}),
    ],
)
def test_a_hub_kernel_is_called_as_its_binding_asks(
    operator: str, name: str, function: Callable[..., Any], dtype: str, axes: dict[str, Any]
) -> None:
    found = run_cell(operator, name)
    found["get_kernel"] = lambda repo, *, version: SimpleNamespace(**{function.__name__: function})

    assert_correct(judge(find_operator(operator), "", dtype, found["load"](), **axes))


@pytest.mark.parametrize(
    ("operator", "name"),
    [
        *(("fp8_quant", name) for name in ("triton_fp8_quant", "hf_kernels_fp8_row", "hf_kernels_fp8_block")),
        *(("fp8_gemm", name) for name in ("triton_fp8_gemm", "hf_kernels_fp8_gemm", "torch_scaled_mm")),
    ],
)
def test_a_device_without_e4m3_is_unsupported(
    operator: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("triton")
    load = run_cell(operator, name)["load"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (7, 5))

    with pytest.raises(Unsupported, match=r"8\.9"):
        load()


def test_torch_s_fp8_product_of_blocks_is_unsupported_on_the_cpu() -> None:
    with pytest.raises(Unsupported, match="scales of blocks"):
        judge(find_operator("fp8_gemm"), "Blocks of 128", "", function_of("fp8_gemm", "torch_scaled_mm"))


@pytest.mark.parametrize(("tokens", "columns"), [(64, 512), (3, 384), (1, 128)])
def test_torch_accepts_the_scales_of_blocks_for_cuda(
    tokens: int, columns: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = torch.randn(tokens, columns), torch.randn(256, columns)
    inputs = (*torch_quantize(values[0], 1, 128), *torch_quantize(values[1], 128, 128))
    theirs = functional.scaled_mm

    def scaled_mm(x: Tensor, weight: Tensor, of_x: Tensor, one: Any, of_weight: Tensor, other: Any) -> Tensor:
        given = (torch.empty_like(value, device="meta") for value in (x, weight, of_x, of_weight))
        x_, weight_, of_x_, of_weight_ = given
        theirs(x_, weight_, of_x_, one, of_weight_, other)  # torch's own check of strides
        assert x.shape[0] % 4 == 0  # which only cuBLAS checks
        return torch_linear(x, of_x, weight.t(), of_weight.t()[:, : columns // 128])

    monkeypatch.setattr(functional, "scaled_mm", scaled_mm)
    monkeypatch.setattr(Tensor, "is_cuda", property(lambda _: True))

    found = function_of("fp8_gemm", "torch_scaled_mm")(*inputs)

    torch.testing.assert_close(found, torch_linear(*inputs))


def quantized_again(x: Tensor, x_scale: Tensor, weight: Tensor, weight_scale: Tensor) -> Tensor:
    """What hf_kernels_fp8_gemm computes: ``x`` in bfloat16, quantized by the kernel."""
    values = dequantized(x.float(), x_scale).bfloat16()
    return torch_linear(*torch_quantize(values, 1, 128), weight, weight_scale)


def test_only_a_kernel_that_declares_fp8_may_quantize_activations_again() -> None:
    operator = find_operator("fp8_gemm")
    declared = operator.adapted(precision="fp8")
    workload = next(one for one in operator.workloads("cpu") if one.group == "Blocks of 128")
    inputs = operator.inputs(workload, "cpu", 0)

    assert judge(operator, "Blocks of 128", "float8_e4m3fn", quantized_again).ok
    for number in range(1, 40):  # as before timed calls: few of the largest values of blocks are 448 then
        InputChanges((0, 1)).exchange(inputs, number)
    found = quantized_again(*inputs)
    compare(found, declared, inputs).require_correct()
    for of, wrong in ((operator, found), (declared, found.roll(1, 0)), (declared, torch.zeros_like(found))):
        with pytest.raises(WrongResultError):
            compare(wrong, of, inputs).require_correct()
