"""SwiGLU and the two GELUs: what is right, what is called wrong, and what is counted."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from implementations import assert_correct, code_of, counted, function_of, judge, smoke_workload, without_rest
from projects import run_kbt
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools.measure.operator import Operator, find_operator
from kernels_bench_tools.records.model import DERIVED, model_keys

OPERATOR: Operator = find_operator("activation")

ROOT = Path(__file__).resolve().parents[2]
IMPLS = ROOT / "activation" / "impls"
DTYPES = ("float32", "bfloat16", "float16")
MODELS = model_keys(DERIVED)
GROUPS = ("SwiGLU", "GELU (tanh)", "GELU (erf)")
OTHER = {"tanh": "none", "none": "tanh"}

INTERPRETED = """
operator, kernel = find_operator("activation"), getattr(cell, sys.argv[1])
groups = set()
for workload in operator.workloads("smoke"):
    if ("swiglu" in sys.argv[1]) != (workload.group == "SwiGLU"):
        continue
    groups.add(workload.group)
    # Edge cases in the type with the smallest range; then unfinished tiles, a single row, and rows that share a tile.
    for dtype, tokens, hidden_dim in (
        ("float16", 16, 256), ("float32", 5, 1100), ("bfloat16", 1, 2304), ("float32", 9, 130)
    ):
        axes = {**workload.axes, "tokens": tokens, "hidden_dim": hidden_dim}
        case = replace(workload, axes=axes, dtype=dtype)
        of = operator if dtype == "float16" else replace(operator, edge_cases=no_edge_cases)
        judge(of, case, kernel)
print(*sorted(groups), sep=", ")
"""


def right(x: Tensor, approximate: str = "") -> Tensor:
    """The formulas written out, computed in float32 and rounded once."""
    f = x.float()
    if approximate == "tanh":
        out = 0.5 * f * (1 + torch.tanh((2 / torch.pi) ** 0.5 * (f + 0.044715 * f**3)))
    elif approximate:
        out = 0.5 * f * (1 + torch.erf(f / 2**0.5))
    else:
        gate, up = f.split(x.shape[-1] // 2, dim=-1)
        out = gate / (1 + torch.exp(-gate)) * up
    return out.to(x.dtype)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", GROUPS)
def test_the_formula_is_correct_in_every_dtype_and_edge_case(group: str, dtype: str) -> None:
    assert_correct(judge(OPERATOR, group, dtype, right), edge_cases=8)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(
    ("name", "group"), [("torch_swiglu", "SwiGLU"), *(("torch_gelu", g) for g in GROUPS[1:])]
)
def test_the_baselines_are_correct(name: str, group: str, dtype: str) -> None:
    assert_correct(judge(OPERATOR, group, dtype, function_of("activation", name)))


@pytest.mark.parametrize(
    ("name", "group"), [("torch_compiled_swiglu", "SwiGLU"), ("torch_compiled_gelu", "GELU (tanh)")]
)
def test_the_compiled_functions_are_correct(name: str, group: str) -> None:
    assert judge(OPERATOR, group, "float32", function_of("activation", name)).ok


def broken_tail(out: Tensor) -> Tensor:
    out[-1, -1] += 1
    return out


WRONG_SWIGLU: dict[str, Callable[[Tensor], Tensor]] = {
    "all zero": lambda x: torch.zeros_like(x[:, ::2]).contiguous(),
    "the halves swapped": lambda x: right(x.roll(x.shape[-1] // 2, dims=-1)),
    "even and odd columns": lambda x: functional.silu(x[:, ::2]) * x[:, 1::2],
    "a sigmoid without its gate": lambda x: torch.sigmoid(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
    "no second half": lambda x: functional.silu(x.chunk(2, -1)[0]),
    "GELU for SiLU": lambda x: functional.gelu(x.chunk(2, -1)[0]) * x.chunk(2, -1)[1],
    "the last number": lambda x: broken_tail(right(x)),
    "what follows whole tiles of 2048 columns": lambda x: without_rest(right(x), 2048),
}
WRONG_GELU: dict[str, Callable[[Tensor, str], Tensor]] = {
    "all zero": lambda x, _: torch.zeros_like(x),
    "the other form": lambda x, approximate: right(x, OTHER[approximate]),
    "the sigmoid approximation": lambda x, _: x * torch.sigmoid(1.702 * x),
    "ReLU": lambda x, _: functional.relu(x),
    "no cubic term": lambda x, _: 0.5 * x * (1 + torch.tanh(0.7978845608 * x)),
    "the last number": lambda x, approximate: broken_tail(right(x, approximate)),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("wrong", WRONG_SWIGLU)
def test_a_wrong_swiglu_is_incorrect(wrong: str, dtype: str) -> None:
    assert not judge(OPERATOR, "SwiGLU", dtype, WRONG_SWIGLU[wrong]).ok


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("group", GROUPS[1:])
@pytest.mark.parametrize("wrong", WRONG_GELU)
def test_a_wrong_gelu_is_incorrect(wrong: str, group: str, dtype: str) -> None:
    assert not judge(OPERATOR, group, dtype, WRONG_GELU[wrong]).ok


def test_an_overflowing_exponential_is_incorrect() -> None:
    def careless(x: Tensor) -> Tensor:
        gate, up = x.float().chunk(2, dim=-1)
        return (gate * gate.exp() / (1 + gate.exp()) * up).to(x.dtype)

    verdict = judge(OPERATOR, "SwiGLU", "float32", careless)

    assert not verdict.ok
    assert "large values" in verdict.reason


def test_bytes_and_operations_are_counted_from_the_tensors() -> None:
    def work(group: str) -> tuple[int, int, int]:
        return counted(OPERATOR, smoke_workload(OPERATOR, group, "bfloat16"))

    assert work("SwiGLU") == (16 * 512 * 2, 16 * 256 * 2, 16 * 256 * 5)
    assert work("GELU (tanh)") == (16 * 256 * 2, 16 * 256 * 2, 16 * 256 * 9)
    assert work("GELU (erf)") == (16 * 256 * 2, 16 * 256 * 2, 16 * 256 * 5)


def test_the_workloads_are_those_of_kernels_benchmarks() -> None:
    peers = OPERATOR.workloads("default", {"function": "swiglu"})

    assert {(one.axes["tokens"], one.axes["hidden_dim"]) for one in peers} == {
        (tokens, hidden_dim) for tokens in (128, 256, 512) for hidden_dim in (768, 1024, 2048)
    }
    assert {workload.dtype for workload in peers} == {"bfloat16"}
    for name in OPERATOR.workload_sets:
        expected = ("SwiGLU",) if name in MODELS else GROUPS
        assert tuple(dict.fromkeys(workload.group for workload in OPERATOR.workloads(name))) == expected


@pytest.mark.parametrize(
    ("name", "groups"), [("triton_swiglu", "SwiGLU"), ("triton_gelu", "GELU (erf), GELU (tanh)")]
)
def test_our_kernels_are_correct_in_the_interpreter(
    interpret: Callable[..., str], name: str, groups: str
) -> None:
    assert interpret(code_of("activation", name), INTERPRETED, name) == groups


def test_our_gelus_keep_infinity_and_nan(interpret: Callable[..., str]) -> None:
    script = """
given = torch.tensor([float("inf"), float("nan"), 1e30, 1e5, -1e5, -1e30])
for form in ("none", "tanh"):
    print(*cell.triton_gelu(given, form).tolist())
"""
    found = "inf nan 1.0000000150474662e+30 100000.0"
    printed = interpret(code_of("activation", "triton_gelu"), script)

    assert printed == f"{found} 0.0 0.0\n{found} -0.0 -0.0"


def test_a_new_implementation_is_compared_with_the_baseline_of_its_function(tmp_path: Path) -> None:
    shutil.copytree(IMPLS, tmp_path / "activation" / "impls", ignore=shutil.ignore_patterns(".kbt"))
    (tmp_path / "pyproject.toml").write_text('[tool.kbt]\ntitle = "Copy"\n')

    def kbt(*arguments: str) -> str:
        done = run_kbt(tmp_path, *arguments, timeout=250, CUDA_VISIBLE_DEVICES="")
        assert done.returncode == 0, done.stderr
        return done.stdout

    made = kbt("new", "implementation", "activation/mine", "--from", "torch_swiglu")
    (cell,) = json.loads(kbt("run", "activation/mine", "--env", "current", "--workloads", "smoke", "--json"))

    assert made.splitlines()[0] == "activation/impls/mine.md"
    assert cell["baseline"] == "PyTorch SwiGLU"
    assert [row["workload"] for row in cell["rows"]] == ["smoke_SwiGLU_T16_D256"]
    assert cell["rows"][0]["baseline_status"] in ("ok", "disturbed")  # other tests run beside it
    assert "use --from to copy torch_swiglu" in kbt("new", "implementation", "activation/other")


def test_the_combined_results_are_made_like_those_of_every_operator() -> None:
    def cell(operator: str) -> str:
        text = (ROOT / operator / "results" / "combined_results.md").read_text(encoding="utf-8")
        return re.sub(r'combine\(title=".*"\)', "combine()", text[text.index("```python") :])

    assert cell("activation") == cell("layer_norm")
