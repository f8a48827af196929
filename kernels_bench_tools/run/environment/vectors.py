"""Whether the C++ compiler supports the vector instructions of this CPU, asked once for all cells of an environment.

torch.compile compiles and loads a probe for each set of instructions before its first kernel, and keeps the outcome in
the cell's own cache: 8 s of processor time for each cell. No cell has a part in this: what one of them writes must not
be used by another.
"""

from __future__ import annotations

import os
import platform
from collections.abc import Callable
from pathlib import Path

from kernels_bench_tools.own_folders import temporary_folder
from kernels_bench_tools.own_process import isolated_command
from kernels_bench_tools.run.environment.variables import compiler_caches
from kernels_bench_tools.run.process.judge import judge_paths
from kernels_bench_tools.run.process.reaper import reaper
from kernels_bench_tools.run.process.run import Processes

VARIABLE = "TORCHINDUCTOR_VEC_ISA_OK"
"""With 1, torch.compile uses what the CPU supports without probes."""
WORTHWHILE = 3
"""The fewest cells for which the probes are compiled before: importing torch's compiler takes 5 s."""
_SECONDS = 300.0

_PROBE = """
import sys
sys.path += {paths!r}
from torch._inductor.cpu_vec_isa import supported_vec_isa_list, x86_isa_checker
found = x86_isa_checker()
print(all(isa for isa in supported_vec_isa_list if all(flag in found for flag in str(isa).split())))
"""


def may_compile(code: str) -> bool:
    """Return whether a cell may use torch.compile."""
    return "torch.compile" in code


def supported(python: str, variables: Callable[[Path], dict[str, str]], processes: Processes) -> bool:
    """Return whether the compiler supports all vector instructions of this x86 CPU; False if that is not known.

    ``variables`` returns those of a process of this environment with the given home.
    """
    paths = judge_paths(python)
    if not paths or platform.machine() != "x86_64" or VARIABLE in os.environ:
        return False
    with temporary_folder(reaper().folder) as folder:
        end = processes.run(
            isolated_command(_PROBE.format(paths=paths), python),
            folder=folder,
            variables=variables(folder) | compiler_caches({}, folder),
            stdout=folder / "answer",
            stderr=folder / "log",
            timeout=_SECONDS,
        )
        return end.code == 0 and (folder / "answer").read_text() == "True\n"
