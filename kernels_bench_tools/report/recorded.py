"""Rows made from records alone, for when no combine cell has summarized them: no rank, no speed-up."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kernels_bench_tools.errors import RecordError
from kernels_bench_tools.report.artifacts import Artifact
from kernels_bench_tools.schema.device import Device, cuda_device
from kernels_bench_tools.schema.record import Record, Status, Timing
from kernels_bench_tools.schema.record_io import read_records
from kernels_bench_tools.schema.summary import DeviceSummary, Point, Row, WorkloadSummary
from kernels_bench_tools.text import series_slug, slugify


def recorded_rows(artifacts: Iterable[Artifact], title: str) -> list[tuple[DeviceSummary, Row]]:
    """Return one row for each device that the records in these artifacts name.

    Files that hold no records are left out: a page shows them as artifacts all the same.
    """
    records: list[Record] = []
    for artifact in artifacts:
        if artifact.suffix == "jsonl":
            try:
                records += read_records(artifact.file, artifact.name)
            except RecordError:
                continue
    devices: dict[str, Device] = {}
    for record in records:
        device = record_device(record)
        devices.setdefault(device.slug, device)
    return [
        _row(device, [record for record in records if record_device(record).slug == slug], title)
        for slug, device in sorted(devices.items())
    ]


def record_device(record: Record) -> Device:
    """Return the device of a record, also of an old one that names only its card."""
    if record.device is not None:
        return record.device
    if record.env.gpu:
        return cuda_device(record.env.gpu, record.env.driver)
    name = record.env.cpu or "CPU"
    return Device(kind="cpu", name=name, slug=slugify(name))


def _row(device: Device, records: Sequence[Record], title: str) -> tuple[DeviceSummary, Row]:
    points = [_point(record) for record in records if record.workload]
    workloads = [
        WorkloadSummary(name=record.workload, dtype=str(record.wl.get("dtype", "")))
        for record in records
        if record.workload
    ]
    worst = next((record for record in records if record.outcome is not Status.OK), records[0])
    row = Row(
        implementation=worst.impl,
        slug=series_slug(worst.impl, device.slug),
        title=title,
        status=worst.outcome,
        reason=_reason(worst),
        passed=sum(point.status is Status.OK for point in points),
        total=len(points),
        points=points,
        environment=worst.env,
        provenance=worst.provenance,
        tags=worst.tags,
        trust=worst.trust,
    )
    return DeviceSummary(device=device, workloads=workloads, rows=[row]), row


def _reason(record: Record) -> str:
    return " ".join(f"{record.err.type}: {record.err.msg}".split()) if record.err else ""


def _point(record: Record) -> Point:
    latency = record.lat_ms
    point = Point(
        workload=record.workload,
        status=record.outcome,
        reason=_reason(record),
        compile_ms=record.compile_ms,
        peak_bytes=record.peak_bytes,
        absmax=record.absmax,
        measured=record.ts,
        regime=record.regime,
        flags=record.flags,
        span_ms=record.span_ms,
    )
    if latency is not None:
        point.p50_ms, point.ci_low_ms, point.ci_high_ms = latency.p50, latency.ci_low, latency.ci_high
        point.reps, point.timer, point.cache = latency.reps, latency.timer, latency.cache
        if record.work is not None and latency.p50 > 0:
            point.gb_per_s = record.work.bytes_moved / latency.p50 / 1e6
    if record.quantities is not None:
        point.device_hot_ms = _p50(record.quantities.device_hot)
        point.host_submit_ms = _p50(record.quantities.host_submit)
        point.e2e_ms = _p50(record.quantities.e2e)
    if record.roofline is not None:
        point.fraction, point.ceiling = record.roofline.fraction, record.roofline.ceiling
    return point


def _p50(timing: Timing | None) -> float | None:
    return timing.p50 if timing is not None else None
