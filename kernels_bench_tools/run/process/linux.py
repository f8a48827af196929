"""What Linux can do for a process that is run, and what is done elsewhere instead."""

from __future__ import annotations

import os
import select
import subprocess
import time

_OOM_SCORE = b"500"
"""Of a process that is started, so that the kernel does not end ``kbt`` for what a cell holds."""


def restrain(pid: int) -> None:
    """Let a process leave no core file, and be the first to go when the machine has no memory left."""
    try:
        import resource

        resource.prlimit(pid, resource.RLIMIT_CORE, (0, 0))
        with open(f"/proc/{pid}/oom_score_adj", "wb", buffering=0) as file:  # noqa: PTH123
            file.write(_OOM_SCORE)
    except (ImportError, AttributeError, OSError):  # not Linux, or it has ended
        return


class Sleep:
    """Sleeps until some time is over or a process has ended, where the system can tell."""

    def __init__(self, pid: int) -> None:
        self._pause = 0.001
        try:
            self._file = os.pidfd_open(pid)
        except (AttributeError, OSError):
            self._file = -1
            return
        self._poll = select.poll()
        self._poll.register(self._file, select.POLLIN)

    def __enter__(self) -> Sleep:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file >= 0:
            os.close(self._file)

    def __call__(self, seconds: float) -> None:
        """Sleep for so many seconds at most."""
        if self._file >= 0:
            self._poll.poll(1000 * seconds)
        else:
            time.sleep(min(self._pause, seconds))
            self._pause *= 2


def has_ended(process: subprocess.Popen[bytes]) -> bool:
    """Return whether a process has ended, leaving its number taken."""
    if not hasattr(os, "waitid"):
        return process.poll() is not None
    return os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
