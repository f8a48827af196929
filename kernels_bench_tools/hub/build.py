"""The process that ``kbt hub build`` starts: compiles kernels from source for this torch, and assembles their builds."""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.file_io import write_atomically, write_struct
from kernels_bench_tools.hub.compilers import Compilers, find_compilers, missing_symbols
from kernels_bench_tools.hub.source import Component, KernelSource, find_source, is_compiled, is_wanted
from kernels_bench_tools.schema.hub import SOURCE_BUILD_FILE, BuildRequest, SourceBuild

BACKENDS = ("cuda", "cpu")
_REGISTRATION = """\
#pragma once
#define TORCH_LIBRARY_EXPAND(name, ops) TORCH_LIBRARY(name, ops)
#define TORCH_LIBRARY_IMPL_EXPAND(name, key, ops) TORCH_LIBRARY_IMPL(name, key, ops)
#define STABLE_TORCH_LIBRARY_EXPAND(name, ops) STABLE_TORCH_LIBRARY(name, ops)
#define STABLE_TORCH_LIBRARY_IMPL_EXPAND(name, key, ops) STABLE_TORCH_LIBRARY_IMPL(name, key, ops)
// Loading the library registers its operators; it needs no Python module.
#define REGISTER_EXTENSION(name)
"""
_OPS = '''\
"""The operators of this build."""

import torch
{load}
ops = torch.ops.{id}


def add_op_namespace_prefix(name: str) -> str:
    """Return the name of an operator with its namespace."""
    return f"{id}::{{name}}"
'''
# torch.ops.load_library would export its symbols to every other library of the process.
_LOAD = """\
import ctypes
import os

_library = ctypes.CDLL(os.path.join(os.path.dirname(__file__), "{id}.abi3.so"), mode=os.RTLD_NOW | os.RTLD_LOCAL)
"""
_STUBS = """\
#include <stdexcept>
#define LEFT_OUT(name) extern "C" void name() { throw std::runtime_error(#name " was left out of this build from source"); }
"""
_MISSING_HEADER = re.compile(r"fatal error: ([^\s:]+): No such file")


@dataclass
class Plan:
    """What to compile for one kernel, and where to."""

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


def main(request: BuildRequest) -> int:
    """Build the kernels; return 0, or 2 if one does not compile."""
    output = Path(request.output)
    output.mkdir(parents=True, exist_ok=True)
    with (output / ".lock").open("w") as lock:
        # Two builds at once would write the same objects.
        fcntl.flock(lock, fcntl.LOCK_EX)
        sources = [find_source(text, output / ".sources") for text in request.sources]
        compilers = find_compilers(request.archs)
        plans = [make_plan(source, request, compilers) for source in sources]
        failures = _compile(plans, output, compilers, request.jobs)
        for plan in plans:
            reason = failures.get(plan.folder) or _finish(plan, request, compilers)
            done = f"{len(plan.objects)} files, compiled in {_seconds(plan, output):.0f} s of all cores"
            name = f"{plan.source.repo}  {plan.variant}  "
            print(f"✗ {name}{reason}" if reason else f"✓ {name}{done}", flush=True)
            failures |= {plan.folder: reason} if reason else {}
    return 2 if failures else 0


def make_plan(source: KernelSource, request: BuildRequest, compilers: Compilers) -> Plan:
    """Return what to compile of a kernel; a ``KbtError`` states why it cannot be built here."""
    general = source.file.general
    backend = request.backend or ("cuda" if compilers.cuda and "cuda" in general.backends else "cpu")
    if backend not in general.backends or backend not in BACKENDS:
        what = f"has no back end {backend!r} that can be built here; its back ends: {', '.join(general.backends)}"
        raise KbtError(str(source.folder), what, f"--backend with one of {', '.join(BACKENDS)}")
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
        include=[*binding.include, *(folder for one in wanted.values() for folder in one.include)],
        depends=sorted({depend for one in wanted.values() for depend in one.depends}),
    )
    for name, component in wanted.items():
        _add_component(plan, name, component, request, compilers)
    if backend == "cuda" and not any(path.suffix == ".cu" for path, _ in plan.objects.values()):
        raise KbtError(
            str(source.folder), f"has nothing to compile: {'; '.join(plan.left_out) or 'no CUDA file'}"
        )
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
    folders = [plan.work, plan.work / "torch-ext", *(source.folder / one for one in component.include)]
    plan.includes[name] = [
        *(f"-I{folder}" for folder in folders),
        *compilers.includes(source.folder, component.depends, cuda),
    ]
    plan.flags[f"{name} cxx"] = component.cxx_flags
    plan.flags[f"{name} nvcc"] = [*compilers.gencode(archs), *component.cuda_flags]
    compiled = [one for one in component.src if is_compiled(one)]
    kept = [one for one in compiled if name == "torch" or is_wanted(one, request.only, cuda)]
    if len(kept) < len(compiled):
        plan.left_out.append(f"{name}: {len(compiled) - len(kept)} of {len(compiled)} files, by --only")
    for one in kept:
        if not (source.folder / one).is_file():
            raise KbtError(
                str(source.folder / one), f"is missing, but [kernel.{name}] of build.toml lists it"
            )
        plan.objects[plan.work / name / f"{one.replace('/', '-')}.o"] = (source.folder / one, name)


def _compile(plans: Sequence[Plan], output: Path, compilers: Compilers, jobs: int) -> dict[Path, str]:
    """Compile the objects of all kernels in one run of ninja; return why a kernel failed, by its folder."""
    plans = [plan for plan in plans if plan.objects]
    if not plans:
        return {}
    for plan in plans:
        header = plan.work / "torch-ext" / "registration.h"
        header.parent.mkdir(parents=True, exist_ok=True)
        # Objects that are older than the header are compiled again.
        if not header.exists() or header.read_text(encoding="utf-8") != _REGISTRATION:
            header.write_text(_REGISTRATION, encoding="utf-8")
    (output / "build.ninja").write_text("\n".join(_ninja_lines(plans, compilers)), encoding="utf-8")
    failed: dict[str, list[str]] = {}
    log, target = output / "build.log", ""
    command = [compilers.ninja, "-k", "0", "-j", str(jobs)]
    environment = {**os.environ, "NINJA_STATUS": "[%f/%t %es] "}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with log.open("w") as kept, subprocess.Popen(command, cwd=output, env=environment, **pipes) as process:
        assert process.stdout is not None
        for line in process.stdout:
            kept.write(line)
            if line.startswith("["):
                target = ""
                print(line, end="", flush=True)
            elif line.startswith("FAILED: "):
                target = line.split()[-1]
            if target:
                failed.setdefault(target, []).append(line.strip())
    failures = {}
    for plan in plans:
        if lost := [path for path in plan.objects if str(path) in failed or not path.exists()]:
            said = [line for path in lost for line in failed.get(str(path), [])]
            failures[plan.folder] = (
                f"{len(lost)} of {len(plan.objects)} files do not compile: {_explain(said)}; see {log}"
            )
    return failures


def _explain(said: Sequence[str]) -> str:
    """Return in one line why the compilers failed."""
    if headers := sorted({match[1] for line in said if (match := _MISSING_HEADER.search(line))}):
        advice = "those of CUDA's libraries are in packages such as nvidia-cublas and nvidia-cusparse"
        return f"the headers {', '.join(headers)} are missing ({advice})"
    return next((line[:200] for line in said if "error" in line and "FAILED: " not in line), "interrupted")


def _ninja_lines(plans: Sequence[Plan], compilers: Compilers) -> Iterator[str]:
    yield from ("ninja_required_version = 1.5", "builddir = .ninja")
    for rule, compiler, depend in (("cxx", compilers.cxx, "-MMD"), ("nvcc", compilers.nvcc, "-MD")):
        yield f"rule {rule}"
        yield f"  command = {compiler} {depend} -MF $out.d $flags -c $in -o $out"
        yield from ("  depfile = $out.d", "  deps = gcc", "  description = $name")
    for plan in plans:
        for path, (source, component) in plan.objects.items():
            rule = "nvcc" if source.suffix == ".cu" else "cxx"
            options = [*plan.includes[component], *plan.flags[rule], *plan.flags[f"{component} {rule}"]]
            flags = shlex.join(options).replace("$", "$$")
            yield f"build {_escaped(path)}: {rule} {_escaped(source)}"
            yield from (f"  flags = {flags}", f"  name = {plan.source.repo} {source.name}")
    yield ""


def _seconds(plan: Plan, output: Path) -> float:
    """Return how long compiling the objects took, those of earlier runs included: the sum over cores."""
    log = output / ".ninja" / ".ninja_log"
    lines = log.read_text(encoding="utf-8").splitlines() if plan.objects and log.exists() else []
    times = {parts[3]: int(parts[1]) - int(parts[0]) for line in lines if len(parts := line.split("\t")) == 5}
    return sum(times.get(str(path), 0) for path in plan.objects) / 1000


def _escaped(path: Path) -> str:
    return re.sub(r"([$ :])", r"$\1", str(path))


def _finish(plan: Plan, request: BuildRequest, compilers: Compilers) -> str:
    """Link and assemble a build in place of an earlier one; return why it failed, or an empty string."""
    folder = plan.work / "assembled"
    shutil.rmtree(folder, ignore_errors=True)
    for path in plan.source.python_files():
        target = folder / path.relative_to(plan.source.package)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, target)
    if not (folder / "__init__.py").is_file():
        return f"{plan.source.package} has no __init__.py"
    if plan.objects and (reason := _link(plan, folder / f"{plan.id}.abi3.so", compilers)):
        return reason
    load = _LOAD.format(id=plan.id) if plan.objects else ""
    (folder / "_ops.py").write_text(_OPS.format(id=plan.id, load=load), encoding="utf-8")
    _describe(plan, folder, request, compilers)
    target = plan.folder / "build" / plan.variant
    shutil.rmtree(target, ignore_errors=True)
    target.parent.mkdir(parents=True, exist_ok=True)
    folder.rename(target)
    return ""


def _link(plan: Plan, library: Path, compilers: Compilers) -> str:
    """Link the objects; functions that were left out throw an exception. Return why it failed."""
    openmp = any("-fopenmp" in flags for flags in plan.flags.values())
    command = compilers.link_command(plan.backend, library, [*plan.objects], openmp)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    missing = missing_symbols(done.stderr)
    if done.returncode == 0 and missing and plan.left_out:
        stubs = plan.work / "left_out.cpp"
        stubs.write_text(_STUBS + "".join(f"LEFT_OUT({name})\n" for name in missing), encoding="utf-8")
        command = compilers.link_command(plan.backend, library, [*plan.objects, stubs], openmp)
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        missing = missing_symbols(done.stderr)
    if done.returncode == 0 and not missing:
        return ""
    if missing:
        return f"no source defines {', '.join(missing[:3])}"
    last = (done.stderr.strip().splitlines() or ["no output"])[0]
    return f"the linker failed: {last[:200]}. If an object is damaged, remove {plan.work} and build again"


def _describe(plan: Plan, folder: Path, request: BuildRequest, compilers: Compilers) -> None:
    """Write how the build was made, and the metadata that ``kernels`` reads, with the digests of all files."""
    from kernels._rust import Digest, DigestAlgorithm

    general = plan.source.file.general
    archs = compilers.archs if plan.backend == "cuda" and plan.objects else []
    commit, dirty = plan.source.commit()
    made = SourceBuild(
        repository=plan.source.repo,
        commit=commit or request.commit,
        dirty=dirty,
        source=str(plan.source.folder),
        source_digest=plan.source.digest(),
        torch=compilers.torch,
        archs=archs,
        compilers=compilers.versions(plan.backend) if plan.objects else [],
        flags={name: flags for name, flags in plan.flags.items() if flags},
        left_out=plan.left_out,
    )
    write_struct(folder / SOURCE_BUILD_FILE, made)
    depends = [*general.python_depends, *(general.cuda.python_depends if plan.backend == "cuda" else [])]
    files = Digest.hash_variant(DigestAlgorithm.SHA256, folder).files
    described = {
        "id": plan.id,
        "name": general.name,
        "version": general.version,
        "license": general.license,
        "python-depends": depends,
        "kernel-depends": general.kernel_depends,
        "backend": {"type": plan.backend, **({"archs": archs} if archs else {})},
        "digest": {"algorithm": "sha256", "files": files},
    }
    write_atomically(folder / "metadata.json", msgspec.json.format(msgspec.json.encode(described)) + b"\n")


if __name__ == "__main__":
    try:
        sys.exit(main(msgspec.json.decode(sys.argv[1], type=BuildRequest)))
    except KbtError as error:
        print(f"kbt: {error}", file=sys.stderr)
        sys.exit(1)
