from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from implementations import attempt, is_timed
from norms import LAYER_NORM, torch_layer_norm
from torch import Tensor

from kernels_bench_tools.errors import Unsupported
from kernels_bench_tools.measure import trial as trial_module
from kernels_bench_tools.measure.judge.changing_inputs import InputChanges
from kernels_bench_tools.measure.operator import Inputs, Workload, built_in_modules, find_operator
from kernels_bench_tools.measure.trial import decide
from kernels_bench_tools.records.record import REJECTING, Flag, Status

pytestmark = pytest.mark.usefixtures("few_input_sets", "few_samples")


def leave_out_a_quarter(output: Tensor) -> Tensor:
    output.view(-1, output.shape[-1])[::4] = 0
    return output


def test_a_time_above_the_roofline_has_its_status() -> None:
    boasting = replace(LAYER_NORM, flops=lambda inputs: 10**18)
    trial = attempt(boasting, torch_layer_norm, matmul_float32=1e3)

    if Flag.DISTURBED not in trial.flags:  # by other programs on this machine
        assert trial.status is Status.EXCEEDS_PHYSICS
        assert "TFLOP/s" in trial.failure.msg
    assert trial.timing is not None


@pytest.mark.parametrize(
    ("wrong", "above", "flags", "status"),
    [
        ("off", "too fast", [Flag.STREAM_ESCAPE], Status.INCORRECT),
        ("", "too fast", [Flag.STREAM_ESCAPE], Status.EXCEEDS_PHYSICS),
        ("", "too fast", [Flag.DISTURBED], Status.OK),
        ("", "too fast", [Flag.DISTURBED, Flag.STREAM_ESCAPE], Status.REJECTED),
        ("", "", [], Status.OK),
        *(("", "", [flag], Status.REJECTED if flag in REJECTING else Status.OK) for flag in Flag),
    ],
)
def test_wrong_comes_before_disturbed_before_impossible_before_rejected(
    wrong: str, above: str, flags: list[Flag], status: Status
) -> None:
    assert decide(wrong, above, flags, {})[0] is status


LARGE = Workload(name="w", axes={"batch": 3, "seq_len": 80, "hidden_dim": 256}, dtype="float32")


def cancels(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    mean = x.mean(-1, keepdim=True)
    return (x - mean) * torch.rsqrt((x * x).mean(-1, keepdim=True) - mean * mean + eps) * weight + bias


UNSAFE: dict[str, Callable[..., Tensor]] = {
    "its variance cancels": cancels,
    "it clamps": lambda x, *rest: torch_layer_norm(x.clamp(-30, 30), *rest),
    "it has an eps of its own": lambda x, weight, bias, eps: torch_layer_norm(x, weight, bias, 1e-5),
    "it hides NaN": lambda x, *rest: torch_layer_norm(x.nan_to_num(0.0), *rest),
}


@pytest.mark.parametrize("process", [0, 2])
@pytest.mark.parametrize("name", UNSAFE)
def test_what_is_unsafe_at_full_size_only_is_incorrect_in_every_process(name: str, process: int) -> None:
    def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-5) -> Tensor:
        large = x.numel() // x.shape[-1] > 64
        return (UNSAFE[name] if large else torch_layer_norm)(x, weight, bias, eps)

    # What a process checks is drawn: another eps every second time, a NaN every third.
    trials = (attempt(LAYER_NORM, layer_norm, LARGE, process=process) for _ in range(40))
    found = next(trial for trial in trials if trial.status is not Status.OK)

    assert found.status is Status.INCORRECT, found.failure


def test_a_rejection_names_its_flags_and_their_reasons() -> None:
    flags = [Flag.HOST_BOUND, Flag.STREAM_ESCAPE, Flag.FALLBACK]

    _, failure = decide("", "", flags, {Flag.STREAM_ESCAPE: "3 activities outside"})

    assert failure.msg == "stream_escape: 3 activities outside; fallback"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (Unsupported("a power of two"), Status.UNSUPPORTED),
        (NotImplementedError("a power of two"), Status.UNSUPPORTED),
        (torch.OutOfMemoryError("CUDA out of memory"), Status.OOM),
        (MemoryError(), Status.OOM),
        (RuntimeError("can't allocate memory: 1 TB"), Status.OOM),
    ],
)
def test_an_exception_becomes_the_status(error: Exception, status: Status) -> None:
    def failing(*_: Any) -> Any:
        raise error

    assert attempt(LAYER_NORM, failing).status is status


def test_a_refusal_of_a_size_that_was_accepted_before_is_an_error() -> None:
    def tired(*inputs: Any) -> Any:
        if is_timed():
            raise Unsupported("enough")
        return torch_layer_norm(*inputs)

    trial = attempt(LAYER_NORM, tired)

    assert trial.status is Status.ERROR
    assert trial.failure.msg == "refused other values of a size that it accepts: enough"


@pytest.fixture
def rotated(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let inputs begin elsewhere in each timed call, as on a GPU."""
    of = InputChanges.of
    monkeypatch.setattr(
        InputChanges, "of", lambda *given, **options: of(*given, **options)._replace(rotate=True)
    )


@pytest.mark.usefixtures("rotated")
@pytest.mark.parametrize("name", [*built_in_modules()])
def test_timed_calls_are_right_where_inputs_begin_elsewhere(name: str) -> None:
    operator = find_operator(name)
    workload = operator.workloads("smoke")[0]
    function = operator.for_workload(workload).baseline

    trial = attempt(operator, function)

    assert trial.status is Status.OK, trial.failure


@pytest.mark.usefixtures("rotated")
def test_a_result_kept_for_a_tensor_is_wrong_where_inputs_begin_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Of hundreds of sets, each has one timed call on a busy machine, for which nothing was kept.
    monkeypatch.setattr(trial_module, "input_set_count", lambda *_: 2)
    kept: dict[int, Tensor] = {}

    def keeping(x: Tensor, *parameters: Any) -> Tensor:
        found = torch_layer_norm(x, *parameters)
        return kept.setdefault(x.data_ptr(), found).clone() if is_timed() else found

    trial = attempt(LAYER_NORM, keeping)

    assert trial.status is Status.REJECTED


def rows_as_slices(inputs: Inputs) -> Iterator[tuple[Any, Inputs]]:
    x, *parameters = inputs
    for row in np.ndindex(*x.shape[:-1]):
        yield row, (x[row], *parameters)


@pytest.mark.parametrize("fault", [leave_out_a_quarter, lambda output: output[..., None]])
def test_a_timed_call_that_leaves_out_a_part_is_rejected(fault: Callable[[Tensor], Tensor]) -> None:
    def tiring(*inputs: Any) -> Any:
        output = torch_layer_norm(*inputs)
        return fault(output) if is_timed() else output

    operator = replace(LAYER_NORM, slices=rows_as_slices)
    (workload,) = operator.workloads("smoke")
    assert sum(1 for _ in rows_as_slices(operator.inputs(workload, "cpu", 0))) >= 16

    trial = attempt(operator, tiring)

    assert trial.status is Status.REJECTED
    assert "stale_output: " in trial.failure.msg


def test_experts_of_tokens_that_are_kept_from_an_earlier_call_are_stale() -> None:
    operator = find_operator("moe")
    kept: dict[tuple[int, int], Tensor] = {}

    def keeping(x: Tensor, logits: Tensor, *rest: Any) -> Tensor:
        return operator.reference(x, kept.setdefault((logits.data_ptr(), len(x)), logits.clone()), *rest)

    def function(*inputs: Any) -> Tensor:
        return (keeping if is_timed() else operator.reference)(*inputs)

    assert Flag.STALE_OUTPUT in attempt(operator, function).flags
    assert attempt(operator, operator.reference).status is Status.OK
