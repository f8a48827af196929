"""What a build leaves on the machine while it runs, cleared away also when the build is killed.

Nothing can be done by a process that is killed with -9, so one more process, which does nothing else, waits for
the end of this one on a pipe. It costs no time of a cell: it starts beside the first one. What it cannot clear
away, because it was killed as well, the next build does.
"""

from __future__ import annotations

import atexit
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

from kernels_bench_tools.run.process import orphans

_FOLDER_PREFIX = "kbt-"
_lock = threading.Lock()
_current: Guardian | None = None


class Guardian:
    """Knows what this process has started, by its name, and sees to its end."""

    def __init__(self) -> None:
        orphans.kill_processes(orphans.OWNER_VARIABLE, orphans.is_abandoned)
        _remove_abandoned_folders()
        self.pid = os.getpid()
        self.owner = orphans.owner_name()
        """The value of ``OWNER_VARIABLE`` of every process that is started."""
        self.folder = Path(tempfile.mkdtemp(prefix=f"{_FOLDER_PREFIX}{self.owner}-")).resolve()
        """Where cells have their folders; of this process alone."""
        # Isolated and without packages, it starts in 10 ms; in a session of its own, Ctrl-C does not reach it.
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", orphans.__file__, self.owner, str(self.folder)],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            cwd="/",
            env={},
            start_new_session=True,
        )

    def dismiss(self) -> None:
        """Say that this process ends well and has left nothing but its folder."""
        if self.pid != os.getpid():  # a copy of this process; the guardian is not its own
            return
        shutil.rmtree(self.folder, ignore_errors=True)
        try:
            self._process.communicate(b".", timeout=1)
        except (OSError, ValueError, subprocess.TimeoutExpired):
            self._process.kill()
            self._process.wait()


def guardian() -> Guardian:
    """Return this process's guardian; it is there until this process ends."""
    global _current
    with _lock:
        if _current is None or _current.pid != os.getpid():
            _current = Guardian()
            atexit.register(_current.dismiss)
        return _current


def _remove_abandoned_folders() -> None:
    for folder in Path(tempfile.gettempdir()).glob(f"{_FOLDER_PREFIX}*-*-*-*"):
        try:
            own = folder.lstat().st_uid == os.getuid() and not folder.is_symlink()
        except OSError:
            continue
        owner = folder.name.removeprefix(_FOLDER_PREFIX).rpartition("-")[0]
        if own and orphans.is_abandoned(owner):
            shutil.rmtree(folder, ignore_errors=True)
