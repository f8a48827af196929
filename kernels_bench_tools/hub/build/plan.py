"""What to compile for a kernel, with which flags, and what to leave out."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from pathlib import Path

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.hub.build.compilers import Compilers
from kernels_bench_tools.hub.source import Component, KernelSource, is_compiled, is_wanted
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
    general = source.file.general
    backend = request.backend or ("cuda" if compilers.cuda and "cuda" in general.backends else "cpu")
    if backend not in general.backends or backend not in BACKENDS:
        what = f"has no back end {backend!r} that can be built here; its back ends: {', '.join(general.backends)}"
        possible = [f"--backend {name}" for name in BACKENDS if name in general.backends]
        expected = " or ".join(possible) or f"A kernel with one of {', '.join(BACKENDS)}"
        raise KbtError(str(source.folder), what, expected)
    if source.file.torch is None:
        return _named(source, backend, f"torch-{backend}", request)
    abi = source.file.torch.stable_abi
    abi = abi.get(backend, "") if isinstance(abi, dict) else abi
    compilers.check(str(source.folder), backend, general.cuda)
    plan = _named(source, backend, compilers.variant(backend, abi), request)
    plan.flags = compilers.base_flags(backend, abi, plan.id)
    wanted = {name: one for name, one in source.file.kernel.items() if one.backend == backend}
    binding = source.file.torch
    wanted["torch"] = Component(
        backend=backend,
        src=binding.src,
        cxx_flags=binding.cxx_flags,
        include=[
            *binding.include,
            *(folder for component in wanted.values() for folder in component.include),
        ],
        depends=sorted({depend for component in wanted.values() for depend in component.depends}),
    )
    for name, component in wanted.items():
        _add_component(plan, name, component, request, compilers)
    sources = plan.objects.values()
    # A kernel for CPUs may be a single file with its bindings.
    kernels = any(path.suffix == ".cu" if backend == "cuda" else name != "torch" for path, name in sources)
    if not kernels and (backend == "cuda" or plan.left_out):
        why = f"left out are {'; '.join(plan.left_out)}" if plan.left_out else "no CUDA file"
        raise KbtError(str(source.folder), f"has nothing to compile: {why}")
    return plan


def _named(source: KernelSource, backend: str, variant: str, request: BuildRequest) -> Plan:
    # Not of the sources or of --only: with another name every object would be compiled again.
    digest = hashlib.sha256(f"{source.repo}\n{variant}".encode()).hexdigest()
    name = f"_{source.package.name}_{backend}_{digest[:8]}"
    return Plan(source, backend, Path(request.output) / source.repo, variant, name)


def _add_component(
    plan: Plan, name: str, component: Component, request: BuildRequest, compilers: Compilers
) -> None:
    source, cuda = plan.source, plan.backend == "cuda"
    archs = compilers.archs_of(component.cuda_capabilities) if cuda else []
    if cuda and not archs:
        plan.left_out.append(f"{name}: for {', '.join(component.cuda_capabilities)} only")
        return
    folders = [plan.work, plan.work / "torch-ext", *(source.folder / name for name in component.include)]
    plan.includes[name] = [
        *(f"-I{folder}" for folder in folders),
        *compilers.includes(source.folder, component.depends, cuda),
    ]
    plan.flags[f"{name} cxx"] = component.cxx_flags
    plan.flags[f"{name} nvcc"] = [*compilers.gencode(archs), *component.cuda_flags]
    compiled = [path for path in component.src if is_compiled(path)]
    kept = [path for path in compiled if name == "torch" or is_wanted(path, request.only, cuda)]
    if len(kept) < len(compiled):
        plan.left_out.append(f"{name}: {len(compiled) - len(kept)} of {len(compiled)} files, by --only")
    for one in kept:
        if not (source.folder / one).is_file():
            raise KbtError(
                str(source.folder / one), f"is missing, but [kernel.{name}] of build.toml lists it"
            )
        plan.objects[plan.work / name / f"{one.replace('/', '-')}.o"] = (source.folder / one, name)
