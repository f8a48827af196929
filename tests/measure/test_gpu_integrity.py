"""The judge on a CUDA device: the same fixtures, torch's caching allocator, and what it costs."""

import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import fixtures_integrity as cheats
import pytest
import torch
from implementations import function_of
from norms import LAYER_NORM

from kernels_bench_tools.measure.correctness.check import check
from kernels_bench_tools.measure.judge.guard import Guard
from kernels_bench_tools.measure.judge.memory import fingerprint, poison_memory
from kernels_bench_tools.measure.operator import Inputs, Workload
from kernels_bench_tools.records.record import REJECTING, Status

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]

WORKLOAD = Workload(name="w", axes={"batch": 8, "seq_len": 512, "hidden_dim": 1024}, dtype="float32")


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.mark.parametrize(
    ("make", "ok", "flags"), [case[1:] for case in cheats.MATRIX], ids=[case[0] for case in cheats.MATRIX]
)
def test_each_fixture_gets_exactly_its_flags(make: Callable[[], Any], ok: bool, flags: set[str]) -> None:
    trial, found = cheats.examine(LAYER_NORM, make(), WORKLOAD, "cuda")

    if trial.failure and trial.failure.type == "NoKernelError":  # its timed calls launched nothing
        assert not ok or flags & REJECTING
        return
    # What is wrong in untimed calls may be wrong in timed ones, too.
    either = {"stale_output"} if trial.status is Status.INCORRECT else set()
    assert found | either == flags | either, trial.failure
    assert (trial.status is Status.OK) == (ok and not flags & REJECTING), trial.failure


def test_what_makes_new_inputs_between_calls_is_no_work_outside_of_them() -> None:
    def renew(inputs: Inputs, generator: torch.Generator) -> Inputs:
        noise = torch.randn(inputs[0].shape, generator=generator, device="cuda", dtype=inputs[0].dtype)
        return noise * 2 + 1, *inputs[1:]

    trial, found = cheats.examine(replace(LAYER_NORM, renew=renew), cheats.right, WORKLOAD, "cuda")

    assert trial.status is Status.OK, trial.failure
    assert not found


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
@pytest.mark.parametrize("kind", ["torch", "compiled", "triton"])
def test_honest_code_gets_no_flag(kind: str, dtype: str) -> None:
    function = cheats.right
    if kind == "triton":
        function = function_of("layer_norm", "triton_layer_norm")
    elif kind == "compiled":
        function = torch.compile(function, dynamic=False)
    trial, found = cheats.examine(LAYER_NORM, function, replace(WORKLOAD, dtype=dtype), "cuda")
    torch._dynamo.reset()

    assert trial.status is Status.OK, trial.failure
    assert not found


@pytest.mark.parametrize("megabytes", [1, 64, 1024])
def test_the_next_output_has_poisoned_memory(megabytes: int) -> None:
    torch.cuda.empty_cache()
    like = torch.ones(megabytes * 2**18, device="cuda")
    previous = [like.clone() for _ in range(2)]
    previous.clear()
    poison_memory(like)

    assert torch.empty_like(like).isnan().all()


def test_a_gigabyte_is_checked_in_less_than_a_second() -> None:
    """0.7 s are wanted on an H200; other GPUs have less bandwidth in float64."""
    workload = LAYER_NORM.workloads("default")[-1]
    inputs = LAYER_NORM.inputs(workload, "cuda", 0)
    guard = Guard("cuda")
    cheats.right(*inputs)
    check(LAYER_NORM, workload, cheats.right, inputs)  # memory is reserved, kernels are loaded
    times = []
    for step in (
        lambda: check(LAYER_NORM, workload, cheats.right, inputs),
        lambda: guard.inspect(LAYER_NORM, cheats.right, inputs),
        lambda: [fingerprint(value) for value in inputs],
    ):
        torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        torch.cuda.synchronize()
        times.append(time.perf_counter() - start)

    assert times[0] + times[1] < 1.0, times
