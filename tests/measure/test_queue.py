"""Sealed calls, which another process begins and times by its own clock; on a CPU the process of the calls waits itself."""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from multiprocessing import Pipe
from typing import Any

import pytest
import torch
from builds import measured_latency
from torch import Tensor

from kernels_bench_tools.measure import trial
from kernels_bench_tools.measure.judge.batches import Batches
from kernels_bench_tools.measure.judge.candidate import Method, TimedCalls
from kernels_bench_tools.measure.judge.changing_inputs import InputChanges, InputSets
from kernels_bench_tools.measure.judge.remote import RemoteCandidate, serve
from kernels_bench_tools.measure.operator import CallError
from kernels_bench_tools.measure.timing import queue, seam_kernel
from kernels_bench_tools.measure.timing.measure import TimingResult, sealed
from kernels_bench_tools.measure.timing.queue import HostReplay, HostSeal, Replay
from kernels_bench_tools.measure.timing.seam import NoQueueError
from kernels_bench_tools.records.record import Flag, Kernel, Quantities, Timing

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="needs memory without a file")
SECONDS = 0.004
EXCHANGED = InputChanges((0,))
Make = Callable[[int], object]
Start = Callable[[HostSeal, Make], None]


def inputs() -> list[tuple[Tensor]]:
    return [(torch.arange(1000.0) + number,) for number in range(2)]


def slow(x: Tensor) -> Tensor:
    time.sleep(SECONDS)
    return x + 1


@contextmanager
def batches_of(
    function: Callable[..., Any],
    start: Start = HostSeal.start,
    overwritten: tuple[int, ...] = (),
    changes: InputChanges = EXCHANGED,
) -> Iterator[Batches]:
    """Yield batches of a function in another process, in which queues start like this."""

    def make() -> TimedCalls:
        HostSeal.start = start  # of that process only
        sets = InputSets(inputs(), changes, overwritten=overwritten)
        return TimedCalls(function, sets, "cpu")

    here, there = Pipe()
    child = os.fork()
    if not child:
        with suppress(BaseException):
            here.close()
            torch.set_num_threads(1)  # the copy has no other threads, and would wait for them
            serve(make(), there)
        os._exit(0)
    there.close()
    try:
        remote = RemoteCandidate(here)
        remote.pid = child
        own = InputSets(inputs(), changes, overwritten=overwritten)
        yield Batches(remote, 2, replay=HostReplay(own, [torch.ones(1000)], child))
    finally:
        here.close()
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)


def queued(batches: Batches, count: int, take: int) -> float:
    # On a busy machine a process may not run in time.
    return next(filter(None, (batches.queue(count, 5.0, take=take) for _ in range(20))))


class Exact(Batches):
    """Batches whose queues take exactly so long: a busy machine changes nothing."""

    call_ms, more_ms, asked = 4.0, 0.0, 0

    def queue(self, count: int, most_seconds: float, *, take: int = 0) -> float:
        self.asked += 1
        self.queuing_ms.append(0.02)
        return 1.0 + count * (0.5 + self.call_ms) + self.more_ms * (self.asked % 3)


def without_calls(count: int) -> float:
    return 1.0 + count * 0.5


@pytest.fixture
def exact() -> Exact:
    timed = TimedCalls(slow, InputSets(inputs(), InputChanges((0,))), "cpu")
    return Exact(timed, 2, replay=Replay([], [], []))


@pytest.mark.parametrize(
    "changes", [EXCHANGED, InputChanges((0,), rotate=True)], ids=["exchanged", "rotated"]
)
@pytest.mark.parametrize("overwritten", [(), (0,)], ids=["repeatable", "in place"])
def test_each_sealed_call_has_other_inputs_which_the_judge_knows(
    overwritten: tuple[int, ...], changes: InputChanges
) -> None:
    function = Tensor.add_ if overwritten else torch.add
    with batches_of(lambda x: function(x, 1), overwritten=overwritten, changes=changes) as batches:
        for _ in range(3):
            queued(batches, 5, take=1)

    assert len(batches.picked) == 3
    assert len({one.call.key for one in batches.picked}) == 3
    for taken in batches.picked:
        assert taken.whole
        (x,) = changes.apply(inputs()[taken.which], batches.changes[taken.which][: taken.changes])
        assert torch.equal(taken.output, x + 1)


def test_the_time_of_a_queue_is_that_of_its_calls() -> None:
    with batches_of(slow) as batches:
        assert queued(batches, 2, take=0) >= 2e3 * SECONDS


def test_an_output_that_was_not_whole_when_its_call_had_returned_is_seen() -> None:
    waiting = []

    def late(x: Tensor) -> Tensor:
        if sys._getframe(1).f_code.co_name == "again":  # the judge asks for an output
            return x + 1
        for output, last in waiting:
            output[-1] = last
        output = x + 1
        waiting[:] = [(output, output[-1].clone())]
        output[-1] = 0
        return output

    with batches_of(late) as batches:
        queued(batches, 4, take=1)
        (taken,) = batches.picked

    assert not taken.whole


def test_what_a_call_returned_decides_which_inputs_the_next_one_gets() -> None:
    right, wrong = HostSeal(), HostSeal()
    keys: list[list[int]] = []
    for number, own in enumerate((right, wrong)):
        found: list[int] = []
        own.begin()
        own._words[seam_kernel.SEED], own._words[seam_kernel.RELEASED] = 7, 1
        own.first(7, found.append)
        own.following(torch.ones(3) + number, found.append)
        keys.append(found)

    assert [one[0] for one in keys] == [7, 7]
    assert keys[0][1] != keys[1][1]


def test_the_same_queue_without_calls_is_no_part_of_their_time(exact: Exact) -> None:
    found = sealed(exact, 1, without_calls)

    assert (found.p50, found.ci_low, found.ci_high) == pytest.approx((4.0, 4.0, 4.0))


@pytest.mark.parametrize(
    ("reported", "kernels", "late"),
    [(3.81, 1, False), (3.78, 1, True), (3.794, 15, False), (3.78, 1000, True)],
    ids=["a twentieth less", "more", "gaps between kernels", "more kernels than were launched"],
)
def test_a_reported_time_below_that_of_sealed_calls_is_timed_again_and_then_too_short(
    monkeypatch: pytest.MonkeyPatch, exact: Exact, reported: float, kernels: int, late: bool
) -> None:
    monkeypatch.setattr(trial, "cpu_pressure", lambda: 0.0)  # others may use this machine
    monkeypatch.setattr(trial, "GAP_MS", 0.0007)
    asked: list[int] = []

    def again(count: int) -> Timing:
        asked.append(count)
        return sealed(exact, count, without_calls)

    timed = measured_latency(*[reported] * 6)
    quantities = Quantities(sealed=sealed(exact, 1, without_calls))
    kernel = Kernel(name="k", count=kernels, ms=reported)
    found = trial._exceeds_clock(TimingResult(timed, [kernel], quantities=quantities), exact, again)

    assert list(found) == [Flag.TIMER_TAMPER] * late
    assert len(asked) == trial.SEALED_AGAIN * late


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
    monkeypatch.setattr(trial, "cpu_pressure", lambda: 0.0)
    exact.more_ms = more_ms
    timed = measured_latency(*[0.5] * 6)
    quantities = Quantities(sealed=sealed(exact, 1, without_calls))
    found = TimingResult(timed, quantities=quantities, flags=[Flag.NEIGHBOUR] if neighbour else [])
    ((flag, reason),) = trial._exceeds_clock(
        found, exact, lambda kernels: sealed(exact, kernels, without_calls)
    ).items()

    assert flag is (Flag.DISTURBED if why else Flag.TIMER_TAMPER)
    assert "0.5 ms were reported" in reason
    assert why in reason


def never(own: HostSeal, make: Make) -> None:
    raise NoQueueError("another vendor's driver")


@pytest.mark.parametrize(
    "start",
    [never, lambda own, make: None, lambda own, make: time.sleep(1.2 * queue.MOST_QUEUING_SECONDS)],
    ids=["cannot wait", "did not wait", "was not complete in time"],
)
def test_calls_that_do_not_wait_for_the_other_process_have_no_such_time(start: Start) -> None:
    with batches_of(slow, start) as batches:
        assert sealed(batches, 1, without_calls) is None


@pytest.mark.parametrize("flag", [Flag.UNSEALED, Flag.DISTURBED], ids=["GPU", "CPU"])
def test_a_call_without_a_sealed_time_has_no_rank(exact: Exact, flag: Flag) -> None:
    found = TimingResult(measured_latency(*[0.5] * 6), quantities=Quantities())
    if flag is Flag.DISTURBED:  # a busy machine
        exact.replay = HostReplay(InputSets(inputs()), [], 0)

    assert list(trial._exceeds_clock(found, exact, lambda kernels: None)) == [flag]


@pytest.mark.parametrize(
    ("reported", "late"), [(3.5, False), (3.3, True)], ids=["a seventh less", "work is hidden"]
)
def test_a_time_on_a_cpu_may_be_a_seventh_less_than_that_of_sealed_calls(
    monkeypatch: pytest.MonkeyPatch, exact: Exact, reported: float, late: bool
) -> None:
    monkeypatch.setattr(trial, "cpu_pressure", lambda: 0.0)
    exact.replay = HostReplay(InputSets(inputs()), [], 0)
    quantities = Quantities(sealed=sealed(exact, 0, without_calls))
    timed = TimingResult(measured_latency(*[reported] * 6), quantities=quantities)
    found = trial._exceeds_clock(timed, exact, lambda kernels: sealed(exact, 0, without_calls))

    assert list(found) == [Flag.TIMER_TAMPER] * late


def test_a_set_is_known_after_a_queue_that_could_not_be_timed() -> None:
    with batches_of(slow, never) as batches:
        assert batches.queue(2, 5.0) is None
        # What was not changed is not noted as changed.
        batches.state()
        batches.begin_sample()
        batches.draw(Method.CLOCK)(1)
        (taken,) = batches.picked
        (x,) = InputChanges((0,)).apply(inputs()[0], batches.changes[0][: taken.changes])
        assert torch.equal(taken.output, x + 1)


def test_an_exception_in_a_queue_is_that_of_the_call() -> None:
    def failing(x: Tensor) -> Tensor:
        raise ValueError("not these values")

    with batches_of(failing) as batches, pytest.raises(CallError, match="not these values"):
        sealed(batches, 1, without_calls)
