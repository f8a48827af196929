"""Points and rows of summaries, made from a speed-up."""

from collections.abc import Sequence
from typing import Any

from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.record import CacheState, Regime, Status, Timer
from kernels_bench_tools.records.summary import DeviceSummary, Point, Row, Verdict, WorkloadSummary
from kernels_bench_tools.results.metrics import metric_infos
from kernels_bench_tools.text.names import series_slug

PROVENANCE = {"commit": "c0ffee" * 6, "harness": "0.1.0", "environment": "current", "dirty": False}


def made_point(
    device: Device, workload: str, size: int, factor: float, status: Status, reason: str = "", **fields: Any
) -> Point:
    """Return the result on ``size`` elements of what is ``factor`` times as fast as the baseline."""
    if not status.ran:
        return Point(workload=workload, status=status, reason=reason)
    gpu, ok = device.kind == "cuda", status is Status.OK
    median = size / (3e9 if gpu else 1e7) / factor
    given: dict[str, Any] = {
        "p50_ms": median,
        "ci_low_ms": median * 0.985,
        "ci_high_ms": median * 1.02,
        "reps": 120,
        "timer": Timer.CUPTI if gpu else Timer.MONOTONIC,
        "cache": CacheState.READ_FLUSH,
        "processes": 3,
        "device_hot_ms": median * 0.81,
        "span_ms": median * 1.01,
        "gb_per_s": 4 * size / median / 1e6,
        "compile_ms": 812.5,
        "peak_bytes": size * 2,
        "absmax": 0.0156 if ok else 0.5,
        "regime": Regime.HBM,
        "measured": "2026-11-18T10:00:00Z",
    }
    if ok:
        verdict = Verdict.FASTER if factor > 1 else Verdict.SLOWER
        ends = {"speedup_low": factor * 0.992, "speedup_high": factor * 1.006, "verdict": verdict}
        given |= {"speedup": factor} | (ends if factor != 1 else {"verdict": Verdict.BASELINE})
        given |= {"fraction": 0.58 * factor, "ceiling": "copy"} if gpu else {}
    return Point(workload=workload, status=status, reason=reason, **(given | fields))


def made_row(
    device: Device, implementation: str, points: list[Point], factor: float, key: str = "", **fields: Any
) -> Row:
    """Return the row of an implementation whose points all have the same status."""
    status, count = points[0].status, len(points)
    given: dict[str, Any] = {"passed": 0}
    if status is Status.OK:
        given = {"passed": count, "speedup": factor, "speedup_workloads": count, "baseline": factor == 1}
        if factor != 1:
            given |= {"speedup_low": factor * 0.995, "speedup_high": factor * 1.004}
    return Row(
        implementation=implementation,
        slug="-".join(filter(None, [series_slug(implementation, device.slug), key])),
        status=status,
        reason=points[0].reason,
        total=count,
        points=points,
        **(given | fields),
    )


def made_view(
    device: Device, baseline: str, workloads: Sequence[WorkloadSummary], rows: list[Row], **fields: Any
) -> DeviceSummary:
    """Return a view with these rows, in their order."""
    view = DeviceSummary(device=device, baseline=baseline, workloads=[*workloads], rows=rows, **fields)
    view.metrics = metric_infos(view)
    return view
