"""Kernel durations as CUPTI records them, through torch's profiler.

Every timed call stands between two marker kernels, which no implementation launches: what starts
between them belongs to the call. CUPTI's durations hold neither launch gaps nor the cost of events.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

import torch
from torch.autograd import DeviceType
from torch.profiler import ProfilerActivity, profile

from kernels_bench_tools.measure.sampling import Call
from kernels_bench_tools.records import Kernel

MARKER = "spin_kernel"
"""Part of the name of the kernel that ``torch.cuda._sleep`` launches."""
# Activities that the profiler books on the device though nothing computes or moves, by type, and by name
# for releases of torch that do not tell the type.
_NO_WORK = {"cuda_sync", "gpu_user_annotation", "cuda_profiler_range", "overhead"}
_NO_WORK_NAMES = {"Context Sync", "Stream Sync", "Event Sync", "Stream Wait Event"}


class MarkersMissingError(Exception):
    """The profiler did not return both markers of every call, so its kernels cannot be told apart."""


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
        """When it ended, on the clock of ``start_ns``."""
        return self.start_ns + self.duration_ns


def record_activities(batch: Callable[[], None]) -> list[Activity]:
    """Run ``batch`` in one profiler session and return what the device did, by start time."""
    os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # or each session prints two lines
    with profile(activities=[ProfilerActivity.CUDA], acc_events=True) as session:
        batch()
        torch.cuda.synchronize()
    # The raw events: building torch's FunctionEvents takes far longer than the session itself.
    events = session.profiler.kineto_results.events()
    activities = [
        Activity(event.name(), event.start_ns(), event.duration_ns())
        for event in events
        if event.device_type() == DeviceType.CUDA and _is_work(event)
    ]
    return sorted(activities, key=lambda activity: activity.start_ns)


def _is_work(event: Any) -> bool:
    kind = getattr(event, "activity_type", None)
    return event.name() not in _NO_WORK_NAMES and (kind is None or kind() not in _NO_WORK)


def split_calls(activities: Sequence[Activity], calls: int) -> list[Call]:
    """Return what belongs to each call.

    Args:
        activities: Everything the device did, by start time.
        calls: How many calls were made, each between an opening and a closing marker.

    Raises:
        MarkersMissingError: The number of markers does not fit.
        NoKernelError: There was nothing between two markers.
    """
    found: list[Call] = []
    inside: list[Activity] | None = None
    markers = 0
    for activity in activities:
        if MARKER not in activity.name:
            if inside is not None:
                inside.append(activity)
            continue
        markers += 1
        if inside is None:
            inside = []
        else:
            found.append(_call(inside))
            inside = None
    if markers != 2 * calls:
        raise MarkersMissingError(f"the profiler returned {markers} of {2 * calls} markers")
    empty = sum(not call.kernels for call in found)
    if empty:
        raise NoKernelError(f"{empty} of {calls} calls launched no kernel on the device")
    return found


def _call(activities: Sequence[Activity]) -> Call:
    if not activities:
        return Call(0.0)
    span = max(activity.end_ns for activity in activities) - activities[0].start_ns
    kernels = tuple((activity.name, activity.duration_ns / 1e6) for activity in activities)
    return Call(sum(ms for _, ms in kernels), span / 1e6, kernels)


def kernel_table(calls: Sequence[Call]) -> list[Kernel]:
    """Return each kernel with its launches per call and its time, in the order of first launch."""
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
