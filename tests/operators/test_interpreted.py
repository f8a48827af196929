"""Our Triton kernels in Triton's interpreter: right in edge cases, odd sizes, and each way that a program takes."""

from collections.abc import Callable
from pathlib import Path

import pytest
from implementations import ROOT, code_of, options_of

PRELUDE = """
import pytest
from kernels_bench_tools.measure.operator import tensors_of

torch.manual_seed(0)
options = eval(sys.argv[3])
options.pop("kernels", "")
only = options.pop("only", None)
operator, kernel = find_operator(sys.argv[1]).adapted(**options), getattr(cell, sys.argv[2])
workloads = operator.workloads("smoke", only)


@torch.no_grad()
def right(dtype, hard=True, may=(), **sizes):
    of = operator if hard else replace(operator, edge_cases=no_edge_cases)
    for workload in workloads:
        case = replace(workload, axes={**workload.axes, **sizes}, dtype=dtype)
        # In which order a machine's vectors add up is what a float32 error consists of, here and in torch.
        by_chance = {"precision"} if dtype == "float32" else set()
        verdict = judge(of, case, kernel)
        assert set(verdict.flags) <= {*may} | by_chance, (case, verdict.flags)


@torch.no_grad()
def same(arguments, *tiles):
    for tile in tiles:
        for found, expected in zip(*(tensors_of(kernel(*arguments, **one)) for one in ({"tile": tile}, {}))):
            torch.testing.assert_close(found.float(), expected.float(), rtol=2e-6, atol=2e-6)


"""
"""Defines ``right``: whether the smoke workloads, in this type and with other sizes, are right, edge cases too if ``hard``; and
``same``: whether whoever pins the kernel's configuration gets the same result."""
ON_SMOKE = 'right("float16")\n'
"""What those without a script of their own are tried on: edge cases in the type with the smallest range."""
ACTIVATION = """
right("float16")
right("float32", False, tokens=5, hidden_dim=1100)  # unfinished tiles
right("bfloat16", False, tokens=9, hidden_dim=130)  # rows that share a tile
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
SCRIPTS: dict[str, str] = {
    "triton_deformable_attention": 'right("float32", queries=5)',
    "triton_gated_delta_rule": SCANNED + 'right("float16", may={"precision"})',
    "triton_gate_first_rms_norm": 'right("float16", seq_len=5)',
    "triton_gated_rms_norm": 'right("float16", seq_len=5)',
    "triton_selective_scan": SCANNED + ON_SMOKE,
    "triton_ssd_scan": SCANNED + 'right("float16", may={"precision"})',
    "triton_gelu": ACTIVATION
    + """
same((torch.randn(3, 769), "tanh"), (256, 1), (4096, 8))
given = torch.tensor([float("inf"), float("nan"), 1e30, 1e5, -1e5, -1e30])
for form in ("none", "tanh"):
    found = kernel(given, form)
    torch.testing.assert_close(found, given.clamp(min=0.0), rtol=0.0, atol=0.0, equal_nan=True)
""",
    "triton_swiglu": ACTIVATION + "same((torch.randn(3, 768),), (1, 128, 1), (2, 64, 2))",
    "triton_causal_conv1d": """
import warnings

warnings.simplefilter("ignore")
right("float16")
right("float32", batch=3, dim=5, seq_len=1, width=3, activation="none")
right("bfloat16", may={"precision"}, batch=2, dim=2, seq_len=1030, width=5, activation="none")
same((torch.randn(2, 3, 40), torch.randn(3, 4), torch.randn(3), "silu"), (32, 1))
""",
    "triton_model": """
from kernels_bench_tools.measure.correctness.compare import compare

with torch.no_grad():
    workload = replace(operator.workloads("smoke")[1], dtype="float16")
    inputs = operator.inputs(workload, "cpu", 0)
    compare(kernel(inputs[0].clone(), *inputs[1:]), operator, inputs).require_correct()
""",
    "triton_cross_entropy": """
# The backward pass is in test_backward.
right("float16")
right("float32", False)  # whose vectors are half as wide
# One token, whose row several programs share, and a few that have one each.
right("float32", tokens=1, vocabulary=40001)
right("float32", False, tokens=3, vocabulary=20000)
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
logits, target = torch.randn(3, 3000), torch.tensor([5, -100, 2999])
same((logits, target), (64, 4, 2), (128, 4, 1))
same((logits, target, True), (64, 4, 2))
""",
    "triton_embedding": """
right("float32")
right("bfloat16")
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
right("float32", seq_len=33, kv_len=33, head_dim=16)
right("float16", seq_len=70, kv_len=70, heads=4, head_dim=32, causal=True)
right("float16", seq_len=3, kv_len=600, heads=4, causal=True)
right("float32", seq_len=1, kv_len=530, kv_heads=1, head_dim=32)
same([torch.randn(1, 40, 2, 16) for _ in range(3)] + [True], (16, 32, 4, 1), (32, 16, 4, 1))
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
right("bfloat16")
# As few tokens as leave a block of rows unfinished: the interpreter runs programs one after another.
right("float32", False, tokens=130, hidden_dim=520)
workloads = workloads[:1]
right("bfloat16", False, tokens=2, hidden_dim=17000)  # rows longer than a program's registers
same((torch.randn(5, 256), 1, 128), (2, 128, 2))
""",
    "triton_kv_store": """
for dtype, cell.MOST_COLUMNS in (("float32", 1024), ("bfloat16", 16)):
    right(dtype)
""",
    "triton_layer_norm": """
row = torch.randn(769)
same((torch.randn(3, 769), row, row), (1, 1, 1024, True, 2), (2, 4, 256, True, 1), (2, 7, 128, False, 1))
right("float32", seq_len=4)
# Rows of all lengths; from 32769 numbers on they are read in chunks.
for dtype, seq_len, columns in (
    ("bfloat16", 2, 769), ("float32", 300, 12), ("bfloat16", 2, 16384), ("float32", 2, 33000)
):
    right(dtype, False, batch=1, seq_len=seq_len, hidden_dim=columns)
""",
    "triton_paged_attention": """
for dtype, cell.TOKENS_PER_SPLIT, step in (("float32", 256, 16), ("float16", 16, 16)):
    cell.tiling = lambda *_: (99, step)
    right(dtype)
""",
    "triton_rms_norm": """
from kernels_bench_tools.measure.modes import in_mode, timed_function

row, long = torch.randn(769), torch.randn(20000)
tiles = (1, 1, 1024, True, 2), (2, 4, 256, True, 1), (2, 4, 256, False, 1)
same((torch.randn(3, 769), row), *tiles)
same((torch.randn(3, 769), row, torch.randn(3, 769)), *tiles)
same((torch.randn(1, 20000), long), (1, 5, 4096, False, 2))
with pytest.raises(ValueError, match="a row of 20000 has more than 4 parts of 4096"):
    kernel(torch.randn(1, 20000), long, tile=(1, 4, 4096, True, 2))
# Few rows: the interpreter takes a millisecond for each line of each program, and a row is a program.
right("float16", seq_len=4)
right("float32", False, batch=1, seq_len=2, hidden_dim=34000)
right("bfloat16", False, batch=5, seq_len=3, hidden_dim=96)
# Shorter rows go the way of long ones, several in a program.
cell.LONGEST_IN_REGISTERS, cell.LONGEST_IN_REGISTERS_BACKWARD, cell.CHUNK = 2048, 1024, 1024
backward = in_mode(operator, "bwd")
passes = timed_function(operator, kernel, "bwd")
for workload in backward.workloads("smoke"):
    for shape in ((2, 3, 769), (1, 9, 2100), (5, 3, 96)):
        axes = dict(zip(operator.axes, ("rms_norm", *shape)))
        judge(backward, replace(workload, axes=axes, dtype="float32"), passes.call)

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
heads, angle = (torch.randn(2, 3, 4, 32), torch.randn(2, 3, 2, 32)), torch.randn(3, 16)
given = (*heads, angle.cos(), angle.sin())
same(given, (2, 1), (1, 4))
expected = kernel(*given)
found = kernel(*given, in_place=True)
assert [value.data_ptr() for value in found] == [value.data_ptr() for value in heads]
assert all(map(torch.equal, found, expected))
with pytest.raises(ValueError, match="side by side"):
    kernel(heads[0].mT, *given[1:], in_place=True)
with pytest.raises(ValueError, match="need a gradient"):
    kernel(heads[0].clone().requires_grad_(), *given[1:], in_place=True)
right("float32", seq_len=3, heads=12, kv_heads=3, head_dim=80)
right("bfloat16", False, seq_len=3)
cell.PAIRS_PER_PROGRAM = 128
right("float16", False, seq_len=3, heads=3, kv_heads=12, head_dim=64)
""",
}


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


IN_PARTS = """
axis = 2 if operator.name == "selective_scan" else 1
small = {axis: 1 for axis in ("batch", "heads", "dim", "groups") if axis in workloads[0].axes}
for seq_len, *firsts in ((66, 1, 16, 63, 64, 65), (1201, 1200)):
    workload = replace(workloads[0], axes={**workloads[0].axes, **small, "seq_len": seq_len})
    *inputs, _ = operator.inputs(workload, "cpu", 0)
    exact = [one.double() for one in inputs]
    for decays in (True, False):
        if not decays:
            place = {"selective_scan": 2, "ssd_scan": 2, "gated_delta_rule": 3}[operator.name]
            inputs[place], exact[place] = torch.zeros_like(inputs[place]), torch.zeros_like(exact[place])
        expected, last = operator.reference(*exact, None)
        for first in firsts:
            outputs, state = [], None
            for start, length in ((0, first), (first, seq_len - first)):
                part = [one.narrow(axis, start, length) if one.dim() > 2 else one for one in inputs]
                output, state = kernel(*part, state)
                outputs.append(output)
            torch.testing.assert_close(torch.cat(outputs, axis).double(), expected, rtol=1e-4, atol=1e-4)
            torch.testing.assert_close(state.double(), last, rtol=1e-4, atol=1e-4)
"""


@pytest.mark.parametrize("operator", ["selective_scan", "ssd_scan", "gated_delta_rule"])
def test_a_scan_in_two_parts_is_the_whole_also_if_the_second_is_one_token_after_many(
    interpret: Callable[..., str], operator: str
) -> None:
    name = f"triton_{operator}"

    interpret(code_of(operator, name), PRELUDE + SCANNED + IN_PARTS, operator, name, "{}")


IN_A_MODEL = """
import warnings

warnings.simplefilter("ignore")
sys.path.append(sys.argv[4])
from changed_models import request
from kernels_bench_tools.measure.task import Task
from kernels_bench_tools.models.forward_pass import TransformersPass, transformers_model
from kernels_bench_tools.models.replacement import Substitute, replace as replace_in

tokens = set()


def noting(*inputs):
    tokens.add(inputs[0].shape[1 if operator.name == "gated_delta_rule" else 2])
    return kernel(*inputs)


model = transformers_model(request(sys.argv[5], framework="transformers"), "cpu")
task = Task(operator=operator.name, workloads="smoke", device="cpu", implementation="mine", file="")
changed = replace_in(model, [Substitute(task, operator, noting)])
with torch.no_grad():
    for phase in ("prefill-9", "decode-2"):
        run = TransformersPass(model, "cpu", phase)
        expected = run()
        with changed.active():
            torch.testing.assert_close(run(), expected, rtol=1e-4, atol=1e-4)
print(*sorted(tokens))
"""


@pytest.mark.parametrize(
    ("operator", "kind", "tokens"),
    [
        ("selective_scan", "falcon_mamba", "1 9"),
        ("causal_conv1d", "falcon_mamba", "5 9"),  # one token, with those that the cache keeps
        ("gated_delta_rule", "qwen3_next", "1 9"),
        ("causal_conv1d", "qwen3_next", "5 9"),
    ],
)
def test_a_kernel_computes_a_recurrent_layer_of_transformers_with_and_without_its_state(
    interpret: Callable[..., str], operator: str, kind: str, tokens: str
) -> None:
    pytest.importorskip("transformers")
    name, shared = f"triton_{operator}", str(ROOT / "tests" / "shared")
    script = PRELUDE + (SCANNED if operator == "selective_scan" else "") + IN_A_MODEL

    assert interpret(code_of(operator, name), script, operator, name, "{}", shared, kind) == tokens
