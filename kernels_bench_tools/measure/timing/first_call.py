"""What happens once per process: starting it, importing packages, loading the implementation."""

from __future__ import annotations

import os
import time
from pathlib import Path

_START_TIME = 21
"""Index of a process's start in ``/proc/self/stat``, in clock ticks since the machine started."""
_BELIEVABLE_MS = 3_600_000.0


def since_process_start_ms() -> float | None:
    """Return the milliseconds since this process started, to a clock tick of 10; None where unknown."""
    try:
        stat = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace")
        # The second field is the program's name in parentheses, which may hold anything.
        fields = ["", "", *stat.rpartition(")")[2].split()]
        started = int(fields[_START_TIME]) / os.sysconf("SC_CLK_TCK")
        elapsed = 1000 * (time.clock_gettime(time.CLOCK_BOOTTIME) - started)
    except (OSError, ValueError, IndexError, AttributeError):
        return None
    return elapsed if 0 <= elapsed < _BELIEVABLE_MS else None
