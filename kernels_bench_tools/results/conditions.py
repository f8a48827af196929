"""What only the records contain: first calls, clocks, power and sentinels."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from kernels_bench_tools.records.codec import ignore, read_records
from kernels_bench_tools.records.record import FirstCall, Record
from kernels_bench_tools.text import grouped


@dataclass(frozen=True)
class Details:
    first_calls: dict[str, FirstCall] = field(default_factory=dict)
    """First calls by workload, each of the process whose first call took the median time."""
    conditions: Sequence[tuple[str, str]] = ()
    """Clocks, power, temperature and sentinels, as name and text."""


def device_details(committed: Iterable[Path], made: Iterable[Path]) -> dict[str, Details]:
    """Return the details of an implementation by the slug of the device.

    On each device, records that this build ``made`` replace ``committed`` ones, as in the summary. Lines that are no records are skipped.
    """
    return {slug: _details(found) for slug, found in (_by_device(committed) | _by_device(made)).items()}


def _by_device(files: Iterable[Path]) -> dict[str, list[Record]]:
    # Records without a device are of an older format, which has none of the details.
    return grouped(
        (record.device.slug, record)
        for file in files
        for record in read_records(file, on_problem=ignore)
        if record.lat_ms is not None and record.device is not None
    )


def _details(records: Sequence[Record]) -> Details:
    calls = grouped(
        (record.workload, record.first_call) for record in records if record.first_call is not None
    )
    first = {
        workload: sorted(found, key=lambda call: call.first_ms or 0.0)[len(found) // 2]
        for workload, found in calls.items()
    }
    clocks = [record.clocks for record in records if record.clocks is not None]
    sentinels = grouped(
        (f"Sentinel {name}", ms)
        for record in records
        for name, each in record.sentinels.items()
        for ms in each
    )
    readings: list[tuple[str, str, Sequence[float | None]]] = [
        ("SM clock", "MHz", [each.sm_mhz for each in clocks]),
        ("SM clock, lowest sample", "MHz", [each.sm_mhz_min for each in clocks]),
        ("SM clock, in the stream", "MHz", [each.in_band_mhz for each in clocks]),
        ("Memory clock", "MHz", [each.memory_mhz for each in clocks]),
        ("Power, highest", "W", [each.power_w for each in clocks]),
        ("Temperature", "°C", [each.temperature_c for each in clocks]),
        *((name, "ms", ms) for name, ms in sentinels.items()),
    ]
    conditions = []
    for name, unit, values in readings:
        if known := [value for value in values if value]:
            ends = dict.fromkeys(f"{value:.4g}" for value in (min(known), max(known)))
            conditions.append((name, f"{' to '.join(ends)} {unit}"))
    if clocks:
        reasons = sorted({reason for each in clocks for reason in each.throttle})
        others = max(each.other_processes for each in clocks)
        count = len(conditions) - len(sentinels)
        conditions[count:count] = [
            ("Throttled by", ", ".join(reasons) or "nothing"),
            ("Other processes", str(others or "none")),
        ]
    return Details(first_calls=first, conditions=conditions)
