"""Starts the script of a cell after the harness was imported, so that the script cannot replace what that binds.

``python -m kernels_bench_tools.measure.judge.start SCRIPT``. The script runs when standard input has a line, since a process
imports while another one measures; if it ends before, the script is not run. Without a script it forks for each message
of the socket that is its standard input, and the fork runs that of the message: see :mod:`kernels_bench_tools.run.process.forks`.
"""

from __future__ import annotations

import atexit
import ctypes
import gc
import io
import json
import os
import socket
import sys
import threading
import time
import warnings
from contextlib import suppress
from pathlib import Path
from types import ModuleType

_ENVIRONMENT = slice(47, 49)
"""Of what follows the name in ``/proc/self/stat``: where the variables begin and end in memory."""


def main() -> None:
    """Run the script as ``__main__``."""
    gc.disable()  # importing torch makes a million objects and little garbage: a sixth of its time was to look for it
    from kernels_bench_tools.measure import harness  # noqa: F401 - binds what measuring needs
    from kernels_bench_tools.measure.device import environment
    from kernels_bench_tools.measure.device.environment import imported_packages, since_process_start_ms
    from kernels_bench_tools.measure.judge import guard, remote
    from kernels_bench_tools.measure.judge.bindings import Bindings
    from kernels_bench_tools.records.device import cpu_device

    del sys.argv[0]
    guard.EARLY_BINDINGS.append(Bindings())
    imported_packages()  # reads the metadata of all packages
    gc.freeze()  # without all that was imported, collecting after each workload is fast
    gc.enable()
    import_ms = since_process_start_ms()
    if not sys.argv:
        _fork_for_messages()  # returns in forks only
        environment.WAITED_MS = -(import_ms or 0.0)
    script = sys.argv[0]
    sys.path[0] = str(Path(script).parent)
    module = ModuleType("__main__")
    module.__file__ = script
    sys.modules["__main__"] = module
    import_ms = since_process_start_ms()
    token, *beside = os.read(0, 100).split() or [b""]  # it remains in the memory of this process only
    if not token:
        return
    remote.TOKEN.append(token)
    cpu_device()  # is named by all cores
    with suppress(AttributeError, OSError):  # not Linux
        # The first core is for the process that judges, and for kbt: they would interrupt what is timed.
        if beside and (others := sorted(os.sched_getaffinity(0))[1:]):
            os.sched_setaffinity(0, others)
    environment.WAITED_MS += (since_process_start_ms() or 0.0) - (import_ms or 0.0)
    exec(compile(Path(script).read_bytes(), script, "exec"), vars(module))  # noqa: S102 - that is its purpose
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter does
    atexit._run_exitfuncs()
    for value in [*vars(module).values(), sys.stdout, sys.stderr]:
        if isinstance(value, io.IOBase):
            with suppress(OSError, ValueError):  # it is closed, for example
                value.flush()
    os._exit(0)  # tearing down torch and the CUDA context takes most of a second


def _fork_for_messages() -> None:
    """Fork for each message until there are no more; return in a fork whose process is as the message says."""
    with socket.socket(fileno=os.dup(0)) as server:
        server.send(b"ready")
        while True:
            message, files, *_ = socket.recv_fds(server, 2**20, 4)
            if not message:
                os._exit(0)
            with (
                warnings.catch_warnings()
            ):  # of threads, which libraries have started, and which forks do without
                warnings.simplefilter("ignore")
                middle = os.fork()
                parent = os.getpid()
                if not middle and os.fork():
                    os._exit(0)
            if middle:
                for file in files:
                    os.close(file)
                os.waitpid(middle, 0)
                continue
            while os.getppid() == parent:  # until it is a child of kbt
                time.sleep(0.0002)
            os.setsid()
            asked = json.loads(message)
            *streams, last = files
            _take_variables(asked["variables"])
            with socket.socket(fileno=last) as kbt:
                kbt.send(str(os.getpid()).encode())
                if not kbt.recv(8):  # it has started another process instead
                    os._exit(1)
            os.chdir(asked["folder"])
            for number, file in enumerate(streams):
                os.dup2(file, number)
                os.close(file)
            sys.argv[:] = [asked["script"]]
            return


def _take_variables(variables: dict[str, str]) -> None:
    """Replace all variables, also where other processes read them: in the memory of those that this one began with."""
    os.environ.clear()
    os.environ.update(variables)
    fields = Path("/proc/self/stat").read_text(encoding="ascii", errors="replace").rpartition(")")[2].split()
    start, end = map(int, fields[_ENVIRONMENT])
    text = b"".join(os.fsencode(f"{name}={value}") + b"\0" for name, value in variables.items())
    if len(text) > end - start:
        raise OSError("no room for the variables")
    ctypes.memset(start, 0, end - start)
    ctypes.memmove(start, text, len(text))


if __name__ == "__main__":
    main()
