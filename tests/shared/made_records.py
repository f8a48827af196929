"""Records as implementations leave them, made from a few words."""

from collections.abc import Sequence
from typing import Any

import msgspec
from devices import H200

from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.notebook import FrontMatter
from kernels_bench_tools.records.record import CacheState, Failure, Latency, Record, Status, Timer, Work
from kernels_bench_tools.records.summary import Row, Summary
from kernels_bench_tools.results.counted import Source

SHAPES = ((2048, 4096), (2048, 8192), (4096, 4096), (4096, 8192))


def _workload(shape: tuple[int, int] | None) -> dict[str, Any]:
    if shape is None:
        return {}
    sequence, hidden = shape
    return {
        "name": f"LN_B16_S{sequence}_D{hidden}",
        "batch": 16,
        "seq_len": sequence,
        "hidden_dim": hidden,
        "dtype": "bfloat16",
        "device": "cuda",
        "seed": 0,
    }


def record(
    impl: str,
    p50: float | None = None,
    shape: tuple[int, int] | None = SHAPES[0],
    *,
    half_width: float | None = 0.002,
    status: Status = Status.OK,
    reason: str = "",
    device: Device | None = H200,
    **fields: Any,
) -> Record:
    """Make one record: ``record("torch", 0.1)`` is ok, in 0.1 ms."""
    latency = None
    if p50 is not None:
        reach = None if half_width is None else p50 * half_width
        latency = Latency(
            p10=p50 * 0.99,
            p50=p50,
            p90=p50 * 1.02,
            mean=p50 * 1.001,
            iqr=p50 * 0.01,
            reps=120,
            ci_low=None if reach is None else p50 - reach,
            ci_high=None if reach is None else p50 + reach,
            confidence=0.95,
            timer=Timer.CUPTI,
            cache=CacheState.READ_FLUSH,
        )
    values: dict[str, Any] = {
        "ts": "2026-11-20T10:00:00Z",
        "run": "r1",
        "wl": _workload(shape),
        "ok": status is Status.OK,
        "err": Failure(type=status.value, msg=reason) if reason else None,
        "work": Work(bytes_read=2**29, bytes_written=2**29, flops=10**9),
        "schema": 1,
    }
    return Record(impl=impl, lat_ms=latency, status=status, device=device, **(values | fields))


def source(
    impl: str,
    times: Sequence[float | None] | None = None,
    *,
    status: Status = Status.ERROR,
    reason: str = "RuntimeError: it broke",
    device: Device = H200,
    front: dict[str, Any] | None = None,
    measured_now: bool = True,
    **fields: Any,
) -> Source:
    """Make the records of one implementation on one device.

    One record for each time, in the order of the shapes; None failed. No times: one for them all.
    """
    shared: dict[str, Any] = {"device": device, **fields}
    failure = {"status": status, "reason": reason}
    if times is None:
        records = [record(impl, shape=None, **failure, **shared)]
    else:
        pairs = zip(times, SHAPES, strict=False)
        records = [
            record(impl, time, shape, **shared) if time else record(impl, shape=shape, **failure, **shared)
            for time, shape in pairs
        ]
    matter = None if front is None else msgspec.convert(front, FrontMatter)
    return Source(records=records, front=matter, measured_now=measured_now)


def rows_of(summary: Summary, device: int = 0) -> dict[str, Row]:
    return {row.implementation: row for row in summary.devices[device].rows}
