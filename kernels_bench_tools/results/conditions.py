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
        (name, ms) for record in records for name, found in record.sentinels.items() for ms in found
    )
    reasons = sorted({reason for one in clocks for reason in one.throttle})
    others = max((one.other_processes for one in clocks), default=0)
    conditions = [
        ("SM clock", _span([one.sm_mhz for one in clocks], "MHz")),
        ("SM clock, lowest sample", _span([one.sm_mhz_min for one in clocks], "MHz")),
        ("SM clock, in the stream", _span([one.in_band_mhz for one in clocks], "MHz")),
        ("Memory clock", _span([one.memory_mhz for one in clocks], "MHz")),
        ("Power, highest", _span([one.power_w for one in clocks], "W")),
        ("Temperature", _span([one.temperature_c for one in clocks], "°C")),
        ("Throttled by", ", ".join(reasons) if reasons else "nothing" if clocks else ""),
        ("Other processes", str(others) if others else "none" if clocks else ""),
        *((f"Sentinel {name}", _span(ms, "ms")) for name, ms in sentinels.items()),
    ]
    return Details(first_calls=first, conditions=[(name, value) for name, value in conditions if value])


def _span(values: Sequence[float], unit: str) -> str:
    known = [value for value in values if value]
    if not known:
        return ""
    low, high = (f"{value:.4g}" for value in (min(known), max(known)))
    return f"{low} {unit}" if low == high else f"{low} to {high} {unit}"
