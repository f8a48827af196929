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


def record_activities(batch: Callable[[], None]) -> list[Activity]:
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
    brackets, outside = _brackets(activities)
    markers = sum(MARKER in activity.name for activity in activities)
    if markers != 2 * calls or len(brackets) != calls:
        raise MarkersMissingError(f"the profiler returned {markers} of {2 * calls} markers")
    empty = sum(not bracket.inside for bracket in brackets)
    if empty:
        raise NoKernelError(f"{empty} of {calls} calls launched no kernel on the device")
    escaped = [name for bracket in brackets for name in bracket.unordered()]
    strangers = Counter(activity.name for activity in outside) - Counter(own or {})
    return Batch(
        calls=[_call(bracket.inside) for bracket in brackets],
        escaped=(*escaped, *strangers.elements()),
        marker_ns=tuple((b.opening.duration_ns, b.closing.duration_ns) for b in brackets),
    )


@dataclass
class _Bracket:
    opening: Activity
    closing: Activity
    inside: list[Activity]

    def unordered(self) -> list[str]:
        """Return the names of activities that overlap with a marker."""
        after, before = self.opening.end_ns - SLACK_NS, self.closing.start_ns + SLACK_NS
        return [work.name for work in self.inside if work.start_ns < after or work.end_ns > before]


def _brackets(activities: Sequence[Activity]) -> tuple[list[_Bracket], list[Activity]]:
    """Pair the markers; return the activities between each pair, and all others."""
    found: list[_Bracket] = []
    outside: list[Activity] = []
    opening: Activity | None = None
    inside: list[Activity] = []
    for activity in activities:
        if MARKER in activity.name:
            if opening is None:
                opening = activity
            else:
                found.append(_Bracket(opening, activity, inside))
                opening, inside = None, []
        else:
            (outside if opening is None else inside).append(activity)
    return found, outside


def _call(activities: Sequence[Activity]) -> Call:
    if not activities:
        return Call(0.0)
    span = max(activity.end_ns for activity in activities) - activities[0].start_ns
    kernels = tuple((activity.name, activity.duration_ns / 1e6) for activity in activities)
    return Call(sum(ms for _, ms in kernels), span / 1e6, kernels)


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
