"""Time an implementation: device time of one call with cold caches, and the other quantities."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from statistics import median
from typing import Any, NamedTuple

from kernels_bench_tools.measure.device.clocks import ClockSampler, clock_flags, mean_watts, summarize_clocks
from kernels_bench_tools.measure.judge.batches import Batches
from kernels_bench_tools.measure.judge.candidate import Method, TimedCalls
from kernels_bench_tools.measure.judge.changing_inputs import InputSets
from kernels_bench_tools.measure.operator import Inputs
from kernels_bench_tools.measure.timing.cpu import CoreWaits, Waiting, away_from
from kernels_bench_tools.measure.timing.cuda import QUEUE
from kernels_bench_tools.measure.timing.cupti import MarkersMissingError, kernel_table, retry
from kernels_bench_tools.measure.timing.queue import Replay
from kernels_bench_tools.measure.timing.sampling import (
    MIN_SAMPLES,
    Call,
    Draw,
    SamplingLimits,
    affordable,
    drifted,
    sample,
    sample_flags,
    summarize,
    timing,
    warm_up,
)
from kernels_bench_tools.measure.timing.seam_kernel import MOST_CALLS
from kernels_bench_tools.records.record import (
    TICK_MS,
    CacheState,
    Clocks,
    Flag,
    Kernel,
    Latency,
    Quantities,
    Timer,
    Timing,
)

# Most medians converge within 0.2 s.
CUDA_LIMITS = SamplingLimits(warmup_seconds=0.3, min_warmup_seconds=0.02, sample_seconds=2.0, tick_ms=TICK_MS)
# The CPU workloads must end within seconds, and their noise does not converge further.
CPU_LIMITS = SamplingLimits(warmup_seconds=0.2, sample_seconds=0.5, precision=0.01)
SUSTAINED_LIMITS = SamplingLimits(
    warmup_seconds=10.0, min_warmup_seconds=2.0, sample_seconds=2.0, precision=0.0
)
"""Clocks of a GPU at its power limit settle within a second, and its energy counter advances every 20 to 100 ms."""
SUSTAINED_MS = 50.0
"""Of calls without a pause, on a GPU, after which inputs change and outputs are looked at."""
CPU_ATTEMPTS, CPU_PAUSE_SECONDS = 3, 0.5
"""How often a call is sampled while other processes disturb it; with the pauses, two seconds more."""
EVENTS_SECONDS = 0.05
QUANTITY_SECONDS = 0.1
"""Time for each other quantity; at least six calls are made in any case."""
MOST_ALONE = 15
"""Calls of which each is alone: between them are three messages and a change of the inputs."""
WARM_CALLS = 3
"""Before hot calls are timed."""
QUEUED_MS, HOST_QUEUED_MS, QUEUED_SECONDS = 3.0, 10.0, 5.0
"""How long a queue takes, on a GPU and for the host to queue its calls, and on a CPU; at most how long one of two calls takes."""
QUEUES, LONG_MS = 6, 50.0
"""Queues with calls and as many without; two if one of two calls takes longer than this."""
MIN_MS = 1e-6
QUEUE_TRIES = 3
"""A process that needs the core may keep a queue from being complete in time, and so may what the driver loads for the first."""
TAKEN = 1
"""Calls of each queue whose outputs are compared: six of a row in each process. An implementation that leaves out a fifth of its
calls passes with one row of 50."""
COOL_DOWN_SECONDS = 1.0
MAX_UNEVEN = 1.25
"""Mean of a GPU's samples, relative to the median. If it is larger, a few calls may have
done the work of all: outputs are looked at after a batch, and its changes are known before. The mean of 4,788 committed
records of H200s is at most 1.12 medians."""
EVENT_PAIR_MS = 0.006
"""An event pair adds about 4 us to the kernel's time."""
EVENT_SHARE = 0.05
SLOWED_SHARE = 0.01
"""An event pair always takes longer than its kernels; if it is faster by this share, the profiler slowed them down."""


SealedTime = Callable[[int], Timing | None]
"""Returns the time of a sealed call that is said to launch so many kernels."""


@dataclass(frozen=True)
class TimingResult:
    latency: Latency
    kernels: list[Kernel] = field(default_factory=list)
    span_ms: float | None = None
    events_ms: float | None = None
    """The call's median by CUDA events, for comparison; None on other devices."""
    note: str = ""
    quantities: Quantities | None = None
    """The other times of a CUDA call; on the CPU only the sustained one, if asked for."""
    clocks: Clocks | None = None
    flags: list[Flag] = field(default_factory=list)


def measure(
    function: Callable[..., Any],
    input_sets: Sequence[Inputs],
    device: str,
    limits: SamplingLimits | None = None,
) -> TimingResult:
    """Time a function of this process, whose inputs do not change between calls; see :func:`measure_calls`."""
    calls = TimedCalls(function, InputSets(input_sets), device)
    return measure_calls(Batches(calls, len(input_sets)), device, limits=limits)


def measure_calls(
    batches: Batches,
    device: str,
    *,
    clocks: ClockSampler | None = None,
    limits: SamplingLimits | None = None,
    processes: int = 1,
    seal: SealedTime | None = None,
) -> TimingResult:
    """Time calls on a CUDA device by their kernels, on other devices by the host's clock.

    The function is already compiled. Without a sampler of the clocks only the in-band clock is known. ``processes``
    of ours use the device. ``seal`` times a sealed call. Raises ``NoKernelError`` if a call launched nothing on the CUDA device.
    """
    if device.startswith("cuda"):
        return _measure_cuda(batches, limits or CUDA_LIMITS, clocks or ClockSampler(""), processes, seal)
    return _measure_cpu(batches, limits or CPU_LIMITS, seal)


def _measure_cuda(
    batches: Batches, limits: SamplingLimits, clocks: ClockSampler, processes: int, seal: SealedTime | None
) -> TimingResult:
    """Measure all quantities, the headline first."""
    by_events, by_kernels = batches.draw(Method.EVENTS), batches.draw(Method.KERNELS)

    def summarized(calls: Sequence[Call], timer: Timer, warmup: int, reason: str) -> Latency:
        return summarize(
            calls,
            timer=timer,
            cache=CacheState.READ_FLUSH,
            input_sets=len(batches.changes),
            warmup=warmup,
            stop_reason=reason,
            tick_ms=limits.tick_ms,
        )

    def cold() -> tuple[list[Call], Latency, list[str]]:
        warm = warm_up(by_events, limits)
        try:
            # The first session initializes CUPTI, which is not part of the sampling time.
            retry(lambda: by_kernels(1))
            batches.begin_sample()
            calls, reason = sample(lambda n: retry(lambda: by_kernels(n)), limits, warm.seconds_per_call)
            return calls, summarized(calls, Timer.CUPTI, warm.calls, reason), []
        except MarkersMissingError as error:
            batches.begin_sample()
            calls, reason = sample(by_events, limits, warm.seconds_per_call)
            latency = summarized(calls, Timer.EVENTS, warm.calls, reason)
            return calls, latency, [f"timed by events: {error}"]

    start = time.monotonic()
    state = batches.state()
    calls, latency, notes = cold()
    if drifted(latency, limits.tick_ms):
        # After a call that draws much power, when the GPU has cooled down.
        time.sleep(COOL_DOWN_SECONDS if state.idle_seconds else 0.0)
        calls, latency, notes = cold()
    batches.end_sample()
    end = time.monotonic()
    table = kernel_table(calls)
    call_seconds = (latency.p50 + state.submit_ms) / 1e3 + state.idle_seconds
    events_ms = median(call.ms for call in by_events(affordable(EVENTS_SECONDS, call_seconds)))
    flags = []
    # Some kernels run 2 to 6 % slower in a profiler session on an H200 (Inductor's and Liger's for layer_norm), others do not
    # (torch's own). Events outside of one, Nsight Compute, and calls back to back between two events agree within 1 %.
    slowed = events_ms < (1 - SLOWED_SHARE) * latency.p50
    if slowed:
        flags.append(Flag.PROFILER_SLOWED)
        notes = [f"with the profiler {latency.p50:.5g} ms"]
        batches.begin_sample()
        by_event, reason = sample(by_events, limits, call_seconds)
        latency = summarized(by_event, Timer.EVENTS, latency.warmup + latency.reps, reason)
        batches.end_sample()
    count = sum(kernel.count for kernel in table)
    quantities = measure_quantities(batches, latency.p50, count, seal, by_events=slowed)
    spans = [call.span_ms for call in calls if call.span_ms is not None]
    span_ms = median(spans) if spans and not slowed else None
    if batches.escaped:
        names = ", ".join(name[:60] for name, _ in Counter(batches.escaped).most_common(3))
        notes.append(f"{len(batches.escaped)} activities outside of their call: {names}")
    if uneven(latency):
        notes.append(f"some calls do the work of others: the mean is more than {MAX_UNEVEN} medians")
    if batches.escaped or uneven(latency):
        flags.append(Flag.STREAM_ESCAPE)
    if quantities.host_submit is not None and quantities.host_submit.p50 > latency.p50:
        flags.append(Flag.HOST_BOUND)
    # By more than an event pair's overhead.
    if span_ms is not None and events_ms - span_ms > max(EVENT_PAIR_MS, EVENT_SHARE * span_ms):
        flags.append(Flag.TIMER_DISAGREEMENT)
    found = summarize_clocks(clocks.samples(start, end), batches.clock_mhz, processes)
    flags += [*sample_flags(latency, limits.tick_ms), *clock_flags(found)]
    return TimingResult(latency, table, span_ms, events_ms, "; ".join(notes), quantities, found, flags)


def uneven(latency: Latency) -> bool:
    """Return whether a GPU's samples differ so much that some calls may have done the work of others."""
    return (latency.mean or 0.0) > MAX_UNEVEN * latency.p50


class _Attempt(NamedTuple):
    """One sample on a CPU."""

    waiting: Waiting
    warmup: int
    calls: list[Call]
    reason: str


def _measure_cpu(batches: Batches, limits: SamplingLimits, seal: SealedTime | None) -> TimingResult:
    draw = batches.draw(Method.CLOCK)
    attempts: list[_Attempt] = []
    while not attempts or (attempts[-1].waiting.disturbed and len(attempts) < CPU_ATTEMPTS):
        if attempts:
            time.sleep(CPU_PAUSE_SECONDS)
        with away_from(batches.calls.pid):
            warm = warm_up(draw, limits)
            batches.begin_sample(keep=bool(attempts))
            waits = CoreWaits(batches.calls.pid)
            calls, reason = sample(draw, limits, warm.seconds_per_call)
            batches.end_sample()
            waiting = waits.read(len(calls))
        attempts.append(_Attempt(waiting, warm.calls, calls, reason))
    waiting, warm_calls, calls, reason = min(
        attempts, key=lambda one: (one.waiting.disturbed, one.waiting.share)
    )
    latency = summarize(
        calls,
        timer=Timer.MONOTONIC,
        cache=batches.state().cache,
        input_sets=len(batches.changes),
        warmup=warm_calls,
        stop_reason=reason,
    )
    flags = [*([Flag.DISTURBED] if waiting.disturbed else []), *sample_flags(latency)]
    note, quantities = str(waiting) if waiting.disturbed else "", Quantities(sealed=seal(0)) if seal else None
    return TimingResult(latency, note=note, flags=flags, quantities=quantities)


def measure_quantities(
    batches: Batches,
    device_ms: float,
    kernels: int,
    seal: SealedTime | None = None,
    *,
    by_events: bool = False,
) -> Quantities:
    """Measure the other quantities of a warm CUDA function; ``device_ms`` and ``kernels`` are per call."""
    state = batches.state(hot=True)
    count = affordable(QUANTITY_SECONDS, (device_ms + state.submit_ms) / 1e3)
    fitting = max(MIN_SAMPLES, min(count, state.at_once - WARM_CALLS))
    method = Method.HOT_EVENTS if by_events else Method.HOT_KERNELS
    hot = None
    try:
        if state.repeatable:
            hot = timing([call.ms for call in batches.hot(method, fitting + WARM_CALLS)[WARM_CALLS:]])
    except MarkersMissingError:
        pass  # unlike the headline, it is not measured again by events
    return Quantities(
        device_hot=hot,
        host_submit=timing([call.ms for call in batches.hot(Method.HOST_SUBMIT, 1, device_ms, kernels)]),
        e2e=timing([call.ms for call in batches.clock(min(count, MOST_ALONE))]),
        sealed=seal(kernels) if seal else None,
    )


def measure_sustained(
    batches: Batches, device: str, cold_ms: float, clocks: ClockSampler | None = None, processes: int = 1
) -> Timing | None:
    """Call without a pause until the time is steady, and then for two seconds: their median, and the energy of a call.

    ``cold_ms`` is about the time of one. None on a GPU if each call needs inputs of its own.
    """
    draw: Draw = batches.draw(Method.CLOCK)
    count, on_gpu = 1, device.startswith("cuda")
    if on_gpu:
        state = batches.state()
        if not state.repeatable:
            return None
        count = max(1, min(state.at_once, int(SUSTAINED_MS / max(cold_ms, state.submit_ms))))
        draw = partial(batches.sustained, count)
    with nullcontext() if on_gpu else away_from(batches.calls.pid):
        warm = warm_up(draw, SUSTAINED_LIMITS)
        batches.begin_sample(keep=True)
        start = time.monotonic()
        calls, _ = sample(draw, SUSTAINED_LIMITS, warm.seconds_per_call)
        end = time.monotonic()
        batches.end_sample()
    found = timing([call.ms for call in calls])
    samples = clocks.samples(start, end) if clocks else []
    alone = Flag.NEIGHBOUR not in clock_flags(summarize_clocks(samples, processes=processes))
    if samples and alone and (watts := mean_watts(samples)):
        found.joules = watts * (end - start) / (len(calls) * count)
    if on_gpu:
        time.sleep(COOL_DOWN_SECONDS)  # else the next workload begins on a hot one
    return found


def sealed(batches: Batches, kernels: int, without_calls: Callable[[int], float | None]) -> Timing | None:
    """Time sealed calls by this process's clock: see :mod:`.queue`; ``kernels`` is how many a call is said to launch.

    ``without_calls`` returns the milliseconds of a queue of this length without them. None if calls cannot be queued, as they
    wait for the device.
    """
    state, on_gpu = batches.state(), isinstance(batches.replay, Replay)
    room = min(state.at_once, QUEUE // (max(kernels, 1) + 1)) if on_gpu else MOST_CALLS
    most = max(1, min(MOST_CALLS, room))
    few = min(2 if on_gpu else 1, most)
    first: list[float] = []
    for _ in range(QUEUE_TRIES):
        first += filter(None, [batches.queue(few, QUEUED_SECONDS)])
        if first and (on_gpu or first[-1] >= LONG_MS):
            break  # on a CPU, one may have been disturbed
    if not first or without_calls(few) is None:
        return None
    two = min(first)
    wanted = QUEUED_MS if on_gpu else HOST_QUEUED_MS
    count = max(few, min(most, int(wanted / max(two / few, state.submit_ms))))
    times, others, queues = list[float](), list[float](), QUEUES if two < LONG_MS else 2
    for _ in range(QUEUE_TRIES * queues):
        time.sleep(state.idle_seconds)
        ms = batches.queue(count, 1 + two * count / 1e3, take=TAKEN)
        other = without_calls(count)
        if ms is not None and other is not None:
            times.append(ms)
            others.append(other)
        if len(times) == queues:
            break
    else:
        return None
    return timing([max(ms - median(others), MIN_MS) / count for ms in times])
