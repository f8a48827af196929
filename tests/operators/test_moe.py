"""Mixtures of experts: what is right, what is called wrong, and what is counted."""

from collections.abc import Callable

import pytest
import torch
from implementations import IN_HALF, assert_correct, code_of, function_of, in_8_bits, judge, smoke_workload
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional

from kernels_bench_tools.measure.judge.changing_inputs import after, turns
from kernels_bench_tools.measure.modes import Prepared, changing
from kernels_bench_tools.measure.operator import Operator, find_operator
from kernels_bench_tools.models.baseline.L2 import FusedMoE
from kernels_bench_tools.operators.moe import reference

OPERATOR: Operator = find_operator("moe")


@pytest.mark.parametrize("name", ["torch_moe", "torch_compiled_moe"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_torch_is_correct(name: str, dtype: str) -> None:
    assert_correct(judge(OPERATOR, "", dtype, function_of("moe", name)), edge_cases=9)


def test_the_block_of_the_models_computes_the_same() -> None:
    x, logits, w13, w2, top_k = OPERATOR.inputs(smoke_workload(OPERATOR, "", "float32"), "cpu", 0)
    block = FusedMoE(6, top_k, 64, 48)

    found = functional_call(block, {"w13_weight": w13, "w2_weight": w2}, (x, logits))
    torch.testing.assert_close(found, reference(x, logits, w13, w2, top_k))


@pytest.mark.parametrize("experts", [5, 8, 128])
def test_the_logits_of_a_token_are_different_after_rounding(experts: int) -> None:
    workload = smoke_workload(OPERATOR, "", "bfloat16")
    axes = {**workload.axes, "tokens": 500, "experts": experts}
    logits = OPERATOR.inputs(type(workload)(name="", axes=axes, dtype="bfloat16"), "cpu", 0)[1]

    assert (logits.sort(dim=-1).values.diff() > 0).all()


def _overflowing(x: Tensor, logits: Tensor, w13: Tensor, w2: Tensor, top_k: int) -> Tensor:
    weights = logits.float().exp() / logits.float().exp().sum(-1, keepdim=True)
    return reference(x, weights.log().to(logits.dtype), w13, w2, top_k)


WRONG: dict[str, Callable[..., Tensor]] = {
    "gate and up swapped": lambda x, logits, w13, *rest: reference(x, logits, w13.roll(48, 1), *rest),
    "the next expert": lambda x, logits, w13, *rest: reference(x, logits, w13.roll(1, 0), *rest),
    "one expert less": lambda *given: reference(*given[:4], max(given[4] - 1, 1)),
    "equal weights": lambda x, logits, *rest: reference(x, logits * 1e-6, *rest),
    "weights of the next token": lambda x, logits, *rest: reference(
        x, logits * (logits.roll(1, 0).std(-1) / logits.std(-1))[:, None], *rest
    ),
    "the last token left out": lambda x, *rest: functional.pad(reference(x, *rest)[:-1], (0, 0, 0, 1)),
    "an exponential that overflows": _overflowing,
    "weights in 8 bits, in groups of 8": lambda x, logits, w13, w2, top_k: reference(
        x.float(),
        logits.float(),
        *(in_8_bits(one.unflatten(-1, (-1, 8))).flatten(-2) for one in (w13, w2)),
        top_k,
    ).to(x.dtype),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_mixture_is_incorrect(wrong: str) -> None:
    assert not judge(OPERATOR, "", "bfloat16", WRONG[wrong]).ok


def test_only_weights_of_chosen_experts_are_counted() -> None:
    x, logits, *rest = OPERATOR.inputs(smoke_workload(OPERATOR, "", "bfloat16"), "cpu", 0)
    inputs = x, logits[:1].expand_as(logits).contiguous(), *rest
    counted = OPERATOR.work(inputs, reference(*inputs))

    assert counted.bytes_read == 2 * (12 * 64 + 12 * 6 + 2 * 3 * 48 * 64)
    assert counted.bytes_written == 2 * 12 * 64
    assert counted.flops == 2 * 12 * 2 * 3 * 48 * 64


def test_our_kernels_are_correct_in_the_block_in_the_interpreter(interpret: Callable[..., str]) -> None:
    interpret(code_of("moe", "triton_moe"), IN_HALF, "moe", "triton_moe")


def test_nothing_is_prepared_of_the_logits_of_a_router() -> None:
    inputs = OPERATOR.inputs(smoke_workload(OPERATOR, "", "float32"), "cpu", 0)
    given: list[Tensor] = []

    def prepare(*parameters: Tensor) -> tuple[Tensor, ...]:
        given.extend(parameters)
        return parameters

    Prepared(OPERATOR, prepare)(*inputs)

    assert [one.shape for one in given] == [inputs[2].shape, inputs[3].shape]


def test_the_logits_of_a_token_stay_different_when_they_change() -> None:
    inputs = OPERATOR.inputs(smoke_workload(OPERATOR, "", "bfloat16"), "cpu", 0)
    positions = changing(OPERATOR, "fwd")(inputs)
    assert list(positions) == [0, 1]

    logits = after(inputs, positions, [1], turn=turns(OPERATOR, inputs), whole=OPERATOR.whole_rows)[1]

    assert (logits.sort(dim=-1).values.diff() > 0).all()
    assert torch.equal(*(one.sort(dim=-1).values.sort(dim=0).values for one in (logits, inputs[1])))
    chosen, before = (one.topk(2, dim=-1).indices for one in (logits, inputs[1]))
    assert not torch.equal(chosen, before)
