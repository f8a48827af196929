"""Whoever pins a kernel's configuration gets the same result, in place as well as out of it."""

from collections.abc import Callable
from pathlib import Path

from implementations import code_of

KERNELS = {
    "layer_norm": "triton_layer_norm",
    "rms_norm": "triton_rms_norm",
    "activation": "triton_swiglu",
    "rotary": "triton_rotary",
    "cross_entropy": "triton_cross_entropy",
    "causal_conv1d": "triton_causal_conv1d",
    "flash_attn": "triton_attention",
    "fp8_quant": "triton_fp8_quant",
}
INTERPRETED = """
import pytest
from cell import triton_gelu
from triton_attention import triton_attention
from triton_causal_conv1d import triton_causal_conv1d
from triton_cross_entropy import triton_cross_entropy
from triton_fp8_quant import triton_fp8_quant
from triton_layer_norm import triton_layer_norm
from triton_rms_norm import triton_rms_norm
from triton_rotary import triton_rotary
from triton_swiglu import triton_swiglu

torch.manual_seed(0)
torch.set_grad_enabled(False)


def same(function, arguments, *tiles):
    expected = function(*arguments)
    for tile in tiles:
        torch.testing.assert_close(function(*arguments, tile=tile), expected, rtol=2e-6, atol=2e-6)


row, long = torch.randn(769), torch.randn(20000)
same(triton_layer_norm, (torch.randn(3, 769), row, row), (1, 1, 1024, True, 2), (2, 4, 256, True, 1), (2, 7, 128, False, 1))
tiles = (1, 1, 1024, True, 2), (2, 4, 256, True, 1), (2, 4, 256, False, 1)
same(triton_rms_norm, (torch.randn(3, 769), row), *tiles)
same(triton_rms_norm, (torch.randn(3, 769), row, torch.randn(3, 769)), *tiles)
same(triton_rms_norm, (torch.randn(1, 20000), long), (1, 5, 4096, False, 2))
with pytest.raises(ValueError, match="a row of 20000 has more than 4 parts of 4096"):
    triton_rms_norm(torch.randn(1, 20000), long, tile=(1, 4, 4096, True, 2))
same(triton_gelu, (torch.randn(3, 769), "tanh"), (256, 1), (4096, 8))
same(triton_swiglu, (torch.randn(3, 768),), (1, 128, 1), (2, 64, 2))
same(triton_causal_conv1d, (torch.randn(2, 3, 40), torch.randn(3, 4), torch.randn(3), "silu"), (32, 1))
same(triton_attention, [torch.randn(1, 40, 2, 16) for _ in range(3)] + [True], (16, 32, 4, 1), (32, 16, 4, 1))
same(lambda *given, tile=None: triton_fp8_quant(*given, tile=tile)[1], (torch.randn(5, 256), 1, 128), (2, 128, 2))
logits, target = torch.randn(3, 3000), torch.tensor([5, -100, 2999])
same(triton_cross_entropy, (logits, target), (64, 4, 2), (128, 4, 1))
same(triton_cross_entropy, (logits, target, True), (64, 4, 2))

heads, angle = (torch.randn(2, 3, 4, 32), torch.randn(2, 3, 2, 32)), torch.randn(3, 16)
given = (*heads, angle.cos(), angle.sin())
same(triton_rotary, given, (2, 1), (1, 4))
expected = triton_rotary(*given)
found = triton_rotary(*given, in_place=True)
assert [value.data_ptr() for value in found] == [value.data_ptr() for value in heads]
assert all(map(torch.equal, found, expected))
with pytest.raises(ValueError, match="side by side"):
    triton_rotary(heads[0].mT, *given[1:], in_place=True)
with torch.enable_grad(), pytest.raises(ValueError, match="need a gradient"):
    triton_rotary(heads[0].clone().requires_grad_(), *given[1:], in_place=True)
"""


def test_pinned_kernels_give_the_same_result_and_rotary_works_in_place(
    interpret: Callable[..., str], tmp_path: Path
) -> None:
    for operator, name in KERNELS.items():
        (tmp_path / f"{name}.py").write_text(code_of(operator, name), encoding="utf-8")

    interpret(code_of("activation", "triton_gelu"), INTERPRETED)
