"""Kernel durations recorded by CUPTI, through torch's profiler. Marker kernels around each call separate the calls."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from operator import itemgetter
from statistics import median
from typing import Any, TypeVar

import torch
from torch.autograd import DeviceType

# torch.profiler's own `profile` imports torch._inductor at its first start, which takes a second in each process.
from torch.autograd.profiler import profile, record_function

from kernels_bench_tools.measure.timing.sampling import Call
from kernels_bench_tools.records.record import Kernel

T = TypeVar("T")
_synchronize = torch.cuda.synchronize  # bound before an implementation can replace it

MARKER = "spin_kernel"
"""Part of the name of the kernel that ``torch.cuda._sleep`` launches."""
# Activities of the device that compute and move nothing, by type, and by name for releases of torch without types.
_NO_WORK = {"cuda_sync", "gpu_user_annotation", "cuda_profiler_range", "overhead"}
SLACK_NS = 1_000
"""Largest apparent overlap of activities on one stream, from the clock's resolution."""
_RANGE = "range: "
_LAUNCH = re.compile(r"cu(da)?[A-Z]")
"""Functions of CUDA's runtime and driver."""
_NO_WORK_NAMES = {"Context Sync", "Stream Sync", "Event Sync", "Stream Wait Event"}


class MarkersMissingError(Exception):
    """The profiler did not return both markers of every call, so kernels cannot be assigned to calls."""


class NoKernelError(Exception):
    """A call launched nothing on the device."""


@dataclass(frozen=True)
class Activity:
    """A kernel, copy or fill on the device."""

    name: str
    start_ns: int
    duration_ns: int

    @property
    def end_ns(self) -> int:
        return self.start_ns + self.duration_ns


@dataclass(frozen=True)
class Batch:
    calls: list[Call]
    escaped: tuple[str, ...] = ()
    """Names of activities outside of the timed stream's order: see :func:`split_batch`."""
    marker_ns: tuple[tuple[int, int], ...] = field(default=(), repr=False)
    """Durations of the opening and the closing marker of each call."""


def record_activities(batch: Callable[[], object]) -> list[Activity]:
    """Run ``batch`` in one profiler session and return the device's activities, by start time."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # otherwise each session prints two lines
    _synchronize()  # excludes earlier work
    with profile(use_cpu=False, use_device="cuda", use_kineto=True) as session:
        batch()
        _synchronize()
    # Raw events: torch's FunctionEvents, which acc_events=True builds at once, take 50 us each.
    events = _events(session)
    activities = [
        Activity(event.name(), event.start_ns(), event.duration_ns())
        for event in events
        if event.device_type() == DeviceType.CUDA and _is_work(event)
    ]
    return sorted(activities, key=lambda activity: activity.start_ns)


def named_range(name: str) -> AbstractContextManager[None]:
    """Return a context whose launches :func:`device_ms_by_range` counts under this name."""
    return record_function(_RANGE + name)


def device_ms_by_range(call: Callable[[], object]) -> dict[str, float]:
    """Return the device's milliseconds of a call by the :func:`named_range` that launched the work; others under ""."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")
    _synchronize()
    with profile(use_device="cuda", use_kineto=True) as session:
        call()
        _synchronize()
    work, launches, ranges = [], {}, []
    for event in _events(session):
        if event.device_type() == DeviceType.CUDA:
            if _is_work(event) and not event.name().startswith(_RANGE):
                work.append(event)
        elif event.name().startswith(_RANGE):
            ranges.append((event.start_ns(), event.end_ns(), event.name().removeprefix(_RANGE)))
        elif _LAUNCH.match(event.name()):
            launches[event.correlation_id()] = event.start_ns()
    found = dict.fromkeys(["", *(name for *_, name in ranges)], 0.0)
    ranges.sort()
    for event in work:
        launched = launches.get(event.correlation_id(), 0)
        before = bisect_right(ranges, launched, key=itemgetter(0)) - 1
        inside = before >= 0 and launched <= ranges[before][1]
        found[ranges[before][2] if inside else ""] += event.duration_ns() / 1e6
    return found


def retry(call: Callable[[], T], attempts: int = 2) -> T:
    """Return the result of ``call``; try again if the profiler lost a buffer."""
    for _ in range(attempts - 1):
        try:
            return call()
        except MarkersMissingError:
            continue
    return call()


def _events(session: profile) -> Sequence[Any]:
    assert session.kineto_results is not None
    return session.kineto_results.events()


def _is_work(event: Any) -> bool:
    kind = getattr(event, "activity_type", None)
    return event.name() not in _NO_WORK_NAMES and (kind is None or kind() not in _NO_WORK)


def split_batch(activities: Sequence[Activity], calls: int, own: Mapping[str, int] | None = None) -> Batch:
    """Return the activities of each call, and those that escaped. ``activities`` are in order of start time.

    An activity escapes from the timed stream if it starts before the opening marker has ended, runs after the
    closing marker has started, or belongs to no call and is not the harness's own: ``own`` has the largest number
    of each name. Raises ``MarkersMissingError`` if markers are missing, ``NoKernelError`` if a call has no activity.
    """
    inside: list[list[Activity]] = []
    markers: list[Activity] = []
    outside: Counter[str] = Counter()
    for activity in activities:
        if MARKER in activity.name:
            if len(markers) % 2 == 0:
                inside.append([])
            markers.append(activity)
        elif len(markers) % 2:
            inside[-1].append(activity)
        else:
            outside[activity.name] += 1
    if len(markers) != 2 * calls:
        raise MarkersMissingError(f"the profiler returned {len(markers)} of {2 * calls} markers")
    if empty := sum(not work for work in inside):
        raise NoKernelError(f"{empty} of {calls} calls launched no kernel on the device")
    brackets = list(zip(markers[::2], markers[1::2], inside, strict=True))
    overlapping = [
        work.name
        for opening, closing, within in brackets
        for work in within
        if work.start_ns < opening.end_ns - SLACK_NS or work.end_ns > closing.start_ns + SLACK_NS
    ]
    timed = []
    for within in inside:
        kernels = tuple((work.name, work.duration_ns / 1e6) for work in within)
        span_ns = max(work.end_ns for work in within) - within[0].start_ns
        timed.append(Call(sum(ms for _, ms in kernels), span_ns / 1e6, kernels))
    return Batch(
        calls=timed,
        escaped=(*overlapping, *(outside - Counter(own or {})).elements()),
        marker_ns=tuple((opening.duration_ns, closing.duration_ns) for opening, closing, _ in brackets),
    )


def kernel_table(calls: Sequence[Call]) -> list[Kernel]:
    """Return each kernel with its launches and time per call, in the order of first launch."""
    counts: Counter[str] = Counter()
    times: dict[str, list[float]] = {}
    for call in calls:
        summed: dict[str, float] = {}
        for name, ms in call.kernels:
            counts[name] += 1
            summed[name] = summed.get(name, 0.0) + ms
        for name, total in summed.items():
            times.setdefault(name, []).append(total)
    return [
        Kernel(name=name, count=max(1, round(counts[name] / len(calls))), ms=median(totals))
        for name, totals in times.items()
    ]
