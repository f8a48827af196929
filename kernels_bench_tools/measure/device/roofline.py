"""How near a time is to what the device can do, what bounds it, and whether it can be true at all."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kernels_bench_tools.schema.record import Regime, Roofline, Work

FLOORS = 5
"""Below this many times a kernel that does nothing, launching is what is measured."""
TRAFFIC_MARGIN = 1.1
"""Memory cannot be faster than the best measured ceiling by more. An H200's read ceiling is 8 % below what its
memory can do by specification, so this leaves no room for a wrong byte count and enough for noise."""
CPU_MARGIN = 1.5
"""The same where a neighbour may have slowed the ceilings down while they were measured, of a matmul in proportion."""
MATMUL_MARGIN = 1.25
"""Large matmuls run into the power limit: an H200's bfloat16 ceiling is 80 % of what its tensor cores can do
at full clocks, which a short kernel or one with many zeros may come near to."""
CACHE_FACTOR = 8
"""No last-level cache is this much faster than memory: an H200's is about twice as fast, a CPU's up to five."""
FLOOR_MARGIN = 0.5
"""A time below this share of the empty kernel's was not that of a kernel."""

_ANCHORS = {"write": 0.0, "copy": 1 / 2, "triad": 2 / 3, "read": 1.0}
"""Ceilings by the share of reads in their traffic."""
_NEAR = 0.01
_COMPARABLE = {
    "float32": ("matmul_float32", "matmul_tf32"),
    "bfloat16": ("matmul_bfloat16", "matmul_float16"),
    "float16": ("matmul_float16", "matmul_bfloat16"),
    "float8": ("matmul_float8",),
}
"""A type's ceilings, its own first. Kernels may use TF32 for float32."""


@dataclass(frozen=True)
class Judgement:
    """What a time says beside the device's ceilings."""

    regime: Regime
    roofline: Roofline | None
    """None where launching is what is measured, or no ceiling is known."""
    exceeds: str
    """Why the time cannot be true; empty if it can."""


def judge(
    work: Work,
    ms: float,
    dtype: str,
    ceilings: Mapping[str, float],
    *,
    null_ms: float,
    cache_bytes: int,
    margin: float = TRAFFIC_MARGIN,
) -> Judgement:
    """Say what bounds a call, how near it is to that bound, and whether it is faster than physics.

    Args:
        work: What one call must do at the least.
        ms: The median time of one call with cold caches.
        dtype: torch's name of the type it computes in.
        ceilings: What ``measure_ceilings`` found on the device, in the same process.
        null_ms: Time of a kernel that does nothing; 0 if it is not known.
        cache_bytes: Size of the last-level cache; 0 if it is not known.
        margin: ``TRAFFIC_MARGIN``, or ``CPU_MARGIN`` on a CPU.
    """
    regime = classify(work, ms, dtype, ceilings, null_ms=null_ms, cache_bytes=cache_bytes)
    exceeds = _exceeds(work, ms, dtype, ceilings, null_ms=null_ms, cache_bytes=cache_bytes, margin=margin)
    roofline = None if regime is Regime.LAUNCH or ms <= 0 else _roofline(work, ms, dtype, ceilings, regime)
    return Judgement(regime, roofline, exceeds)


def classify(
    work: Work, ms: float, dtype: str, ceilings: Mapping[str, float], *, null_ms: float, cache_bytes: int
) -> Regime:
    """Return what bounds a call; the arguments are those of :func:`judge`."""
    if ms < FLOORS * null_ms:
        return Regime.LAUNCH
    traffic, names = traffic_ceiling(work, ceilings), _matmuls(dtype, ceilings)
    # FLOP/s over bytes/s: below this many FLOPs per byte, memory is the bound.
    if traffic and names and work.flops > work.bytes_moved * ceilings[names[0]] * 1e12 / (traffic[1] * 1e9):
        return Regime.COMPUTE
    if work.bytes_moved < cache_bytes / 2:
        return Regime.L2
    return Regime.HBM if work.bytes_moved > 4 * cache_bytes else Regime.TRANSITION


def traffic_ceiling(work: Work, ceilings: Mapping[str, float]) -> tuple[str, float] | None:
    """Return the name and GB/s of the ceiling for this mix of reads and writes; None if none was measured.

    Between two measured mixes the time per byte is interpolated, because the times of the reads and of the
    writes add up.
    """
    if work.bytes_moved <= 0:
        return None
    share = work.bytes_read / work.bytes_moved
    known = [(at, name) for name, at in sorted(_ANCHORS.items(), key=lambda it: it[1]) if name in ceilings]
    if not known:
        return None
    distance, name = min((abs(at - share), name) for at, name in known)
    if distance <= _NEAR or not known[0][0] < share < known[-1][0]:
        return name, ceilings[name]
    below = max((at, name) for at, name in known if at < share)
    above = min((at, name) for at, name in known if at > share)
    weight = (share - below[0]) / (above[0] - below[0])
    return "mix", 1 / ((1 - weight) / ceilings[below[1]] + weight / ceilings[above[1]])


def _matmuls(dtype: str, ceilings: Mapping[str, float]) -> list[str]:
    known = _COMPARABLE.get("float8" if dtype.startswith("float8") else dtype, ())
    return [name for name in known if name in ceilings]


def _roofline(
    work: Work, ms: float, dtype: str, ceilings: Mapping[str, float], regime: Regime
) -> Roofline | None:
    if regime is Regime.COMPUTE:
        achieved = work.flops / ms / 1e9
        names = _matmuls(dtype, ceilings)
        # More than its own type allows was done in the other one, such as TF32.
        name = next((name for name in names if achieved <= ceilings[name]), names[0])
        return Roofline(ceiling=name, value=ceilings[name], fraction=achieved / ceilings[name])
    found = traffic_ceiling(work, ceilings)
    if found is None:
        return None
    return Roofline(ceiling=found[0], value=found[1], fraction=work.bytes_moved / ms / 1e6 / found[1])


def _exceeds(
    work: Work,
    ms: float,
    dtype: str,
    ceilings: Mapping[str, float],
    *,
    null_ms: float,
    cache_bytes: int,
    margin: float,
) -> str:
    if ms <= 0:
        return "takes no time"
    if ms < FLOOR_MARGIN * null_ms:
        return f"{ms * 1e3:.3g} us is less than half of an empty kernel's {null_ms * 1e3:.3g} us"
    best = max((ceilings[name] for name in _ANCHORS if name in ceilings), default=0.0)
    if best > 0:
        # What the cache held before, or still holds to be written, need not have gone through memory.
        through_memory = max(0, work.bytes_moved - cache_bytes) / ms / 1e6
        if through_memory > margin * best:
            return f"{through_memory:.0f} GB/s through memory, which was measured to reach {best:.0f} GB/s"
        rate = work.bytes_moved / ms / 1e6
        if rate > CACHE_FACTOR * best:
            return f"{rate:.0f} GB/s, more than {CACHE_FACTOR} times what memory reaches ({best:.0f} GB/s)"
    fastest = max((ceilings[name] for name in _matmuls(dtype, ceilings)), default=0.0)
    arithmetic = work.flops / ms / 1e9
    if fastest > 0 and arithmetic > MATMUL_MARGIN * fastest * margin / TRAFFIC_MARGIN:
        return f"{_rate(arithmetic)} TFLOP/s in {dtype}, in which a matmul was measured to reach {_rate(fastest)}"
    return ""


def _rate(value: float) -> str:
    """Return a rate with three digits, also that of a CPU, which is a fraction of a TFLOP/s."""
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"
