"""Starts the script of a cell after the harness was imported, so that the script cannot replace what that binds.

``python -m kernels_bench_tools.measure.judge.start SCRIPT``. The script runs when standard input has a line, since a process
imports while another one measures; if it ends before, the script is not run.
"""

from __future__ import annotations

import atexit
import gc
import io
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from types import ModuleType


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
    script = sys.argv[0]
    sys.path[0] = str(Path(script).parent)
    guard.EARLY_BINDINGS.append(Bindings())
    module = ModuleType("__main__")
    module.__file__ = script
    sys.modules["__main__"] = module
    imported_packages()  # reads the metadata of all packages
    gc.freeze()  # without all that was imported, collecting after each workload is fast
    gc.enable()
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
    environment.WAITED_MS = (since_process_start_ms() or 0.0) - (import_ms or 0.0)
    exec(compile(Path(script).read_bytes(), script, "exec"), vars(module))  # noqa: S102 - that is its purpose
    threading._shutdown()  # type: ignore[attr-defined]  # waits for threads, as the interpreter does
    atexit._run_exitfuncs()
    for value in [*vars(module).values(), sys.stdout, sys.stderr]:
        if isinstance(value, io.IOBase):
            with suppress(OSError, ValueError):  # it is closed, for example
                value.flush()
    os._exit(0)  # tearing down torch and the CUDA context takes most of a second


if __name__ == "__main__":
    main()
