"""Compare a time with the roofline: what bounds it, how close it is to that bound, and whether it is possible."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kernels_bench_tools.records.record import Record, Regime, Roofline, Work

LAUNCH_FACTOR = 5
"""A call is launch-bound below this multiple of an empty kernel's time."""
TRAFFIC_MARGIN = 1.1
"""Possible memory rate relative to the best measured peak. An H200's measured read peak is 8 % below its specification:
this leaves room for noise, not for a wrong byte count."""
CPU_MARGIN = 1.5
"""The same on a CPU, where other processes may slow down the measurement of the peaks."""
MATMUL_MARGIN = 1.25
"""The same for matmuls. Large ones run into the power limit: an H200's measured bfloat16 peak is 80 % of its tensor
cores' rate at full clocks, which a short kernel or one with many zeros can reach."""
CACHE_FACTOR = 8
"""Possible cache rate relative to memory's: an H200's is about twice as fast, a CPU's up to five times."""
NULL_MARGIN = 0.5
"""A time below this share of an empty kernel's is impossible."""

_READ_SHARES = {"write": 0.0, "copy": 1 / 2, "triad": 2 / 3, "read": 1.0}
"""Traffic peak to the share of reads in it."""
_NEAR = 0.01
_COMPARABLE = {
    "float32": ("matmul_float32", "matmul_tf32"),
    "bfloat16": ("matmul_bfloat16", "matmul_float16"),
    "float16": ("matmul_float16", "matmul_bfloat16"),
    "float8": ("matmul_float8",),
}
"""Peaks for a dtype, its own first. Kernels may use TF32 for float32."""


@dataclass(frozen=True)
class RooflineResult:
    regime: Regime
    roofline: Roofline | None
    """None for launch-bound calls, or without measured peaks."""
    above: str
    """Why the time is impossible; empty if it is possible."""


class Limits(NamedTuple):
    peaks: Mapping[str, float]
    """Measured ones."""
    null_ms: float
    """Time of an empty kernel; 0 if unknown."""
    cache_bytes: int
    """Of the last-level cache; 0 if unknown."""
    margin: float = TRAFFIC_MARGIN


def assess(work: Work, ms: float, dtype: str, limits: Limits) -> RooflineResult:
    """Return what bounds a call, how close it is to that bound, and whether its time is above the roofline."""
    peaks, null_ms, cache_bytes, _ = limits
    traffic, names = traffic_peak(work, peaks), _matmuls(dtype, peaks)
    roofline = None
    if ms < LAUNCH_FACTOR * null_ms:
        regime = Regime.LAUNCH
    # The ridge, FLOP/s over bytes/s: with fewer FLOPs per byte, memory is the bound.
    elif traffic and names and work.flops > work.bytes_moved * peaks[names[0]] * 1e12 / (traffic[1] * 1e9):
        regime = Regime.COMPUTE
    elif work.bytes_moved < cache_bytes / 2:
        regime = Regime.L2
    else:
        regime = Regime.HBM if work.bytes_moved > 4 * cache_bytes else Regime.TRANSITION
    if regime is Regime.COMPUTE and ms > 0:
        achieved = work.flops / ms / 1e9
        # A rate above the dtype's own peak was computed in the other one, such as TF32.
        name = next((name for name in names if achieved <= peaks[name]), names[0])
        roofline = Roofline(ceiling=name, value=peaks[name], fraction=achieved / peaks[name])
    elif traffic and regime is not Regime.LAUNCH and ms > 0:
        fraction = work.bytes_moved / ms / 1e6 / traffic[1]
        roofline = Roofline(ceiling=traffic[0], value=traffic[1], fraction=fraction)
    return RooflineResult(regime, roofline, _impossible(work, ms, dtype, limits))


def implausible(record: Record, work: Work | None, dtype: str, limits: Limits) -> str:
    """Return why the time of a record is impossible; empty if it is possible.

    The others are what the records of the same workload and device agree on.
    """
    if record.lat_ms is None or work is None:
        return ""
    ms = record.lat_ms.p50
    bound = record.roofline
    if bound is not None and bound.fraction > CACHE_FACTOR:
        return f"its rate is {bound.fraction:.3g} times the measured peak ({bound.ceiling})"
    # Without the size of the cache, all bytes may have been in it.
    return _impossible(work, ms, dtype, limits._replace(cache_bytes=limits.cache_bytes or work.bytes_moved))


def traffic_peak(work: Work, peaks: Mapping[str, float]) -> tuple[str, float] | None:
    """Return name and GB/s of the peak for this mix of reads and writes; None if none was measured.

    Between two measured mixes the time per byte is interpolated, since the times of reads and writes add up.
    """
    if work.bytes_moved <= 0:
        return None
    share = work.bytes_read / work.bytes_moved
    known = [(at, name) for name, at in sorted(_READ_SHARES.items(), key=lambda it: it[1]) if name in peaks]
    if not known:
        return None
    distance, name = min((abs(at - share), name) for at, name in known)
    if distance <= _NEAR or not known[0][0] < share < known[-1][0]:
        return name, peaks[name]
    below = max((at, name) for at, name in known if at < share)
    above = min((at, name) for at, name in known if at > share)
    weight = (share - below[0]) / (above[0] - below[0])
    return "mix", 1 / ((1 - weight) / peaks[below[1]] + weight / peaks[above[1]])


def peaks_for(dtypes: Iterable[str]) -> set[str]:
    """Return the names of the peaks with which calls of these dtypes are compared."""
    return {*_READ_SHARES, *(name for dtype in dtypes for name in _comparable(dtype))}


def _comparable(dtype: str) -> Sequence[str]:
    return _COMPARABLE.get("float8" if dtype.startswith("float8") else dtype, ())


def _matmuls(dtype: str, peaks: Mapping[str, float]) -> list[str]:
    return [name for name in _comparable(dtype) if name in peaks]


def _impossible(work: Work, ms: float, dtype: str, limits: Limits) -> str:
    peaks, null_ms, cache_bytes, margin = limits
    if ms <= 0:
        return "its time is zero"
    if ms < NULL_MARGIN * null_ms:
        return f"{ms * 1e3:.3g} us is less than half the time of an empty kernel, {null_ms * 1e3:.3g} us"
    best = max((peaks[name] for name in _READ_SHARES if name in peaks), default=0.0)
    if best > 0:
        # Bytes that the cache held before, or still holds to be written, need not have gone through memory.
        through_memory = max(0, work.bytes_moved - cache_bytes) / ms / 1e6
        if through_memory > margin * best:
            return f"{through_memory:.0f} GB/s through memory; its measured peak is {best:.0f} GB/s"
        rate = work.bytes_moved / ms / 1e6
        if rate > CACHE_FACTOR * best:
            return f"{rate:.0f} GB/s is more than {CACHE_FACTOR} times the measured peak of memory, {best:.0f} GB/s"
    fastest = max((peaks[name] for name in _matmuls(dtype, peaks)), default=0.0)
    arithmetic = work.flops / ms / 1e9
    if fastest > 0 and arithmetic > MATMUL_MARGIN * fastest * margin / TRAFFIC_MARGIN:
        return f"{_rate(arithmetic)} TFLOP/s in {dtype}; the measured peak of a matmul is {_rate(fastest)}"
    return ""


def _rate(value: float) -> str:
    """Return a rate with three digits; a CPU's is a fraction of a TFLOP/s."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
