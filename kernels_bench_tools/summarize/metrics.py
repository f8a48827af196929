"""Metrics: one entry each, which every export picks up.

A new one needs a name, a title, a unit, a direction and a function from a record to a number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from kernels_bench_tools.schema.record import Record, Regime, Status


class Metric(NamedTuple):
    """A number that a record has; of several processes, the record that they were made into."""

    name: str
    """With its unit, in snake_case."""
    title: str
    unit: str
    better: Literal["lower", "higher"]
    value: Callable[[Record], float | None]
    """None where the record does not have it."""

    @property
    def label(self) -> str:
        """Title and unit, as an axis or a column shows them."""
        return f"{self.title} ({self.unit})"


def _latency(record: Record) -> float | None:
    return record.lat_ms.p50 if record.lat_ms else None


def _per_second(amount: float, record: Record) -> float | None:
    """Return ``amount`` per second of the median; nothing for a wrong answer, which did other work."""
    if record.outcome is not Status.OK or not record.lat_ms or record.lat_ms.p50 <= 0 or amount <= 0:
        return None
    return amount / (record.lat_ms.p50 / 1e3)


def _moves(record: Record) -> bool:
    """Whether bytes per second say anything: not of a call that is hardly more than a launch."""
    return record.regime is not Regime.LAUNCH


def _gb_per_s(record: Record) -> float | None:
    return _per_second(record.work.bytes_moved / 1e9, record) if record.work and _moves(record) else None


def _tflop_per_s(record: Record) -> float | None:
    return _per_second(record.work.flops / 1e12, record) if record.work else None


def _peak_mb(record: Record) -> float | None:
    return None if record.peak_bytes is None else record.peak_bytes / 2**20


def _fraction(record: Record) -> float | None:
    return record.roofline.fraction if record.roofline and record.outcome is Status.OK else None


def _quantity(name: str) -> Callable[[Record], float | None]:
    def value(record: Record) -> float | None:
        timing = getattr(record.quantities, name) if record.quantities else None
        return timing.p50 if timing else None

    return value


LATENCY = Metric("latency_ms", "Latency", "ms", "lower", _latency)
BANDWIDTH = Metric("gb_per_s", "Bandwidth", "GB/s", "higher", _gb_per_s)
ARITHMETIC = Metric("tflop_per_s", "Arithmetic", "TFLOP/s", "higher", _tflop_per_s)
COMPILE = Metric("compile_ms", "Compile", "ms", "lower", lambda record: record.compile_ms)
PEAK_MEMORY = Metric("peak_mb", "Peak Mem", "MB", "lower", _peak_mb)
FRACTION = Metric("fraction", "Fraction of Ceiling", "1", "higher", _fraction)
DEVICE_HOT = Metric("device_hot_ms", "Hot", "ms", "lower", _quantity("device_hot"))
HOST_SUBMIT = Metric("host_submit_ms", "Host Submit", "ms", "lower", _quantity("host_submit"))
E2E = Metric("e2e_ms", "End to End", "ms", "lower", _quantity("e2e"))

METRICS = (
    *(LATENCY, BANDWIDTH, ARITHMETIC, COMPILE, PEAK_MEMORY),
    *(FRACTION, DEVICE_HOT, HOST_SUBMIT, E2E),
)
