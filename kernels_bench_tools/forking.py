"""Runs scripts in forks of this process, which has imported what takes long, and the ends of processes of cells.

``kbt`` sends a message for each, see :mod:`kernels_bench_tools.run.process.forks`. ``python -m kernels_bench_tools.forking
MODULE...`` imports these modules.
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
from importlib import import_module
from pathlib import Path
from types import ModuleType

_ENVIRONMENT = slice(47, 49)
"""Of what follows the name in ``/proc/self/stat``: where the variables begin and end in memory."""


def run_script(script: str) -> None:
    """Run a script as ``__main__``, and end this process as the interpreter does, but without tearing down what was imported."""
    sys.path[: not sys.flags.safe_path] = [str(Path(script).parent)]
    module = ModuleType("__main__")
    module.__file__ = script
    sys.modules["__main__"] = module
    exec(compile(Path(script).read_bytes(), script, "exec"), vars(module))  # noqa: S102 - that is its purpose
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter does
    atexit._run_exitfuncs()
    for value in [*vars(module).values(), sys.stdout, sys.stderr]:
        if isinstance(value, io.IOBase):
            with suppress(OSError, ValueError):  # it is closed, for example
                value.flush()
    os._exit(0)  # tearing down torch and the CUDA context takes most of a second


def fork_for_messages() -> str:
    """Fork for each message on the socket that is standard input; return the script of its message in a fork that is as it says."""
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
            return sys.argv[0]


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
    for name in sys.argv[1:]:
        import_module(name)
    gc.freeze()
    run_script(fork_for_messages())
