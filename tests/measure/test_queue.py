"""Calls in a queue, which another process begins and times by its own clock; on a CPU the process of the calls waits itself."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from kernels_bench_tools.measure import trial
from kernels_bench_tools.measure.judge.changing_inputs import InputSets, after
from kernels_bench_tools.measure.judge.remote import forked
from kernels_bench_tools.measure.operator import CallError
from kernels_bench_tools.measure.timing import queue
from kernels_bench_tools.measure.timing.batches import Batches
from kernels_bench_tools.measure.timing.calls import TimedCalls
from kernels_bench_tools.measure.timing.measure import back_to_back
from kernels_bench_tools.measure.timing.queue import NoQueueError, Signals
from kernels_bench_tools.records.record import Quantities, Timing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs memory without a file")
SECONDS = 0.004


def inputs() -> list[tuple[Tensor]]:
    return [(torch.arange(1000.0) + number,) for number in range(2)]


def slow(x: Tensor) -> Tensor:
    time.sleep(SECONDS)
    return x + 1


@contextmanager
def batches_of(
    function: Callable[..., Any], wait: Callable[[Signals], None] = Signals.wait
) -> Iterator[Batches]:
    """Yield batches of a function in another process, in which signals wait like this."""

    def make() -> TimedCalls:
        Signals.wait = wait  # of that process only
        return TimedCalls(function, InputSets(inputs(), (0,)), "cpu")

    with forked(make) as remote:
        yield Batches(remote, 2)


def test_the_time_of_a_queue_is_that_of_its_calls_and_its_outputs_belong_to_its_inputs() -> None:
    with batches_of(slow) as batches:
        found = back_to_back(batches)

    assert found.p50 > 0.9e3 * SECONDS
    (taken,) = batches.picked
    (x,) = after(inputs()[0], (0,), batches.changes[0][: taken.changes], turn=False)
    assert torch.equal(taken.output, x + 1)


def test_reported_times_that_are_shorter_are_timed_again_and_then_too_short() -> None:
    with batches_of(slow) as batches:
        found = back_to_back(batches)
        queued = Quantities(back_to_back=found, device_hot=Timing(p50=0.001))
        before = len(batches.changes[0])
        reason = trial._late_in_queue(found.p50, queued, [], batches, "cpu")
        again = len(batches.changes[0]) - before
        cold = trial._late_in_queue(0.002, Quantities(back_to_back=found), [], batches, "cpu")
        honest = Quantities(back_to_back=found, device_hot=Timing(p50=found.p50))
        assert trial._late_in_queue(found.p50, honest, [], batches, "cpu") == ""

    assert again >= 2 * trial.QUEUED_AGAIN
    assert f"took {queued.back_to_back.p50:.4g} ms by the clock of another process" in reason
    assert "0.001 ms with warm caches were reported" in reason
    assert "0.002 ms with cold caches were reported" in cold


def never(signals: Signals) -> None:
    raise NoQueueError("another vendor's driver")


@pytest.mark.parametrize(
    "wait",
    [never, lambda signals: None, lambda signals: time.sleep(1.2 * queue.MOST_QUEUING_SECONDS)],
    ids=["cannot wait", "did not wait", "was not complete in time"],
)
def test_calls_that_do_not_wait_for_the_other_process_have_no_such_time(
    wait: Callable[[Signals], None],
) -> None:
    with batches_of(slow, wait) as batches:
        assert back_to_back(batches) is None


def test_calls_that_each_need_inputs_of_their_own_have_no_such_time() -> None:
    calls = TimedCalls(slow, InputSets(inputs(), (0,), overwritten=[0]), "cpu")

    assert back_to_back(Batches(calls, 2)) is None


def test_an_exception_in_a_queue_is_that_of_the_call() -> None:
    def failing(x: Tensor) -> Tensor:
        raise ValueError("not these values")

    with batches_of(failing) as batches, pytest.raises(CallError, match="not these values"):
        back_to_back(batches)
