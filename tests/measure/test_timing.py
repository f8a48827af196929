import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from itertools import count
from pathlib import Path
from subprocess import PIPE, Popen
from typing import Any

import pytest
import torch
from builds import measured_latency
from norms import LAYER_NORM, torch_layer_norm

from kernels_bench_tools.measure.judge import candidate as calls
from kernels_bench_tools.measure.judge.batches import PICKED, Batches
from kernels_bench_tools.measure.judge.candidate import TimedCalls
from kernels_bench_tools.measure.judge.changing_inputs import InputChanges, InputSets
from kernels_bench_tools.measure.operator import Workload
from kernels_bench_tools.measure.timing import caches as rotation
from kernels_bench_tools.measure.timing import cpu
from kernels_bench_tools.measure.timing import measure as measuring
from kernels_bench_tools.measure.timing.caches import input_set_count
from kernels_bench_tools.measure.timing.cpu import CoreWaits, Waiting
from kernels_bench_tools.measure.timing.measure import (
    TimingResult,
    measure,
    measure_calls,
    measure_sustained,
    uneven,
)
from kernels_bench_tools.measure.timing.sampling import SamplingLimits
from kernels_bench_tools.records.record import CacheState, Flag, Timer

QUICK = SamplingLimits(warmup_seconds=0.05, sample_seconds=0.1)


def test_the_cpu_is_timed_by_a_monotonic_clock() -> None:
    took = []  # on a machine with other work, a sleep takes any time

    def sleep(x: torch.Tensor) -> None:
        start = time.perf_counter()
        time.sleep(0.002)
        took.append(1e3 * (time.perf_counter() - start))

    found = measure(sleep, [(torch.zeros(1),)], "cpu")

    assert found.latency.timer is Timer.MONOTONIC
    assert 2.0 <= found.latency.p50 < max(took) + 0.5
    assert found.latency.ci_low is not None
    assert found.kernels == []
    assert found.span_ms is found.quantities is found.clocks is None
    assert Flag.STREAM_ESCAPE not in found.flags


def test_the_sustained_time_is_that_of_a_device_that_has_slowed_down(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steady = SamplingLimits(warmup_seconds=5.0, min_warmup_seconds=1.0, sample_seconds=0.3, precision=0.0)
    monkeypatch.setattr(measuring, "SUSTAINED_LIMITS", steady)
    monkeypatch.setattr(measuring, "CPU_ATTEMPTS", 1)
    seen: list[int] = []

    def throttled(x: torch.Tensor) -> torch.Tensor:
        seen.append(int(x))
        time.sleep(0.001 if len(seen) < 200 else 0.004)
        return x

    sets = InputSets([(torch.tensor(number),) for number in range(3)])
    limits = SamplingLimits(warmup_seconds=0.05, sample_seconds=0.1, max_samples=60)
    batches = Batches(TimedCalls(throttled, sets, "cpu"), 3)
    found = measure_calls(batches, "cpu", limits=limits)
    loaded = measure_sustained(batches, "cpu", found.latency.p50)

    assert loaded is not None
    assert found.latency.p50 < 4.0 <= loaded.p50
    assert loaded.joules is None
    assert found.latency.reps <= 60
    assert seen == [number % 3 for number in range(len(seen))]


def test_calls_rotate_through_the_input_sets() -> None:
    seen: list[int] = []
    sets = [(torch.tensor(number),) for number in range(3)]

    found = measure(lambda x: seen.append(int(x)), sets, "cpu", limits=QUICK)

    assert seen == [number % 3 for number in range(len(seen))]
    assert found.latency.input_sets == 3
    assert found.latency.cache is CacheState.HOT


def test_a_real_operator_is_measured_cold_where_its_inputs_may_exceed_the_caches(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for module in (cpu, rotation):
        monkeypatch.setattr(module, "last_level_cache_bytes", lambda: 32 * 2**20)
    big = Workload(name="big", axes={"batch": 1, "seq_len": 256, "hidden_dim": 1024}, dtype="float32")
    count = input_set_count(2 * 256 * 1024 * 4, "cpu")
    assert count * 2 * 256 * 1024 * 4 >= 4 * 32 * 2**20
    sets = [LAYER_NORM.inputs(big, "cpu", seed) for seed in range(count)]

    found = measure(torch_layer_norm, sets, "cpu", limits=QUICK)

    assert found.latency.cache is CacheState.ROTATED
    assert found.latency.reps >= 6
    assert found.latency.p10 <= found.latency.p50 <= found.latency.p90


def batches_of(
    function: Callable[..., Any],
    sets: list[tuple[torch.Tensor]],
    positions: Any = (),
    *,
    rotate: bool = False,
) -> Batches:
    timed = TimedCalls(function, InputSets(sets, InputChanges(positions, rotate=rotate)), "cpu")
    batches = Batches(timed, len(sets), keep=torch.clone)
    measure_calls(batches, "cpu", limits=QUICK)
    return batches


@pytest.mark.parametrize("rotate", [False, True], ids=["exchanged", "begun elsewhere"])
def test_outputs_of_timed_calls_are_taken_with_their_inputs_which_follow_from_the_changes(
    rotate: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measuring, "CPU_ATTEMPTS", 1)
    sets, again = ([(torch.arange(1e4) + number,) for number in range(3)] for _ in range(2))

    batches = batches_of(torch.clone, sets, (0,), rotate=rotate)

    assert len(batches.picked) == PICKED
    for one in batches.picked:
        inputs = (again[one.which][0].clone(),)
        numbers = batches.changes[one.which][: one.changes]
        assert torch.equal(one.output, InputChanges((0,), rotate=rotate).apply(inputs, numbers)[0])
    assert not torch.equal(sets[0][0], again[0][0])
    assert torch.equal(sets[0][0].sort().values, again[0][0])


def test_outputs_of_every_sample_that_may_count_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    """An implementation could be right only in the samples that other processes disturb."""
    monkeypatch.setattr(measuring, "CPU_PAUSE_SECONDS", 0.0)
    samples = [0]

    class Busy:
        def __init__(self, pid: int) -> None:
            assert pid == os.getpid()

        def read(self, samples_made: int) -> Waiting:
            samples[0] += 1
            return Waiting(1.0 - samples[0] / 4, disturbed=True)

    monkeypatch.setattr(measuring, "CoreWaits", Busy)
    timed = TimedCalls(lambda x: x + samples[0], InputSets([(torch.zeros(1),)]), "cpu")
    batches = Batches(timed, 1, keep=torch.clone)
    measure_calls(batches, "cpu", limits=QUICK)

    seen = [int(one.output) for one in batches.picked]
    assert [seen.count(number) for number in range(measuring.CPU_ATTEMPTS)] == [PICKED] * 3


def test_outputs_are_taken_at_random() -> None:
    sets = [(torch.tensor(number),) for number in range(50)]

    runs = {tuple(one.which for one in batches_of(lambda x: x, sets).picked) for _ in range(6)}

    assert len(runs) > 1


@pytest.mark.parametrize("kind", [torch.Tensor, torch.nn.Parameter])
def test_work_that_is_left_to_a_later_call_is_missing_in_an_output(kind: Any) -> None:
    earlier: list[torch.Tensor] = []

    def later(x: torch.Tensor) -> torch.Tensor:
        for output in earlier:
            output.copy_(x)
        earlier[:] = [torch.zeros(4)]
        return earlier[0] if kind is torch.Tensor else kind(earlier[0], requires_grad=False)

    timed = TimedCalls(later, InputSets([(torch.ones(4),)]), "cpu")
    for number in (1, 2):
        timed.clocked(number)

        assert torch.equal(timed.output(0), torch.zeros(4))


def test_on_a_gpu_calls_that_do_the_work_of_others_are_noticed() -> None:
    assert uneven(measured_latency(0.01, 0.01, 0.3))
    assert not uneven(measured_latency(0.0018, 0.0018, 0.0026))  # a short call that takes one of two times


@pytest.mark.parametrize(
    ("ns", "flags"),
    [
        (lambda turn: 2_000_000, set()),
        (lambda turn: 1_000_000 if turn % 2 else 3_000_000, {Flag.BIMODAL}),
        (lambda turn: 1_000_000 + 50_000 * turn, {Flag.DRIFT}),
    ],
    ids=["steady", "alternating", "slowing"],
)
def test_a_function_gets_the_flags_of_its_samples(
    ns: Callable[[int], int], flags: set[Flag], monkeypatch: pytest.MonkeyPatch
) -> None:
    # With other work on the machine sleeping takes any time, and the last samples would be those of the third attempt.
    now, turn = [0], count()
    monkeypatch.setattr(calls, "perf_counter_ns", lambda: now[0])
    monkeypatch.setattr(measuring, "CPU_ATTEMPTS", 1)

    def advance(x: torch.Tensor) -> None:
        now[0] += ns(next(turn))

    limits = SamplingLimits(warmup_seconds=0, sample_seconds=0.5)
    found = measure(advance, [(torch.zeros(1),)], "cpu", limits=limits)

    assert {Flag.BIMODAL, Flag.DRIFT} & set(found.flags) >= flags
    assert flags or not {Flag.BIMODAL, Flag.DRIFT} & set(found.flags)


# A busy machine: what other processes do to times is measured again, or flagged.
@contextmanager
def busy_processes(seconds: float = 120.0) -> Iterator[None]:
    """Keep every core busy twice, for so many seconds or until the block ends."""
    program = f"import time\nend = time.monotonic() + {seconds}\nprint(flush=True)\nwhile time.monotonic() < end: pass"
    with ExitStack() as stack:
        for _ in range(2 * len(os.sched_getaffinity(0))):
            process = stack.enter_context(Popen([sys.executable, "-c", program], stdout=PIPE))
            stack.callback(process.kill)
            process.stdout.readline()  # Python's start takes longer than a sample if other tests run
        yield


def idle_share() -> float:
    """Return the share of the cores' time that nothing used, over half a second of rest."""

    def times() -> tuple[int, int]:
        found = [int(number) for number in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
        return found[3] + found[4], sum(found)

    idle, total = times()
    time.sleep(0.5)
    now_idle, now_total = times()
    return (now_idle - idle) / max(now_total - total, 1)


def time_a_matmul() -> TimingResult:
    x = torch.randn(768, 768)  # 30 calls of a smaller one fit into a time slice, and their median is right
    return measure(torch.matmul, [(x, x)], "cpu")


def test_a_row_of_a_busy_machine_is_flagged_with_the_reason() -> None:
    start = time.monotonic()
    with busy_processes():
        found = time_a_matmul()

    assert Flag.DISTURBED in found.flags
    assert "of the time for a core" in found.note
    assert time.monotonic() - start < 30


def test_a_disturbed_row_is_measured_again_and_not_flagged_if_the_machine_is_quiet_then() -> None:
    if idle_share() < 0.9:
        pytest.skip("other processes use this machine")
    with busy_processes(seconds=1.0):
        found = time_a_matmul()
    if Flag.DISTURBED in found.flags and idle_share() < 0.9:
        pytest.skip("other processes use this machine")

    assert Flag.DISTURBED not in found.flags


def test_a_thread_that_waits_for_another_one_does_not_wait_for_a_core() -> None:
    def waited() -> bool:
        waits = CoreWaits(os.getpid())
        time.sleep(0.2)
        return waits.read(1).disturbed

    assert not all(waited() for _ in range(10))  # other processes may have the core when it wakes up
