import sys
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from implementations import assert_correct, code_of, counted, judge_on, run_cell
from torch import Tensor

from kernels_bench_tools.measure.correctness.check import check
from kernels_bench_tools.measure.modes import in_mode, timed_function
from kernels_bench_tools.measure.operator import Operator, Workload, find_operator
from kernels_bench_tools.operators import flash_attn

OPERATOR: Operator = find_operator("flash_attn")
WORKLOADS = [workload for name in OPERATOR.workload_sets for workload in OPERATOR.workloads(name)]
SMOKE = OPERATOR.workloads("smoke")[0]
# Interpreted, where tl.dot takes no bfloat16: float16 and float32; ragged blocks, shared heads, and keys split over programs.
INTERPRETED = """
operator = find_operator("flash_attn")
smoke = operator.workloads("smoke")[0]
for dtype, *extents in (
    ("float32", 1, 33, 33, 2, 2, 16, False),
    ("float16", 1, 70, 70, 4, 2, 32, True),
    ("float16", 1, 3, 600, 4, 2, 64, True),
    ("float32", 1, 1, 530, 2, 1, 32, False),
):
    workload = replace(smoke, axes=dict(zip(operator.axes, extents)), dtype=dtype)
    assert not judge(operator, workload, cell.triton_attention).flags
"""


def implementation(name: str) -> Callable[..., Tensor]:
    """Return what the notebook measures, from its own code."""
    scope = run_cell("flash_attn", name)
    loaded: Callable[..., Tensor] = scope["load"]() if "load" in scope else scope[name]
    return loaded


def attention(
    queries: int, keys: int, heads: int, kv_heads: int, *, causal: bool = False, dtype: str = "float32"
) -> Workload:
    axes = dict(zip(OPERATOR.axes, (1, queries, keys, heads, kv_heads, 64, causal), strict=True))
    return replace(SMOKE, axes=axes, dtype=dtype)


def right(*inputs: Any) -> Tensor:
    return OPERATOR.reference(*(x.double() if isinstance(x, Tensor) else x for x in inputs)).to(
        inputs[0].dtype
    )


def naive(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    """One query at a time, from the definition."""
    out = torch.empty_like(q)
    for batch, query, head in torch.cartesian_prod(*map(torch.arange, q.shape[:3])).tolist():
        seen = k.shape[1] - q.shape[1] + query + 1 if causal else k.shape[1]
        kv_head = head * k.shape[2] // q.shape[2]
        scores = k[batch, :seen, kv_head] @ q[batch, query, head] / q.shape[3] ** 0.5
        weights = scores.exp() / scores.exp().sum()
        out[batch, query, head] = weights @ v[batch, :seen, kv_head]
    return out


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize(("queries", "keys"), [(5, 5), (3, 9), (1, 4)])
def test_the_reference_is_the_formula_with_shared_heads_and_a_mask_that_ends_at_the_last_key(
    queries: int, keys: int, causal: bool
) -> None:
    workload = attention(queries, keys, 4, 2, causal=causal, dtype="float64")
    inputs = OPERATOR.inputs(workload, "cpu", 0)

    torch.testing.assert_close(OPERATOR.reference(*inputs), naive(*inputs), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("at_once", [2**25, 700, 100, 1])
def test_slices_cover_the_output_once_and_agree_with_the_whole(
    causal: bool, at_once: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(flash_attn, "SCORES_AT_ONCE", at_once)
    inputs = OPERATOR.inputs(attention(11, 13, 6, 3, causal=causal, dtype="float64"), "cpu", 0)
    whole = OPERATOR.reference(*inputs)
    seen = torch.zeros_like(whole)

    for index, piece in OPERATOR.slices(inputs):
        seen[index] += 1
        torch.testing.assert_close(OPERATOR.reference(*piece), whole[index], rtol=1e-12, atol=1e-12)

    assert torch.equal(seen, torch.ones_like(seen))


# The compiled ones are checked by every build of the report, which takes many seconds for each shape.
@pytest.mark.parametrize(
    "workload",
    [attention(70, 70, 4, 4), attention(70, 70, 4, 2, causal=True), attention(5, 300, 4, 1)],
    ids=["full", "causal, shared heads", "few queries"],
)
@pytest.mark.parametrize("name", ["flash_attention", "math_attention"])
def test_cpu_implementations_are_correct(name: str, workload: Workload) -> None:
    assert_correct(judge_on(workload, OPERATOR, implementation(name)))


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
def test_flex_attention_is_correct() -> None:
    """Without compiling it, which takes 20 s: checked is what the notebook asks of torch."""
    with torch.compiler.set_stance("force_eager"):
        assert_correct(
            judge_on(attention(5, 300, 4, 1, causal=True), OPERATOR, implementation("flex_attention"))
        )


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_the_baseline_is_correct_in_half_precision(dtype: str) -> None:
    verdict = judge_on(
        attention(113, 113, 2, 2, causal=True, dtype=dtype), OPERATOR, implementation("flash_attention")
    )

    assert_correct(verdict)


def test_a_mask_aligned_to_the_first_key_is_refused_where_it_differs() -> None:
    verdict = judge_on(attention(70, 70, 2, 2, causal=True), OPERATOR, implementation("math_attention"))

    assert verdict.corr["refused"] == ["batch 1, 7 queries, 113 keys"]
    assert "first key" in verdict.corr["refusal"]


def test_the_triton_kernel_is_correct_in_the_interpreter(interpret: Callable[..., str]) -> None:
    interpret(code_of("flash_attn", "triton_attention"), INTERPRETED)


WRONG: dict[str, tuple[Callable[..., Any], Workload]] = {
    "zeros": (lambda q, *_: torch.zeros_like(q), attention(64, 64, 2, 2)),
    # Where averages are smallest: a few queries against as many keys as any workload has.
    "zeros, 16384 keys": (lambda q, *_: torch.zeros_like(q), attention(4, 16384, 2, 2, dtype="bfloat16")),
    "no scale": (lambda q, k, v, c: right(q * q.shape[-1] ** 0.5, k, v, c), attention(64, 64, 2, 2)),
    "no mask": (lambda q, k, v, _: right(q, k, v, False), attention(64, 64, 2, 2, causal=True)),
    "keys one place too early": (
        lambda q, k, v, _: right(q, torch.cat((k, k[:, :1]), 1)[:, 1:], v, True),
        attention(64, 64, 2, 2, causal=True),
    ),
    "heads dealt out in turn": (
        lambda q, k, v, c: right(q, k.repeat(1, 1, 2, 1), v.repeat(1, 1, 2, 1), c),
        attention(64, 64, 4, 2),
    ),
    "values with the strides of keys": (
        lambda q, k, v, c: right(q, k, v.as_strided(v.shape, k.stride()), c),
        attention(64, 64, 2, 2),
    ),
    "last key forgotten": (lambda q, k, v, c: right(q, k[:, :-1], v[:, :-1], c), attention(64, 64, 2, 2)),
    "mask aligned to the first key": (
        lambda q, k, v, c: right(q, k[:, : q.shape[1]], v[:, : q.shape[1]], c),
        attention(64, 64, 2, 2, causal=True),
    ),
    "heads first in the result": (lambda *inputs: right(*inputs).transpose(1, 2), attention(64, 64, 2, 2)),
    "first batch entry for all": (
        lambda q, k, v, c: right(q, k[:1].expand_as(k), v[:1].expand_as(v), c),
        attention(64, 64, 2, 2),
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_attention_is_incorrect(name: str) -> None:
    function, workload = WRONG[name]

    assert not judge_on(workload, OPERATOR, function).ok
    assert judge_on(workload, OPERATOR, right).ok


def test_integer_scores_are_correct_only_if_they_are_declared() -> None:
    workload = attention(256, 4096, 2, 2, dtype="bfloat16")

    def integer_scores(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
        steps = [value.float().abs().amax(-1, keepdim=True) / 127 for value in (q, k)]
        rounded = [(value / step).round() * step for value, step in zip((q, k), steps, strict=True)]
        return right(*rounded, v.float(), causal).to(v.dtype)

    undeclared = judge_on(workload, OPERATOR, integer_scores)
    assert undeclared.reason.startswith("the mean error is")
    assert undeclared.corr["error_over_allowed"] < 1
    assert judge_on(workload, OPERATOR.adapted(precision="int8"), integer_scores).ok


def test_exponentials_without_a_maximum_fail_on_large_scores() -> None:
    verdict = judge_on(attention(64, 64, 2, 2), OPERATOR, naive)

    assert verdict.reason.startswith("on queries x30: it has NaN or infinity")


@pytest.mark.parametrize("kv_heads", [4, 2])
def test_gradients_are_checked_too(kv_heads: int) -> None:
    backward = in_mode(OPERATOR, "bwd")
    workload = attention(40, 40, 4, kv_heads, causal=True)

    def judged(forward: Callable[..., Any]) -> bool:
        call = timed_function(OPERATOR, forward, "bwd").call
        return check(backward, workload, call, backward.inputs(workload, "cpu", 0)).ok

    assert judged(implementation("flash_attention"))
    assert not judged(lambda q, k, v, c: right(q, k.detach() + 0 * k, v, c))


def test_flops_and_bytes_are_those_counted_by_hand() -> None:
    pairs = 3 + 4 + 5  # the last of three queries sees all five keys

    read, written, flops = counted(OPERATOR, attention(3, 5, 4, 2, causal=True, dtype="bfloat16"))

    assert read == (3 * 4 + 2 * 5 * 2) * 64 * 2
    assert written == 3 * 4 * 64 * 2
    assert flops == 4 * pairs * 4 * 64


def test_the_default_workloads_are_those_of_kernels_benchmarks() -> None:
    workloads = OPERATOR.workloads("default")

    assert [workload.axes["seq_len"] for workload in workloads] == [4224, 4352, 4416, 4480, 4544, 4608]
    assert {(workload.axes["heads"], workload.axes["head_dim"]) for workload in workloads} == {(24, 128)}
    assert {workload.dtype for workload in workloads} == {"bfloat16"}
    assert not any(workload.axes["causal"] for workload in workloads)


def test_a_smaller_workload_has_the_same_length_modulo_the_block() -> None:
    for workload in WORKLOADS:
        smaller = OPERATOR.smaller(workload).axes
        queries, keys = int(smaller["seq_len"]), int(smaller["kv_len"])
        assert (int(workload.axes["seq_len"]) - queries) % 128 == 0
        assert int(smaller["heads"]) * queries * keys <= 2**25
        assert {axis: smaller[axis] for axis in OPERATOR.axes[3:]} == {
            axis: workload.axes[axis] for axis in OPERATOR.axes[3:]
        }


def test_a_call_without_a_torch_kernel_is_unsupported_with_torch_s_reason() -> None:
    from kernels_bench_tools import Unsupported

    inputs = OPERATOR.inputs(SMOKE, "cpu", 0)

    for name in ("mem_efficient_attention", "cudnn_attention"):
        with pytest.raises(Unsupported, match=r"torch has no .* kernel for this call"):
            implementation(name)(*inputs)


def test_sage_attention_does_not_change_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    def centring_in_place(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if options.get("smooth_k", True):
            k -= k.mean(dim=1, keepdim=True)
        return right(q, k, v, options["is_causal"])

    monkeypatch.setitem(sys.modules, "sageattention", SimpleNamespace(sageattn=centring_in_place))

    assert_correct(judge_on(attention(64, 64, 2, 2), OPERATOR, implementation("sage_attention")))


@pytest.mark.parametrize("name", ["flash_attention_4", "sage_attention", "xformers"])
def test_a_missing_package_is_named(name: str) -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        implementation(name)

    assert caught.value.name in {"flash_attn.cute", "flash_attn", "sageattention", "xformers"}
