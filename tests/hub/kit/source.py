"""The source of a small kernel, and builds of it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kit.making import KERNEL
from kit.processes import Processes

BUILD = """\
[general]
name = "scale"
version = 1
edition = 5
license = "Apache-2.0"
backends = ["cpu", "xpu"]

[general.hub]
repo-id = "kernels-community/scale"

[torch]
src = ["torch-ext/torch_binding.cpp"]
stable-abi = "2.10"

[kernel.scale_cpu]
backend = "cpu"
depends = ["torch"]
include = ["kernel"]
cxx-flags = ["-DOFFSET=0"]
src = ["kernel/scale.cpp", "kernel/scale.h", "kernel/shift.cpp"]

[kernel.scale_xpu]
backend = "xpu"
depends = ["torch"]
src = ["kernel/no_such_file.cpp"]
"""
BINDING = """\
#include <torch/csrc/stable/library.h>
#include "registration.h"
#include "scale.h"

STABLE_TORCH_LIBRARY_EXPAND(TORCH_EXTENSION_NAME, ops) {
  ops.def("scale(int x) -> int");
  ops.def("shift(int x) -> int");
}

STABLE_TORCH_LIBRARY_IMPL_EXPAND(TORCH_EXTENSION_NAME, CompositeExplicitAutograd, ops) {
  ops.impl("scale", TORCH_BOX(&scale));
  ops.impl("shift", TORCH_BOX(&shift));
}

REGISTER_EXTENSION(TORCH_EXTENSION_NAME)
"""
PYTHON = """\
import torch

from ._ops import add_op_namespace_prefix, ops

assert add_op_namespace_prefix("scale").endswith("::scale")


def scale(x):
    return torch.tensor(float(ops.scale(int(x))))


def shift(x):
    return torch.tensor(float(ops.shift(int(x))))
"""
NOARCH = """\
[general]
name = "scale"
version = 1
license = "Apache-2.0"
backends = ["cpu", "cuda"]

[general.hub]
repo-id = "kernels-community/scale"

[torch-noarch]
"""


@dataclass(frozen=True)
class Built:
    """How a run of the builder ended."""

    code: int
    out: str
    err: str

    @property
    def compiled(self) -> list[str]:
        """The files that were compiled, of all kernels."""
        return sorted(line.split()[-1] for line in self.out.splitlines() if line.startswith("["))


def make_source(folder: Path, *, factor: int = 2, build: str = BUILD) -> Path:
    """Write a kernel's source: ``scale`` multiplies by ``factor`` and ``shift`` adds one, in C++."""
    files = {
        "build.toml": build,
        "torch-ext/torch_binding.cpp": BINDING,
        "torch-ext/scale/__init__.py": PYTHON if build is BUILD else "def scale(x):\n    return x * 2\n",
        "kernel/scale.h": "#include <cstdint>\nint64_t scale(int64_t x);\nint64_t shift(int64_t x);\n",
        "kernel/scale.cpp": f'#include "scale.h"\nint64_t scale(int64_t x) {{ return x * {factor} + OFFSET; }}\n',
        "kernel/shift.cpp": '#include "scale.h"\nint64_t shift(int64_t x) { return x + 1; }\n',
    }
    for name, text in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(text)
    return folder


def build_source(processes: Processes, *sources: Path | str, output: Path, **options: Any) -> Built:
    """Build in a fresh process, as ``kbt hub build`` does."""
    request = {"sources": list(map(str, sources)), "output": str(output), "jobs": 2, **options}
    return Built(*processes.build(request))


def variant_of(output: Path) -> Path:
    """Return the folder of the only build in ``output``."""
    (found,) = output.glob(f"{KERNEL}/build/*")
    return found
