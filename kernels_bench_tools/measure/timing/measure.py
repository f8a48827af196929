"""Time an implementation: device time of one call with cold caches, and the other quantities."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import cache, partial
from statistics import median
from typing import Any, NamedTuple

import torch

from kernels_bench_tools.measure.device.clocks import ClockSampler, clock_flags, mean_watts, summarize_clocks
from kernels_bench_tools.measure.judge.batches import Batches
from kernels_bench_tools.measure.judge.candidate import Method, TimedCalls
from kernels_bench_tools.measure.judge.changing_inputs import InputSets
from kernels_bench_tools.measure.operator import Inputs
from kernels_bench_tools.measure.timing.cpu import CoreWaits, away_from
from kernels_bench_tools.measure.timing.cuda import QUEUE
from kernels_bench_tools.measure.timing.cupti import MarkersMissingError, kernel_table, retry
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
MOST_LATE, LATE_MS = 1.25, 0.03
"""A call on a CPU may take so much longer by the judge's clock, from the request to the answer, than its process reports and the
harness needs for a function that returns what it has: relative to both, and in milliseconds. More is work that was not reported."""
EVENTS_SECONDS = 0.05
QUANTITY_SECONDS = 0.1
"""Time for each other quantity; at least six calls are made in any case."""
MOST_ALONE = 15
"""Calls of which each is alone: between them are three messages and a change of the inputs."""
WARM_CALLS = 3
"""Before hot calls are timed."""
QUEUED_MS, QUEUED_SECONDS = 3.0, 5.0
"""How long the calls of a queue take, on the device and for the host to queue them, and at most how long two take. On an H200,
queues of 2 and of 8 ms gave the same times, with intervals as wide."""
QUEUES, LONG_MS = 6, 50.0
"""Pairs of a long queue and of one with a quarter of its calls; two if two calls take longer than this."""
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
    harness_ms: Callable[[], float | None] | None = None,
) -> TimingResult:
    """Time calls on a CUDA device by their kernels, on other devices by the host's clock.

    The function is already compiled. Without a sampler of the clocks only the in-band clock is known. ``processes``
    of ours use the device. ``harness_ms`` measures what a call of another process takes without the function. Raises ``NoKernelError`` if a call launched nothing on the CUDA device.
    """
    if device.startswith("cuda"):
        return _measure_cuda(batches, limits or CUDA_LIMITS, clocks or ClockSampler(""), processes)
    return _measure_cpu(batches, limits or CPU_LIMITS, harness_ms)


def _measure_cuda(
    batches: Batches, limits: SamplingLimits, clocks: ClockSampler, processes: int
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
    quantities = measure_quantities(
        batches, latency.p50, sum(kernel.count for kernel in table), by_events=slowed
    )
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
    """One sample on a CPU, and why it does not count."""

    flag: Flag | None
    note: str
    share: float
    """Of the time that was waited for a core."""
    warmup: int
    calls: list[Call]
    reason: str


def _measure_cpu(
    batches: Batches, limits: SamplingLimits, harness_ms: Callable[[], float | None] | None
) -> TimingResult:
    draw = batches.draw(Method.CLOCK)
    attempts: list[_Attempt] = []
    while not attempts or (attempts[-1].flag and len(attempts) < CPU_ATTEMPTS):
        if attempts:
            time.sleep(CPU_PAUSE_SECONDS)
        with away_from(batches.calls.pid):
            warm = warm_up(draw, limits)
            batches.begin_sample(keep=bool(attempts))
            waits = CoreWaits(batches.calls.pid)
            calls, reason = sample(draw, limits, warm.seconds_per_call)
            batches.end_sample()
            waiting, flag, note = waits.read(len(calls)), None, ""
            harness = harness_ms and harness_ms()
        # A process that hides work to lower its median hides it in half of its calls.
        unknown = harness_ms and (harness is None or 2 * len(batches.overheads) < len(calls))
        if waiting.disturbed or unknown:
            flag, note = Flag.DISTURBED, str(waiting)
        elif harness and (note := _hidden(median(call.ms for call in calls), batches.overheads, harness)):
            flag = Flag.TIMER_TAMPER
        attempts.append(_Attempt(flag, note, waiting.share, warm.calls, calls, reason))
    flag, note, _, warm_calls, calls, reason = min(
        attempts, key=lambda one: (one.flag is not None, one.share)
    )
    latency = summarize(
        calls,
        timer=Timer.MONOTONIC,
        cache=batches.state().cache,
        input_sets=len(batches.changes),
        warmup=warm_calls,
        stop_reason=reason,
    )
    return TimingResult(latency, note=note, flags=[*([flag] if flag else []), *sample_flags(latency)])


def _hidden(reported_ms: float, overheads: Sequence[float], harness_ms: float) -> str:
    """Return why calls have taken longer than their process reports; empty if they have not."""
    taken = reported_ms + median(overheads)
    if taken <= MOST_LATE * (reported_ms + harness_ms) + LATE_MS:
        return ""
    took = f"calls took {taken:.3g} ms by the clock of another process"
    return f"{took}, and {reported_ms:.3g} ms were reported and {harness_ms:.3g} ms are the harness's"


def measure_quantities(
    batches: Batches, device_ms: float, kernels: int, *, by_events: bool = False
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
        back_to_back=back_to_back(batches, kernels),
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


@cache
def launch_gap_ms(device: str) -> float:
    """Return the time between two kernels of a queue that is neither's, from those that write one number."""
    one = torch.zeros(1, device=device)
    batches = Batches(TimedCalls(one.fill_, InputSets([(1.0,)]), device), 1)
    if (found := back_to_back(batches)) is None:
        return 0.0
    return max(
        0.0, found.p50 - median(call.ms for call in retry(lambda: batches.hot(Method.HOT_KERNELS, 30)))
    )


def back_to_back(batches: Batches, kernels: int = 1) -> Timing | None:
    """Time calls of a queue by this process's clock: see :mod:`.queue`; ``kernels`` is how many a call is said to launch.

    None if calls cannot be queued: each needs inputs of its own, or waits for the device.
    """
    state, most = batches.state(hot=True), QUEUE // max(kernels, 1)
    if not state.repeatable or most < 2:
        return None
    # In the first one the driver loads what a queue needs.
    if batches.queue(1, QUEUED_SECONDS) is None or not (two := batches.queue(2, QUEUED_SECONDS)):
        return None
    count = max(2, min(most, int(QUEUED_MS / max(two / 2, state.submit_ms))))
    pairs = QUEUES if two < LONG_MS else 2
    while (found := _queues(batches, count, pairs, 1 + two * count / 1e3)) is None and count > 2:
        count = max(2, count // 4)  # they launch more than is said
    return timing(found) if found else None


def _queues(batches: Batches, count: int, pairs: int, most_seconds: float) -> list[float] | None:
    """Return the milliseconds of a call from pairs of queues, which differ by calls only; None if one did not work.

    What begins and ends them is in both, and so is the change of their inputs. Of the short ones the fastest counts.
    """
    times: dict[int, list[float]] = {}
    few = max(1, count // 4)
    for number in range(pairs):
        for calls in (count, few):
            time.sleep(batches.state().idle_seconds)
            ms = batches.queue(calls, most_seconds, take=calls == count and not number)
            if ms is None:
                return None
            times.setdefault(calls, []).append(ms)
    return [max(ms - min(times[few]), 0.0) / (count - few) for ms in times[count]]
