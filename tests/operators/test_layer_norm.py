"""Our layer norm: the results of its forward pass."""

from collections.abc import Callable

from implementations import code_of

INTERPRETED = """
from cell import triton_layer_norm

torch.manual_seed(0)
for dtype in (torch.float32, torch.float16, torch.bfloat16):
    # Rows of all lengths; from 16385 numbers on they are read in chunks.
    for shape in ((2, 3, 64), (1, 2, 769), (3, 1000), (2, 16384), (2, 16385), (1, 2, 65536)):
        x = torch.randn(shape).to(dtype) + 10
        weight, bias = torch.randn((2, shape[-1])).to(dtype)
        exact = torch.nn.functional.layer_norm(x.double(), shape[-1:], weight.double(), bias.double())
        out = triton_layer_norm(x, weight, bias)
        assert out.dtype == dtype and out.shape == x.shape
        eps = torch.finfo(dtype).eps
        units = 2 if eps > 1e-4 else 100
        error = ((out.double() - exact).abs() / (units * eps * (1 + exact.abs()))).max().item()
        assert error <= 1, (dtype, shape, error)
        spaced = torch.nn.functional.pad(x, (0, 3))[..., : shape[-1]]
        assert torch.equal(triton_layer_norm(spaced, weight, bias), out), "not contiguous"
"""


def test_the_triton_kernel_is_correct_in_the_interpreter(interpret: Callable[..., str]) -> None:
    interpret(code_of("layer_norm", "triton_layer_norm"), INTERPRETED)
