"""Calls in a queue, which another process begins and times by its own clock; on a CPU the process of the calls waits itself."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from builds import measured_latency
from torch import Tensor

from kernels_bench_tools.measure import trial
from kernels_bench_tools.measure.judge.batches import Batches
from kernels_bench_tools.measure.judge.candidate import Method, TimedCalls
from kernels_bench_tools.measure.judge.changing_inputs import InputChanges, InputSets
from kernels_bench_tools.measure.judge.remote import forked
from kernels_bench_tools.measure.operator import CallError
from kernels_bench_tools.measure.timing import queue
from kernels_bench_tools.measure.timing.measure import TimingResult, back_to_back
from kernels_bench_tools.measure.timing.queue import NoQueueError, Signals
from kernels_bench_tools.records.record import Flag, Quantities, Timing

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
        return TimedCalls(function, InputSets(inputs(), InputChanges((0,))), "cpu")

    with forked(make) as remote:
        yield Batches(remote, 2)


class Exact(Batches):
    """Batches whose queues take exactly so long: a busy machine changes nothing."""

    call_ms, more_ms = 4.0, 0.0

    def queue(self, count: int, most_seconds: float, *, take: bool = False) -> float:
        self.asked = getattr(self, "asked", 0) + 1
        return 1.0 + count * self.call_ms + self.more_ms * (self.asked % 3)


@pytest.fixture
def exact() -> Exact:
    return Exact(TimedCalls(slow, InputSets(inputs(), InputChanges((0,))), "cpu"), 2)


def test_the_time_of_a_queue_is_that_of_its_calls_and_its_outputs_belong_to_its_inputs() -> None:
    with batches_of(slow) as batches:
        # On a busy machine a process may not run in time.
        found = next(filter(None, (batches.queue(2, 5.0, take=True) for _ in range(20))))

    assert found >= 2e3 * SECONDS
    for taken in batches.picked:
        (x,) = InputChanges((0,)).apply(inputs()[0], batches.changes[0][: taken.changes])
        assert torch.equal(taken.output, x + 1)


def test_two_queues_differ_by_their_calls_only(exact: Exact) -> None:
    found = back_to_back(exact)

    assert (found.p50, found.ci_low, found.ci_high) == pytest.approx((4.0, 4.0, 4.0))


def test_reported_times_that_are_shorter_are_timed_again_and_then_too_short(exact: Exact) -> None:
    found = back_to_back(exact)

    def late(cold_ms: float, hot_ms: float) -> str:
        quantities = Quantities(back_to_back=found, device_hot=Timing(p50=hot_ms))
        return trial._late_in_queue(cold_ms, quantities, [], exact, "cpu")

    before = exact.asked
    hot = late(3.5, 3.6)
    again = exact.asked - before

    assert again == trial.QUEUED_AGAIN * before
    took = "a call in a queue took 4 ms by the clock of another process"
    assert hot == f"{took}, and 3.6 ms with warm caches were reported"
    assert late(3.1, 3.9) == f"{took}, and 3.1 ms with cold caches were reported"
    assert late(3.3, 3.7) == ""


@pytest.mark.parametrize(
    ("neighbour", "more_ms", "why"),
    [
        (True, 0.0, "another process used the device"),
        (False, 1.0, "other queues took another time"),
        (False, 0.0, ""),
    ],
)
def test_a_time_that_is_too_short_is_disturbed_if_something_else_took_the_time(
    monkeypatch: pytest.MonkeyPatch, exact: Exact, neighbour: bool, more_ms: float, why: str
) -> None:
    monkeypatch.setattr(trial, "cpu_pressure", lambda: 0.0)  # others may use this machine
    exact.more_ms = more_ms
    timed = measured_latency(*[0.5] * 6)
    queued = Quantities(back_to_back=back_to_back(exact))
    found = TimingResult(timed, quantities=queued, flags=[Flag.NEIGHBOUR] if neighbour else [])
    ((flag, reason),) = trial._exceeds_clock(found, exact, "cpu").items()

    assert flag is (Flag.DISTURBED if why else Flag.TIMER_TAMPER)
    assert "0.5 ms with cold caches were reported" in reason
    assert why in reason


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
        # What was not changed is not noted as changed.
        batches.state()
        batches.begin_sample()
        batches.draw(Method.CLOCK)(1)
        (taken,) = batches.picked
        (x,) = InputChanges((0,)).apply(inputs()[0], batches.changes[0][: taken.changes])
        assert torch.equal(taken.output, x + 1)


def test_calls_that_each_need_inputs_of_their_own_have_no_such_time() -> None:
    calls = TimedCalls(slow, InputSets(inputs(), InputChanges((0,)), overwritten=[0]), "cpu")

    assert back_to_back(Batches(calls, 2)) is None


def test_an_exception_in_a_queue_is_that_of_the_call() -> None:
    def failing(x: Tensor) -> Tensor:
        raise ValueError("not these values")

    with batches_of(failing) as batches, pytest.raises(CallError, match="not these values"):
        back_to_back(batches)
