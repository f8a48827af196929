"""What an implementation declares: prepared parameters, a layout, working in place, a lower precision."""

import traceback
from collections.abc import Callable
from typing import Any

import pytest
import torch
from implementations import is_timed
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools import run_benchmark
from kernels_bench_tools.measure.judge.batches import Batches
from kernels_bench_tools.measure.judge.candidate import Method, TimedCalls
from kernels_bench_tools.measure.judge.changing_inputs import InputChanges, InputSets
from kernels_bench_tools.operators.rotary import reference as rotate
from kernels_bench_tools.records.record import REJECTING, Flag, Record, Status

pytestmark = pytest.mark.usefixtures("few_input_sets", "few_samples")


def smoke(operator: str, function: Callable[..., Any], **options: Any) -> Record:
    (record,) = run_benchmark(operator, function, workloads="smoke", device="cpu", **options)
    return record


def rotates_in_place(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    for value, rotated in zip((q, k), rotate(q, k, cos, sin), strict=True):
        value.data.copy_(rotated)
    return q, k


class ConsumesSaved(torch.autograd.Function):
    """SwiGLU whose backward pass writes its gradients over what the forward pass has saved, as Liger's does."""

    @staticmethod
    def forward(context: Any, gate: Tensor, up: Tensor) -> Tensor:
        context.save_for_backward(gate, up)
        return functional.silu(gate) * up

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> Any:
        gate, up = (value.detach() for value in context.saved_tensors)
        sigmoid = gate.sigmoid()
        d_up = gradients[0] * gate * sigmoid
        d_gate = gradients[0] * up * sigmoid * (1 + gate * (1 - sigmoid))
        return gate.data.copy_(d_gate), up.data.copy_(d_up)


def to_int8(x: Tensor) -> Tensor:
    step = x.float().abs().amax((1, 3), keepdim=True) / 127
    return (x.float() / step).round() * step


def int8_attention(q: Tensor, k: Tensor, v: Tensor, causal: bool) -> Tensor:
    heads_first = (value.transpose(1, 2) for value in (to_int8(q), to_int8(k), v.float()))
    found = functional.scaled_dot_product_attention(*heads_first, is_causal=causal and q.shape[1] > 1)
    return found.transpose(1, 2).to(q.dtype)


def test_an_implementation_that_declares_it_may_overwrite_its_inputs() -> None:
    declared = smoke("rotary", rotates_in_place, in_place=True)
    undeclared = smoke("rotary", rotates_in_place)

    assert declared.status is Status.OK, declared.err
    assert Flag.IN_PLACE in declared.flags
    assert not REJECTING & set(declared.flags)
    assert undeclared.status is Status.REJECTED
    assert {Flag.INPUT_MUTATED, Flag.ALIASED_OUTPUT} <= set(undeclared.flags)


def test_parameters_may_not_be_overwritten_in_place_either() -> None:
    def scales_its_tables(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        found = rotates_in_place(q, k, cos, sin)
        cos.mul_(1)
        sin.neg_()
        return found

    record = smoke("rotary", scales_its_tables, in_place=True)

    assert record.status is Status.INCORRECT or Flag.INPUT_MUTATED in record.flags


def test_a_result_of_an_earlier_call_is_wrong_in_place_too() -> None:
    kept: list[Tensor] = []

    def rotates_untimed_only(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        if is_timed():
            q.copy_(kept[0])
            k.copy_(kept[1])
        else:
            kept[:] = [value.clone() for value in rotates_in_place(q, k, cos, sin)]
        return q, k

    assert smoke("rotary", rotates_untimed_only, in_place=True).status is not Status.OK


@pytest.mark.parametrize("mode", ["bwd", "fwd_bwd"])
def test_a_backward_pass_that_consumes_what_was_saved_gets_a_fresh_forward_pass(mode: str) -> None:
    options: dict[str, Any] = {"layout": "two_tensors", "mode": mode}

    record = smoke("activation", ConsumesSaved.apply, in_place=True, **options)

    assert record.status is Status.OK, record.err
    assert record.workload == f"smoke_SwiGLU_T16_D256_two_tensors_{mode}"
    assert smoke("activation", ConsumesSaved.apply, **options).status is Status.REJECTED


@pytest.mark.parametrize("turn", [False, True])
def test_arguments_of_calls_in_place_are_made_before_their_process_knows_the_changes(turn: bool) -> None:
    stacks: list[set[str]] = []

    def forward(*inputs: Tensor) -> tuple[Tensor, ...]:
        stacks.append({frame.name for frame in traceback.extract_stack()})
        return inputs

    given = [(torch.arange(4096.0) + number,) for number in range(3)]
    calls = TimedCalls(
        Tensor.zero_,
        InputSets(given, InputChanges([0], rotate=turn), overwritten=[0], prepare=forward),
        "cpu",
    )
    batches = Batches(calls, len(given))
    batches.state()
    stacks.clear()

    batches.draw(Method.CLOCK)(7)

    assert len(stacks) >= 7
    assert all("make_ahead" in names for names in stacks)


def test_parameters_are_prepared_once_for_each_set_of_inputs() -> None:
    prepared: list[int] = []
    called: list[int] = []

    def in_float64(*parameters: Tensor) -> list[Tensor]:
        prepared.append(len(parameters))
        return [value.double() for value in parameters]

    def layer_norm(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        called.append(1)
        assert weight.dtype is bias.dtype is torch.float64
        return functional.layer_norm(x, x.shape[-1:], weight.float(), bias.float())

    record = smoke("layer_norm", layer_norm, prepare=in_float64)

    assert record.status is Status.OK, record.err
    assert Flag.PREPARED in record.flags
    assert set(prepared) == {2}
    assert len(prepared) < len(called)  # once for each set of inputs, of which several calls are made


def test_a_prepare_that_returns_fewer_than_it_is_given_is_named() -> None:
    record = smoke("layer_norm", functional.layer_norm, prepare=lambda weight, _: weight)

    assert record.status is Status.ERROR
    assert record.err.msg == "prepare= returned 1 of 2 parameters"


def test_a_layout_has_workloads_in_a_group_of_its_own() -> None:
    record = smoke("activation", lambda gate, up: functional.silu(gate) * up, layout="two_tensors")

    assert record.status is Status.OK, record.err
    assert record.workload == "smoke_SwiGLU_T16_D256_two_tensors"
    assert record.wl["group"] == "SwiGLU, two tensors"
    assert record.tags["layout"] == "two_tensors"
    assert record.work.bytes_moved == 3 * 16 * 256 * 4


def test_a_declared_lower_precision_is_approximate_and_not_incorrect() -> None:
    declared = smoke("flash_attn", int8_attention, precision="int8")

    assert declared.status is Status.OK, declared.err
    assert Flag.APPROXIMATE in declared.flags
    assert declared.tags["precision"] == "int8"
    assert smoke("flash_attn", int8_attention).status is Status.INCORRECT


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("operator", "function", "options"),
    [
        ("rotary", rotates_in_place, {}),
        ("activation", ConsumesSaved.apply, {"layout": "two_tensors", "mode": "bwd"}),
    ],
    ids=["forward", "backward"],
)
def test_calls_in_place_are_timed_on_a_gpu(
    operator: str, function: Callable[..., Any], options: dict[str, Any]
) -> None:
    (record,) = run_benchmark(operator, function, workloads="smoke", device="cuda", in_place=True, **options)

    assert record.status is Status.OK, record.err
    assert record.quantities.device_hot is None
    assert record.quantities.host_submit is not None
