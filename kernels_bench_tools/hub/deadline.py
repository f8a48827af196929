"""A limit on how long the hub is waited for."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from typing import TypeVar

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.hub.status import HubError, HubStatus

VARIABLE = "KBT_HUB_DEADLINE_S"
DEFAULT_S = 60.0

T = TypeVar("T")


def find_deadline(given: float | None) -> float:
    """Return after how many seconds to give up: what was given, what the user has set, or a minute.

    Raises:
        KbtError: It is not a positive number.
    """
    text = os.environ.get(VARIABLE, "").strip() or DEFAULT_S
    try:
        deadline_s = float(text if given is None else given)
    except (TypeError, ValueError):
        deadline_s = -1.0
    if not deadline_s > 0:
        where = VARIABLE if given is None else "get_kernel(deadline_s=...)"
        raise KbtError(where, f"is {text if given is None else given!r}", "a number of seconds above 0")
    return deadline_s


def within(deadline_s: float, work: Callable[[], T], progress: Callable[[], int]) -> T:
    """Return what ``work`` returns; raise what it raises.

    It runs in a thread of its own, which is left behind if the hub falls silent: the client has no timeout, and
    a signal would not interrupt a name lookup.

    Args:
        deadline_s: Seconds without progress after which to give up.
        work: What asks the hub.
        progress: How many bytes have arrived; a download that goes on is not cut off.

    Raises:
        HubError: The hub did not answer in time.
    """
    outcome: list[Callable[[], T]] = []
    thread = threading.Thread(target=_run, args=(work, outcome), name="hub", daemon=True)
    thread.start()
    seen, since = progress(), time.monotonic()
    while not outcome and thread.is_alive():
        left = since + deadline_s - time.monotonic()
        if left <= 0:
            raise HubError(HubStatus.HUB_UNREACHABLE, f"the hub did not answer within {deadline_s:g} s")
        thread.join(min(left, 1.0))
        if (arrived := progress()) != seen:
            seen, since = arrived, time.monotonic()
    return outcome[0]()


def _run(work: Callable[[], T], outcome: list[Callable[[], T]]) -> None:
    try:
        value = work()
    except BaseException as error:
        failure = error

        def fail() -> T:
            raise failure

        outcome.append(fail)
    else:
        outcome.append(lambda: value)
