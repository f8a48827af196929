"""What to compile for a kernel, with which flags, and what to leave out."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.hub.build.compilers import Compilers
from kernels_bench_tools.hub.source import COMPILED, Component, KernelSource
from kernels_bench_tools.own_folders import path_below
from kernels_bench_tools.records.hub import BuildRequest

BACKENDS = ("cuda", "cpu")


@dataclass
class Plan:
    source: KernelSource
    backend: str
    folder: Path
    """``OUTPUT/organization/name``."""
    variant: str
    id: str
    """Name of the operators' namespace and of the library."""
    objects: dict[Path, tuple[Path, str]] = field(default_factory=dict)
    """Object to its source and the name of its component."""
    flags: dict[str, list[str]] = field(default_factory=dict)
    """Flags of all files by the compiler, and of a component's files by component and compiler."""
    includes: dict[str, list[str]] = field(default_factory=dict)
    """Options for the folders of headers, by component."""
    left_out: list[str] = field(default_factory=list)

    @property
    def work(self) -> Path:
        """The folder of its objects."""
        return self.folder / "objects" / self.variant


def make_plan(source: KernelSource, request: BuildRequest, compilers: Compilers) -> Plan:
    general, binding = source.file.general, source.file.torch
    backend = request.backend or ("cuda" if compilers.cuda and "cuda" in general.backends else "cpu")
    if backend not in general.backends or backend not in BACKENDS:
        what = f"cannot be built for {backend!r} (its back ends: {', '.join(general.backends)})"
        possible = [f"--backend {name}" for name in BACKENDS if name in general.backends]
        expected = " or ".join(possible) or f"A kernel with one of {', '.join(BACKENDS)}"
        raise KbtError(str(source.folder), what, expected)
    variant, abi = f"torch-{backend}", binding.stable_abi if binding else ""
    abi = abi.get(backend, "") if isinstance(abi, dict) else abi
    if abi and not re.fullmatch(r"\d{1,3}\.\d{1,3}", abi):
        where = f"{source.folder / 'build.toml'}: stable-abi"
        raise KbtError(where, f"{abi[:99]!r} is no version", "One such as 2.10")
    if binding:
        compilers.check(str(source.folder), backend, general.cuda)
        variant = compilers.variant(backend, abi)
    # Not of the sources or of --only: with another name every object would be compiled again.
    digest = hashlib.sha256(f"{source.repo}\n{variant}".encode()).hexdigest()
    name = f"_{source.package.name}_{backend}_{digest[:8]}"
    folder = path_below(Path(request.output), source.repo, where=f"{source.folder / 'build.toml'}: repo-id")
    plan = Plan(source, backend, folder, variant, name)
    if binding is None:
        return plan
    plan.flags = compilers.base_flags(backend, abi, plan.id)
    kernels = {name: one for name, one in source.file.kernel.items() if one.backend == backend}
    bindings = Component(
        backend=backend,
        src=binding.src,
        cxx_flags=binding.cxx_flags,
        include=[*binding.include, *(folder for one in kernels.values() for folder in one.include)],
        depends=sorted({depend for one in kernels.values() for depend in one.depends}),
    )
    for name, component in {**kernels, "torch": bindings}.items():
        _add_component(plan, name, component, request, compilers)
    sources = plan.objects.values()
    # A kernel for CPUs may be a single file with its bindings.
    compiled = any(path.suffix == ".cu" if backend == "cuda" else name != "torch" for path, name in sources)
    if not compiled and (backend == "cuda" or plan.left_out):
        why = f"left out: {'; '.join(plan.left_out)}" if plan.left_out else "no CUDA file"
        raise KbtError(str(source.folder), f"has nothing to compile ({why})")
    return plan


def _add_component(
    plan: Plan, name: str, component: Component, request: BuildRequest, compilers: Compilers
) -> None:
    folder, cuda = plan.source.folder, plan.backend == "cuda"
    architectures = compilers.gencode(component.cuda_capabilities) if cuda else []
    if cuda and not architectures:
        plan.left_out.append(f"{name}: for {', '.join(component.cuda_capabilities)} only")
        return
    headers = [
        plan.work,
        plan.work / "torch-ext",
        *(folder if path == "." else plan.source.path(path) for path in component.include),
    ]
    plan.includes[name] = [
        *(f"-I{path}" for path in headers),
        *compilers.includes(folder, component.depends, cuda),
    ]
    plan.flags[f"{name} cxx"] = component.cxx_flags
    plan.flags[f"{name} nvcc"] = [*architectures, *component.cuda_flags]
    compiled = [path for path in component.src if Path(path).suffix in COMPILED]  # others are headers
    kept = [
        path
        for path in compiled
        # --only applies neither to the bindings nor to C++ files of CUDA kernels.
        if name == "torch"
        or not request.only
        or (cuda and not path.endswith(".cu"))
        or any(fnmatchcase(path, pattern) for pattern in request.only)
    ]
    if len(kept) < len(compiled):
        plan.left_out.append(f"{name}: {len(compiled) - len(kept)} of {len(compiled)} files, by --only")
    for path in kept:
        if not (file := plan.source.path(path)).is_file():
            raise KbtError(str(file), f"is missing, but [kernel.{name}] of build.toml lists it")
        made = path_below(plan.work, f"{name}/{path.replace('/', '-')}", ".o", where=str(file))
        plan.objects[made] = (file, name)
