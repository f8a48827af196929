"""Attention: its formula, what is right, what is called wrong, and what torch refuses."""

import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from implementations import assert_correct, judge_on, run_cell, smoke_workload
from torch import Tensor

from kernels_bench_tools.errors import Unsupported
from kernels_bench_tools.measure.operator import Operator, Workload, find_operator

OPERATOR: Operator = find_operator("flash_attn")


def implementation(name: str) -> Callable[..., Tensor]:
    """Return what the notebook measures, from its own code."""
    scope = run_cell("flash_attn", name)
    loaded: Callable[..., Tensor] = scope["load"]() if "load" in scope else scope[name]
    return loaded


def attention(
    queries: int, keys: int, heads: int, kv_heads: int, *, causal: bool = False, dtype: str = "float32"
) -> Workload:
    axes = dict(zip(OPERATOR.axes, (1, queries, keys, heads, kv_heads, 64, causal), strict=True))
    return smoke_workload(OPERATOR, dtype=dtype, **axes)


def right(*inputs: Any) -> Tensor:
    exact = OPERATOR.reference(*(x.double() if isinstance(x, Tensor) else x for x in inputs))
    return exact.to(inputs[0].dtype)


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
    inputs = OPERATOR.inputs(attention(queries, keys, 4, 2, causal=causal, dtype="float64"), "cpu", 0)

    torch.testing.assert_close(OPERATOR.reference(*inputs), naive(*inputs), rtol=1e-12, atol=1e-12)


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize(
    ("name", "workload"),
    [
        *(
            (name, workload)
            for name in ("flash_attention", "math_attention")
            for workload in (
                attention(70, 70, 4, 4),
                attention(70, 70, 4, 2, causal=True),
                attention(5, 300, 4, 1),
            )
        ),
        *(
            ("flash_attention", attention(113, 113, 2, 2, causal=True, dtype=one))
            for one in ("bfloat16", "float16")
        ),
        # Without compiling it, which takes 20 s: checked is what the notebook asks of torch.
        ("flex_attention", attention(5, 300, 4, 1, causal=True)),
    ],
)
def test_implementations_for_cpus_are_correct(name: str, workload: Workload) -> None:
    with torch.compiler.set_stance("force_eager"):
        assert_correct(judge_on(workload, OPERATOR, implementation(name)))


def test_a_mask_aligned_to_the_first_key_is_refused_where_it_differs() -> None:
    verdict = judge_on(attention(70, 70, 2, 2, causal=True), OPERATOR, implementation("math_attention"))

    assert set(verdict.corr["refused"]) - {"a drawn shape"} == {"shape 1x7x113"}
    assert "first key" in verdict.corr["refusal"]


PLAIN, CAUSAL = attention(64, 64, 2, 2), attention(64, 64, 2, 2, causal=True)
WRONG: dict[str, tuple[Callable[..., Any], Workload]] = {
    # Where averages are smallest: a few queries against as many keys as any workload has.
    "zeros, 16384 keys": (lambda q, *_: torch.zeros_like(q), attention(4, 16384, 2, 2, dtype="bfloat16")),
    "no scale": (lambda q, k, v, c: right(q * q.shape[-1] ** 0.5, k, v, c), PLAIN),
    "keys one place too early": (
        lambda q, k, v, _: right(q, torch.cat((k, k[:, :1]), 1)[:, 1:], v, True),
        CAUSAL,
    ),
    "heads dealt out in turn": (
        lambda q, k, v, c: right(q, k.repeat(1, 1, 2, 1), v.repeat(1, 1, 2, 1), c),
        attention(64, 64, 4, 2),
    ),
    "values with the strides of keys": (
        lambda q, k, v, c: right(q, k, v.as_strided(v.shape, k.stride()), c),
        PLAIN,
    ),
    "last key forgotten": (lambda q, k, v, c: right(q, k[:, :-1], v[:, :-1], c), PLAIN),
    "mask aligned to the first key": (
        lambda q, k, v, c: right(q, k[:, : q.shape[1]], v[:, : q.shape[1]], c),
        CAUSAL,
    ),
    # Without a maximum, large scores overflow.
    "exponentials without a maximum": (naive, PLAIN),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_attention_is_incorrect(name: str) -> None:
    function, workload = WRONG[name]

    assert not judge_on(workload, OPERATOR, function).ok
    assert judge_on(workload, OPERATOR, right).ok


@pytest.mark.parametrize("name", ["mem_efficient_attention", "cudnn_attention"])
def test_a_call_without_a_torch_kernel_is_unsupported(name: str) -> None:
    with pytest.raises(Unsupported, match="kernel for this call"):
        implementation(name)(*OPERATOR.inputs(PLAIN, "cpu", 0))


def test_sage_attention_does_not_change_its_keys(monkeypatch: pytest.MonkeyPatch) -> None:
    def centring_in_place(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        if options.get("smooth_k", True):
            k -= k.mean(dim=1, keepdim=True)
        return right(q, k, v, options["is_causal"])

    monkeypatch.setitem(sys.modules, "sageattention", SimpleNamespace(sageattn=centring_in_place))

    assert_correct(judge_on(PLAIN, OPERATOR, implementation("sage_attention")))


@pytest.mark.parametrize("name", ["flash_attention_4", "sage_attention", "xformers"])
def test_a_missing_package_is_named(name: str) -> None:
    with pytest.raises(ModuleNotFoundError) as caught:
        implementation(name)

    assert caught.value.name in {"flash_attn.cute", "flash_attn", "sageattention", "xformers"}
