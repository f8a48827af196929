"""Starts the script of a cell after the harness was imported, so that the script cannot replace what that binds.

``python -m kernels_bench_tools.measure.start SCRIPT``. Before the script runs, one line is read from standard input:
the runner lets processes import while another one measures.
"""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from kernels_bench_tools.measure import harness  # noqa: F401 - binds what measuring needs
from kernels_bench_tools.measure.integrity import guard
from kernels_bench_tools.measure.integrity.process import Bindings


def main() -> None:
    """Run the script as ``__main__``."""
    del sys.argv[0]
    script = sys.argv[0]
    sys.path[0] = str(Path(script).parent)
    guard.EARLY_BINDINGS.append(Bindings())
    module = ModuleType("__main__")
    module.__file__ = script
    sys.modules["__main__"] = module
    sys.stdin.readline()
    exec(compile(Path(script).read_bytes(), script, "exec"), vars(module))  # noqa: S102 - that is its purpose


if __name__ == "__main__":
    main()
