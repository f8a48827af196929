"""The source of a kernel: its ``build.toml``, its files, and the commit that they are from."""

from __future__ import annotations

import hashlib
import re
import subprocess
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.file_io import file_digest, read_file
from kernels_bench_tools.git import run_git
from kernels_bench_tools.own_folders import path_below
from kernels_bench_tools.text.foreign import parse_toml

EDITION = 5
COMPILED = {".c", ".cc", ".cpp", ".cu", ".cxx"}
_READ = {*COMPILED, ".cuh", ".h", ".hpp", ".inl", ".json", ".py", ".pyi", ".toml"}

_HIDDEN = re.compile(r"build/|(.*/)?\.")


class Hub(msgspec.Struct, rename="kebab"):
    """``[general.hub]``."""

    repo_id: str = ""


class CudaGeneral(msgspec.Struct, rename="kebab"):
    """``[general.cuda]``."""

    minver: str = ""
    maxver: str = ""
    python_depends: list[str] = []


class General(msgspec.Struct, rename="kebab"):
    """``[general]``."""

    name: str
    backends: list[str]
    version: int | None = None
    edition: int = EDITION
    """Files without it are older and have the same keys."""
    license: str = "unknown"
    hub: Hub = msgspec.field(default_factory=Hub)
    cuda: CudaGeneral = msgspec.field(default_factory=CudaGeneral)
    python_depends: list[str] = []
    kernel_depends: list[dict[str, Any]] = []


class Binding(msgspec.Struct, rename="kebab"):
    """``[torch]`` or ``[torch-noarch]``."""

    src: list[str] = []
    include: list[str] = []
    cxx_flags: list[str] = []
    pyext: list[str] = []
    stable_abi: str | dict[str, str] = ""
    """Torch version, of all backends or of each."""


class Component(msgspec.Struct, rename="kebab"):
    """``[kernel.NAME]``."""

    backend: str
    src: list[str]
    depends: list[str] = []
    include: list[str] = []
    cuda_capabilities: list[str] = []
    cuda_flags: list[str] = []
    cxx_flags: list[str] = []


class BuildFile(msgspec.Struct, rename="kebab"):
    """``build.toml``, as far as it is used here."""

    general: General
    torch: Binding | None = None
    torch_noarch: Binding | None = None
    kernel: dict[str, Component] = {}


@dataclass(frozen=True)
class KernelSource:
    """A folder with a kernel's ``build.toml``."""

    folder: Path
    file: BuildFile

    @property
    def repo(self) -> str:
        """The kernel's name on the Hub, ``organization/name``."""
        return self.file.general.hub.repo_id or f"local/{self.file.general.name}"

    def path(self, text: str) -> Path:
        """Return the path that a text of ``build.toml`` names in the source."""
        return path_below(self.folder, text, where=str(self.folder / "build.toml"))

    @property
    def package(self) -> Path:
        """The folder of its Python files."""
        return self.path(f"torch-ext/{self.file.general.name.replace('-', '_')}")

    def python_files(self) -> list[Path]:
        """Return the Python files, and the data files that ``pyext`` names."""
        binding = self.file.torch or self.file.torch_noarch or Binding()
        kinds = {".py", ".pyi", *(f".{kind.lstrip('.')}" for kind in binding.pyext)}
        return [path for path in self._files(kinds) if path.is_relative_to(self.package)]

    def digest(self) -> str:
        """Return the SHA-256 over the files that a build reads."""
        digest = hashlib.sha256()
        for path in self._files(_READ):
            digest.update(f"{path.relative_to(self.folder).as_posix()}\0{file_digest(path)}\n".encode())
        return digest.hexdigest()

    def _files(self, kinds: Collection[str]) -> list[Path]:
        """Return the files with one of these endings, without hidden ones and those of ``build/``."""
        paths = sorted(path for path in self.folder.rglob("*") if path.suffix in kinds)
        names = (path.relative_to(self.folder).as_posix() for path in paths)
        return [path for name in names if not _HIDDEN.match(name) and (path := self.path(name)).is_file()]

    def commit(self) -> tuple[str, bool | None]:
        """Return the Git commit and whether files differ from it; empty and None outside a repository."""
        try:
            self._git("ls-files", "--error-unmatch", "build.toml")
            return self._git("rev-parse", "HEAD"), bool(self._git("status", "--porcelain", "--", "."))
        except (OSError, subprocess.CalledProcessError):
            return "", None

    def _git(self, *arguments: str) -> str:
        done = run_git(self.folder, *arguments)
        done.check_returncode()
        return done.stdout.decode(errors="replace").strip()


def read_source(folder: Path) -> KernelSource:
    """Return the kernel whose source is in ``folder``; a ``KbtError`` states why there is none."""
    path = folder / "build.toml"
    try:
        file = msgspec.convert(parse_toml(read_file(path)), BuildFile)
    except OSError as error:
        remedy = "`git clone https://github.com/huggingface/kernels-community` has a folder for each kernel"
        expected = "The source folder of a kernel"
        raise KbtError(str(path), f"cannot be read ({error.strerror})", expected, remedy) from None
    except ValueError as error:
        raise KbtError(str(path), f"is not valid ({error})", "The format of kernel-builder") from None
    if file.general.edition != EDITION:
        raise KbtError(str(path), f"has edition {file.general.edition}", f"{EDITION}, or none")
    if file.torch is None and file.torch_noarch is None:
        raise KbtError(str(path), "has no [torch] or [torch-noarch]", "A kernel for torch")
    return KernelSource(folder.resolve(), file)
