"""The compilers on this machine, and the flags with which they build kernels for this torch."""

from __future__ import annotations

import os
import platform
import re
import shutil
import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.file_io import file_text
from kernels_bench_tools.hub.source import CudaGeneral
from kernels_bench_tools.own_process import run_program

_CXX20_SINCE = (2, 12)
"""The first torch whose headers need C++20."""
_CUTLASS = re.compile(r"cutlass_(\d+)_(\d+)")
_ARCH = re.compile(r"(\d+)\.(\d)([af]?)")


@dataclass(frozen=True)
class Compilers:
    cxx: str
    nvcc: str
    """Empty if there is none."""
    ninja: str
    torch: str
    """Version of torch."""
    cuda: str
    """Version of CUDA that torch was built for; empty if for none."""
    archs: list[str]
    """Requested CUDA compute capabilities."""
    torch_includes: list[str]
    libraries: list[str]

    @cached_property
    def toolkit(self) -> Path:
        said = run_program([self.nvcc, "--dryrun", "-x", "cu", os.devnull])
        top = re.search(r"^#\$ TOP=(.+)$", said.stderr, re.MULTILINE)
        return Path(top[1]).resolve() if top else Path(self.nvcc).resolve().parents[1]

    def check(self, where: str, backend: str, needed: CudaGeneral) -> None:
        """Raise a ``KbtError`` if a compiler is missing, or is not the one for this torch."""
        needs: list[tuple[object, str, str]] = [
            (self.cxx, "no C++ compiler was found", "g++, or CXX with its path"),
            (self.ninja, "ninja was not found", "the package ninja"),
        ]
        if backend == "cuda":
            version = _version_of(self.nvcc) if self.nvcc else ""
            major = self.cuda.partition(".")[0]
            nvcc = f"nvcc {major} on PATH, or CUDA_HOME with its folder"
            fitting = version.partition(".")[0] == major
            supported = _number(needed.minver or "0") <= _number(self.cuda) <= _number(needed.maxver or "999")
            bounds = " to ".join(filter(None, [needed.minver, needed.maxver]))
            needs += [
                (
                    self.cuda,
                    f"torch {self.torch} was built without CUDA",
                    "A torch for CUDA, or --backend cpu",
                ),
                (self.nvcc, f"no CUDA compiler was found for torch's CUDA {self.cuda}", nvcc),
                (fitting, f"nvcc {version} does not match torch's CUDA {self.cuda}", nvcc),
                (self.archs, "no GPU to build for was found", "--arch, such as --arch 9.0a for an H200"),
                (supported, f"does not support CUDA {self.cuda}", f"CUDA {bounds}"),
            ]
        for met, what, expected in needs:
            if not met:
                raise KbtError(where, what, expected)

    def variant(self, backend: str, abi: str) -> str:
        """Return the name of the build's folder, by which ``kernels`` knows what it fits."""
        torch = "torch" + "".join(map(str, _number(self.torch)[:2])) + "-cxx11"
        framework = f"torch-stable-abi{abi.replace('.', '')}" if abi else torch
        device = f"cu{self.cuda.replace('.', '')}" if backend == "cuda" else backend
        return f"{framework}-{device}-{platform.machine()}-{platform.system().lower()}"

    def base_flags(self, backend: str, abi: str, name: str) -> dict[str, list[str]]:
        """Return the flags of every file, for the C++ and for the CUDA compiler."""
        macros = [f"{backend.upper()}_KERNEL", "NDEBUG", f"TORCH_EXTENSION_NAME={name}"]
        if backend == "cuda":
            macros.append("USE_CUDA")
        if abi:
            major, minor = _number(abi)[:2]
            macros.append(f"TORCH_TARGET_VERSION={major << 56 | minor << 48:#018x}")
        standard = "-std=c++20" if _number(self.torch)[:2] >= _CXX20_SINCE else "-std=c++17"
        common = ["-O3", standard, *(f"-D{macro}" for macro in macros)]
        # Unique symbols would be shared by two kernels that have a variable of the same name in a template.
        host = ["-fPIC", "-fno-gnu-unique"]
        nvcc = [
            "--expt-relaxed-constexpr",
            "--expt-extended-lambda",
            *(f"-Xcompiler={flag}" for flag in host),
        ]
        nvcc += ["-ccbin", self.cxx] if "CXX" in os.environ else []
        return {"cxx": [*common, *host]} | ({"nvcc": [*common, *nvcc]} if backend == "cuda" else {})

    def gencode(self, capabilities: Sequence[str]) -> list[str]:
        """Return the options for the architectures of a component with these capabilities; none if it supports none of ours."""
        found, known = [], [(one, _parts(one)[:2]) for one in capabilities]
        for arch in self.archs:
            major, minor, special = _parts(arch)
            same = [one for one, number in known if number == (major, minor)]
            older = [one for one, number in known if number[0] == major and number[1] < minor]
            if not capabilities or (same and special):
                found.append(arch)
            elif same or older:
                found.append(same[0] if same else max(older))
        numbers = ["".join(map(str, _parts(arch))) for arch in dict.fromkeys(found)]
        return [f"-gencode=arch=compute_{number},code=sm_{number}" for number in numbers]

    def includes(self, folder: Path, depends: Sequence[str], cuda: bool) -> list[str]:
        """Return the options for headers of libraries; a ``KbtError`` names one that a component needs and that is missing."""
        found = []
        for name in depends:
            if match := _CUTLASS.fullmatch(name):
                found.append(_find_cutlass(folder, match[1], match[2]))
            elif name != "torch":
                what = f"depends on {name!r}, which is not supported"
                raise KbtError(str(folder), what, "torch or cutlass_MAJOR_MINOR")
        found += [*map(Path, self.torch_includes), Path(sysconfig.get_path("include"))]
        if cuda:
            found += [self.toolkit / "include", *self._packages("include")]
        return [option for folder in found for option in ("-isystem", str(folder))]

    def _packages(self, folder: str) -> list[Path]:
        """Return a folder of each of CUDA's libraries that are installed as Python packages, beside torch."""
        return sorted((Path(self.torch_includes[0]).parents[1] / "nvidia").glob(f"*/{folder}"))

    def link_command(self, backend: str, library: Path, files: Sequence[Path], openmp: bool) -> list[str]:
        """Return the command that links a library and warns about symbols that nothing defines."""
        names, folders = ["c10", "torch", "torch_cpu"], [*self.libraries]
        if backend == "cuda":
            names += ["c10_cuda", "torch_cuda", "cudart"]
            folders += map(str, [*self.toolkit.glob("lib*"), *self._packages("lib")])
        checks = "-Wl,-z,defs,--warn-unresolved-symbols,--no-demangle,-s"
        options = ["-shared", "-fPIC", *(["-fopenmp"] if openmp else []), checks]
        searched = [*(f"-L{one}" for one in folders), *(f"-l{one}" for one in names)]
        return [self.cxx, *map(str, files), "-o", str(library), *options, *searched]

    def versions(self, backend: str) -> list[str]:
        used = [self.cxx, *([self.nvcc] if backend == "cuda" else [])]
        return [f"{Path(compiler).name} {_version_of(compiler)}" for compiler in used]


def find_compilers(archs: Sequence[str]) -> Compilers:
    """Return the compilers, torch, and the requested capabilities, by default those of the GPU here."""
    import torch
    from torch.utils.cpp_extension import CUDA_HOME, include_paths, library_paths

    for arch in archs:
        if not _ARCH.fullmatch(arch):
            raise KbtError("--arch", f"{arch!r} is not a compute capability", "One such as 9.0a or 8.0")
    if not archs and torch.cuda.is_available():
        major, minor = torch.cuda.get_device_capability()
        archs = [f"{major}.{minor}" + ("a" if major >= 9 else "")]
    path = os.pathsep.join([f"{CUDA_HOME}/bin", os.environ.get("PATH", "")])
    return Compilers(
        cxx=shutil.which(os.environ.get("CXX", "g++")) or "",
        nvcc=shutil.which("nvcc", path=path) or "",
        ninja=shutil.which("ninja") or "",
        torch=str(torch.__version__),
        cuda=torch.version.cuda or "",
        archs=list(archs),
        torch_includes=include_paths("cpu"),
        libraries=library_paths("cpu"),
    )


def _find_cutlass(folder: Path, major: str, minor: str) -> Path:
    for header in sorted(folder.parent.glob("*cutlass*/include/cutlass/version.h")):
        found = dict(re.findall(r"#define CUTLASS_(MAJOR|MINOR) (\d+)", file_text(header)))
        if (found.get("MAJOR"), found.get("MINOR")) == (major, minor):
            return header.parents[1]
    expected = f"{folder.parent}/cutlass-{major}.{minor}.0 with include/cutlass/version.h of that version"
    remedy = f"Clone the tag v{major}.{minor}.0 of https://github.com/NVIDIA/cutlass there"
    raise KbtError(str(folder), f"needs the headers of CUTLASS {major}.{minor}", expected, remedy)


def _parts(arch: str) -> tuple[int, int, str]:
    match = _ARCH.match(arch)
    return (int(match[1]), int(match[2]), match[3]) if match else (0, 0, "")


def _number(version: str) -> tuple[int, ...]:
    return tuple(map(int, re.findall(r"\d+", version.partition("+")[0])))


def _version_of(compiler: str) -> str:
    said = run_program([compiler, "--version"]).stdout
    match = re.search(r"release (\d+\.\d+)", said) or re.search(r"(\d+\.\d+\.\d+)", said)
    return match[1] if match else "unknown"
