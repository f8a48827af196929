"""Which status a measured implementation gets: the worst of what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kernels_bench_tools.schema.record import REJECTING, Failure, Flag, Status


def decide(
    wrong: str, exceeds: str, flags: Sequence[Flag], reasons: Mapping[Flag, str]
) -> tuple[Status, Failure | None]:
    """Return the status of an implementation that ran, and why it is not ``ok``.

    Args:
        wrong: Why its result is wrong; empty if it is right.
        exceeds: Why its time cannot be true; empty if it can.
        flags: Everything that was noticed; those in ``REJECTING`` count here.
        reasons: A sentence for each flag that has one.
    """
    if wrong:
        return Status.INCORRECT, Failure(type="WrongResult", msg=wrong)
    if exceeds:
        return Status.EXCEEDS_PHYSICS, Failure(type="ExceedsPhysics", msg=exceeds)
    rejecting = [flag for flag in flags if flag in REJECTING]
    if rejecting:
        message = "; ".join(
            f"{flag.value}: {reasons[flag]}" if flag in reasons else flag.value for flag in rejecting
        )
        return Status.REJECTED, Failure(type="Rejected", msg=message[:500])
    return Status.OK, None
