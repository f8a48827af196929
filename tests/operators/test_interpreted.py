"""Our Triton kernels in Triton's interpreter: right in edge cases, odd sizes, and each way that a program takes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from implementations import ROOT, code_of, options_of

ON_SMOKE = """
with torch.no_grad():
    for workload in workloads:
        judge(operator, replace(workload, dtype="float16"), kernel)
"""
"""What those without a script of their own are tried on."""
ACTIVATION = """
for workload in workloads:
    # Edge cases in the type with the smallest range; then unfinished tiles, and rows that share a tile.
    for dtype, tokens, hidden_dim in (("float16", 16, 256), ("float32", 5, 1100), ("bfloat16", 9, 130)):
        axes = {**workload.axes, "tokens": tokens, "hidden_dim": hidden_dim}
        of = operator if dtype == "float16" else replace(operator, edge_cases=no_edge_cases)
        judge(of, replace(workload, axes=axes, dtype=dtype), kernel)
"""
SCANNED = """
import numpy
from triton.runtime import interpreter


def scan(self, given):
    # The interpreter combines one number at a time: here it is all that are at one place of the axis.
    columns = [numpy.moveaxis(one.handle.data, self.axis, 0) for one in given]
    found, before = [numpy.empty_like(one) for one in columns], ()
    for place in range(len(columns[0])):
        now = tuple(self.to_tensor(column[place], one.dtype) for column, one in zip(columns, given))
        before = self.combine_fn.fn(*before, *now) if before else now
        for result, one in zip(found, before):
            result[place] = one.handle.data
    return [self.to_tensor(numpy.moveaxis(one, 0, self.axis).copy(), like.dtype) for one, like in zip(found, given)]


interpreter.ScanOps.generic_scan = scan
"""
GATED = """
(workload,) = workloads
judge(operator, replace(workload, axes={**workload.axes, "seq_len": 5}, dtype="float16"), kernel)
"""
SCRIPTS: dict[str, str] = {
    "triton_deformable_attention": """
judge(operator, replace(smoke, axes={**smoke.axes, "queries": 5}), kernel)
""",
    "triton_gated_delta_rule": SCANNED + ON_SMOKE,
    "triton_gate_first_rms_norm": GATED,
    "triton_gated_rms_norm": GATED,
    "triton_selective_scan": SCANNED + ON_SMOKE,
    "triton_ssd_scan": SCANNED + ON_SMOKE,
    "triton_gelu": ACTIVATION,
    "triton_swiglu": ACTIVATION,
    "triton_causal_conv1d": """
import warnings

warnings.simplefilter("ignore")
for dtype, activation, *extents in (
    ("float16", "silu", 2, 8, 32, 4),
    ("float32", "none", 3, 5, 1, 3),
    ("bfloat16", "none", 2, 2, 1030, 5),
):
    axes = dict(zip(operator.axes, (*extents, activation)))
    workload = replace(smoke, axes=axes, dtype=dtype)
    verdict = judge(operator, workload, kernel)
    assert not verdict.flags or dtype == "bfloat16", (axes, dtype, verdict.flags)
""",
    "triton_model": """
from kernels_bench_tools.measure.correctness.compare import compare

with torch.no_grad():
    workload = replace(operator.workloads("smoke")[1], dtype="float16")
    inputs = operator.inputs(workload, "cpu", 0)
    compare(kernel(inputs[0].clone(), *inputs[1:]), operator, inputs).require_correct()
""",
    "triton_cross_entropy": """
torch.set_grad_enabled(False)


def examine(workload, hard):
    of = operator.for_workload(workload)
    verdict = judge(of if hard else replace(of, edge_cases=no_edge_cases), workload, kernel)
    assert verdict.corr["error_over_baseline"] < 2, verdict.corr


# The backward pass is in test_backward.
for workload in workloads:
    for dtype in ("float32", "float16"):
        # Edge cases in the type with the smallest range; the vectors of float32 are half as wide.
        examine(replace(workload, dtype=dtype), hard=dtype == "float16")
    # One token, whose row several programs share, and a few that have one each.
    for tokens, vocabulary in ((1, 40001), (3, 20000)):
        axes = {**workload.axes, "tokens": tokens, "vocabulary": vocabulary}
        examine(replace(workload, axes=axes), hard=tokens == 1)

logits, target = torch.randn(6, 3000), torch.randint(3000, (6,))
target[1] = -100
expected = operator.for_workload(operator.workloads("smoke")[1]).reference(logits.double(), target)
loss, gradient = kernel(logits, target, True, in_place=True)
assert gradient.data_ptr() == logits.data_ptr()
torch.testing.assert_close(loss.double(), expected[0], rtol=1e-5, atol=1e-6)
torch.testing.assert_close(gradient.double(), expected[1], rtol=1e-5, atol=1e-9)
masked = torch.randn(2, 3000)
masked[:, :2500] = float("-inf")  # whole vectors, at the start of a row
target = torch.tensor([2600, 2999])
found = kernel(masked, target)
torch.testing.assert_close(found, torch.nn.functional.cross_entropy(masked, target, reduction="none"))
""",
    "triton_embedding": """
for dtype in ("float32", "bfloat16"):
    workload = replace(smoke, dtype=dtype)
    assert not judge(operator, workload, kernel).flags

cell.MANY_TOKENS = 4  # as many, one fewer and one more, twice as many, and runs of all of them side by side
for counts in ((4,), (3, 4, 5), (4, 8, 1, 0, 9, 2), (0, 3, 3, 3, 12), (1, 16, 1)):
    ids = torch.cat([torch.full((count,), row) for row, count in enumerate(counts)])
    ids = ids[torch.randperm(len(ids))]
    weight = torch.randn(len(counts) + 1, 70, requires_grad=True)
    upstream = torch.randn(len(ids), 70)
    expected = torch.zeros(weight.shape).index_add(0, ids, upstream)
    for tile in (None, (32, 64, 16)):
        (found,) = torch.autograd.grad(kernel(weight, ids, tile), weight, upstream)
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
""",
    "triton_attention": """
for dtype, *extents in (
    ("float32", 1, 33, 33, 2, 2, 16, False),
    ("float16", 1, 70, 70, 4, 2, 32, True),
    ("float16", 1, 3, 600, 4, 2, 64, True),
    ("float32", 1, 1, 530, 2, 1, 32, False),
):
    workload = replace(smoke, axes=dict(zip(operator.axes, extents)), dtype=dtype)
    assert not judge(operator, workload, kernel).flags
""",
    "triton_fp8_gemm": """
from kernels_bench_tools.operators.fp8_gemm import torch_linear

for workload in workloads:
    assert not judge(operator, workload, kernel).flags
    tokens = 170  # several groups of tiles, the last one smaller
    inputs = operator.inputs(replace(workload, axes={**workload.axes, "tokens": tokens}), "cpu", 0)
    found = kernel(*inputs, tile=(16, 128, 4, 3))
    torch.testing.assert_close(found, torch_linear(*inputs), rtol=0.02, atol=0.02)
""",
    "triton_fp8_quant": """
import numpy
import triton.language as tl
from triton.runtime import interpreter

theirs = interpreter._convert_float


def convert(values, given, wanted, rounding):
    # The interpreter loses the carry where rounding reaches the next power of two; a GPU converts as torch does.
    if wanted != tl.float8e4nv:
        return theirs(values, given, wanted, rounding)
    converted = torch.from_numpy(values.astype(numpy.float32)).to(torch.float8_e4m3fn)
    return converted.view(torch.uint8).numpy()


interpreter._convert_float = convert
for workload in workloads:
    # As few tokens as leave a block of rows unfinished: the interpreter runs programs one after another.
    cases = [("bfloat16", 16, 256), ("float32", 130 if "128x128" in workload.group else 5, 520)]
    if workload.group == "Row-wise":
        cases += [("bfloat16", 2, 17000)]  # longer than a program's registers
    for dtype, tokens, hidden_dim in cases:
        axes = {**workload.axes, "tokens": tokens, "hidden_dim": hidden_dim}
        case = replace(workload, axes=axes, dtype=dtype)
        of = operator if tokens == 16 else replace(operator, edge_cases=no_edge_cases)
        assert not judge(of, case, kernel).flags
""",
    "triton_kv_store": """
for dtype, most in (("float32", 1024), ("bfloat16", 16)):
    cell.MOST_COLUMNS = most
    workload = replace(smoke, dtype=dtype)
    assert not judge(operator, workload, kernel).flags
""",
    "triton_layer_norm": """
torch.manual_seed(0)
for dtype in (torch.float32, torch.bfloat16):
    # Rows of all lengths; from 32769 numbers on they are read in chunks.
    for shape in ((2, 3, 64), (1, 2, 769), (2100, 12), (2, 16384), (1, 2, 33000)):
        x = torch.randn(shape).to(dtype) + 10
        weight, bias = torch.randn((2, shape[-1])).to(dtype)
        exact = torch.nn.functional.layer_norm(x.double(), shape[-1:], weight.double(), bias.double())
        out = kernel(x, weight, bias)
        assert out.dtype == dtype and out.shape == x.shape
        eps = torch.finfo(dtype).eps
        units = 2 if eps > 1e-4 else 100
        error = ((out.double() - exact).abs() / (units * eps * (1 + exact.abs()))).max().item()
        assert error <= 1, (dtype, shape, error)
        spaced = torch.nn.functional.pad(x, (0, 3))[..., : shape[-1]]
        assert torch.equal(kernel(spaced, weight, bias), out), "not contiguous"
""",
    "triton_matmul": """
from kernels_bench_tools.measure.modes import in_mode, timed_function

with torch.no_grad():
    for workload in workloads[-1:]:
        sized = replace(workload, dtype="float16")
        judge(operator, sized, kernel)
    cell.GROUP, cell._tile = 2, lambda tokens, dtype: (16, 64, 128, 4, 3)  # several groups of tiles
    backward = in_mode(operator, "bwd")
    for workload in backward.workloads("smoke")[-1:]:
        sized = replace(workload, axes={**workload.axes, "tokens": 70})
        function = timed_function(operator.for_workload(workload), kernel, "bwd").call
        judge(backward, sized, function)
""",
    "triton_paged_attention": """
for dtype, per_split, step in (("float32", 256, 16), ("float16", 16, 16)):
    cell.TOKENS_PER_SPLIT, cell.tiling = per_split, lambda *_: (99, step)
    workload = replace(smoke, dtype=dtype)
    assert not judge(operator, workload, kernel).flags
""",
    "triton_rms_norm": """
from kernels_bench_tools.measure.modes import in_mode, timed_function

# Few rows: the interpreter takes a millisecond for each line of each program, and a row is a program.
USUAL, LONG, SHORT = (2, 4, 256), (1, 2, 34000), (5, 3, 96)


def sized(workload, shape, dtype):
    axes = dict(zip(("batch", "seq_len", "hidden_dim"), shape))
    return replace(workload, axes={**workload.axes, **axes}, dtype=dtype)


with torch.no_grad():
    for workload in workloads:
        # Edge cases in the type with the smallest range.
        judge(operator, sized(workload, USUAL, "float16"), kernel)
        for shape, dtype in ((LONG, "float32"), (SHORT, "bfloat16")):
            judge(replace(operator, edge_cases=no_edge_cases), sized(workload, shape, dtype), kernel)
    # Shorter rows go the way of long ones, several in a program.
    cell.LONGEST_IN_REGISTERS, cell.LONGEST_IN_REGISTERS_BACKWARD, cell.CHUNK = 2048, 1024, 1024
    backward = in_mode(operator, "bwd")
    for workload in backward.workloads("smoke"):
        for shape in ((2, 3, 769), (1, 9, 2100), SHORT):
            case = sized(workload, shape, "float32")
            judge(backward, case, timed_function(operator, kernel, "bwd").call)

for shape in ((4, 769), (9, 2100)):  # with a residual, whose own gradient joins
    values = [torch.randn(shape, dtype=torch.float64) for _ in range(2)]
    given = [values[0], torch.randn(shape[-1], dtype=torch.float64), values[1]]
    upstream = [torch.randn(shape, dtype=torch.float64) for _ in range(2)]

    def gradients(function, dtype):
        leaves = [value.to(dtype).requires_grad_() for value in given]
        return torch.autograd.grad(function(*leaves), leaves, [value.to(dtype) for value in upstream])

    right = gradients(operator.reference, torch.float64)
    for found, expected in zip(gradients(kernel, torch.float32), right):
        torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
""",
    "triton_rotary": """
for dtype, heads, kv_heads, head_dim, most in (
    ("float32", 12, 3, 80, 128), ("bfloat16", 4, 2, 32, 4096), ("float16", 3, 12, 64, 128)
):
    axes = {"batch": 2, "seq_len": 3, "heads": heads, "kv_heads": kv_heads, "head_dim": head_dim}
    workload = replace(smoke, axes=axes, dtype=dtype)
    cell.PAIRS_PER_PROGRAM = most
    of = operator if dtype == "float32" else replace(operator, edge_cases=no_edge_cases)
    assert not judge(of, workload, kernel).flags
""",
}
PRELUDE = """
options = eval(sys.argv[3])
options.pop("kernels", "")
only = options.pop("only", None)
operator, kernel = find_operator(sys.argv[1]).adapted(**options), getattr(cell, sys.argv[2])
workloads = operator.workloads("smoke", only)
smoke = workloads[0]
"""


@pytest.mark.parametrize(
    "path", sorted(ROOT.glob("*/impls/triton_*.md")), ids=lambda path: f"{path.parts[-3]}-{path.stem}"
)
def test_a_kernel_is_correct_in_the_interpreter(interpret: Callable[..., str], path: Path) -> None:
    operator, name = path.parts[-3], path.stem

    interpret(
        code_of(operator, name),
        PRELUDE + SCRIPTS.get(name, ON_SMOKE),
        *(operator, name, repr(options_of(operator, name))),
    )


def test_our_gelus_keep_infinity_and_nan(interpret: Callable[..., str]) -> None:
    script = """
given = torch.tensor([float("inf"), float("nan"), 1e30, 1e5, -1e5, -1e30])
for form in ("none", "tanh"):
    print(*cell.triton_gelu(given, form).tolist())
"""
    found = "inf nan 1.0000000150474662e+30 100000.0"
    printed = interpret(code_of("activation", "triton_gelu"), script)

    assert printed == f"{found} 0.0 0.0\n{found} -0.0 -0.0"
