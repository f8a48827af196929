"""The process that ``kbt hub build`` starts: compiles kernels from source for this torch, and assembles their builds."""

from __future__ import annotations

import fcntl
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.file_io import open_regular, read_file, update_file, write_atomically, write_struct
from kernels_bench_tools.hub.build.compilers import Compilers, find_compilers
from kernels_bench_tools.hub.build.plan import Plan, make_plan
from kernels_bench_tools.hub.source import read_source
from kernels_bench_tools.own_folders import clear_file, make_folder, remove_tree
from kernels_bench_tools.own_process import module_variables, run_program
from kernels_bench_tools.records.hub import LEFT_OUT, SOURCE_BUILD_FILE, BuildRequest, SourceBuild
from kernels_bench_tools.text.words import abbreviated, plural

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
_STUBS = f"""\
#include <stdexcept>
#define LEFT_OUT(name) extern "C" void name() {{ throw std::runtime_error(#name " {LEFT_OUT}"); }}
"""
_UNDEFINED = re.compile(r"undefined reference to `([^']+)'")
_MISSING_HEADER = re.compile(r"fatal error: ([^\s:]+): No such file")


def main(request: BuildRequest) -> int:
    """Build the kernels; return 0, or 1 if one does not compile."""
    output = Path(request.output)
    make_folder(output)
    with open_regular(output / ".lock", "ab") as lock:
        # Two builds at once would write the same objects.
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print(f"another kbt hub build is writing to {output}; waiting for it", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        sources = [read_source(Path(text).expanduser()) for text in request.sources]
        compilers = find_compilers(request.archs)
        plans = [make_plan(source, request, compilers) for source in sources]
        if request.archs and all(plan.backend != "cuda" for plan in plans):
            raise KbtError(f"--arch {request.archs[0]}", "these builds are for CPUs", "--backend cuda")
        for folder in (output / ".ninja", *(plan.work for plan in plans)):
            make_folder(folder, output)
            for path in list(folder.rglob("*")):  # compilers and ninja write there, and would follow a link
                if path.is_symlink() or not path.is_dir():
                    clear_file(path)
        failures = _compile(plans, output, compilers, request.jobs)
        for plan in plans:
            reason = failures.get(plan.folder) or _finish(plan, request, compilers)
            said = reason or plural(len(plan.objects), "file")
            print(f"{'✗' if reason else '✓'} {plan.source.repo}  {plan.variant}  {said}", flush=True)
            failures |= {plan.folder: reason} if reason else {}
    return 1 if failures else 0


def _compile(plans: Sequence[Plan], output: Path, compilers: Compilers, jobs: int) -> dict[Path, str]:
    """Compile the objects of all kernels in one run of ninja; return why a kernel failed, by its folder."""
    plans = [plan for plan in plans if plan.objects]
    if not plans:
        return {}
    for plan in plans:
        # Objects that are older than the header are compiled again.
        update_file(plan.work / "torch-ext" / "registration.h", _REGISTRATION.encode())
    update_file(output / "build.ninja", "\n".join(_ninja_lines(plans, compilers)).encode())
    failed: dict[str, list[str]] = {}
    log, target = output / "build.log", ""
    command = [compilers.ninja, "-k", "0", "-j", str(jobs)]
    # Ninja prints a file when it is compiled, which can take minutes.
    files = plural(sum(len(plan.objects) for plan in plans), "file")
    print(f"{files}, {jobs} in parallel; unchanged files are not compiled again", flush=True)
    environment = {**module_variables(os.environ), "NINJA_STATUS": "[%f/%t %es] "}
    pipes: Any = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, "errors": "replace"}
    with (
        open_regular(log, "wb") as kept,
        subprocess.Popen(command, cwd=output, env=environment, **pipes) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            kept.write(line.encode())
            if line.startswith("["):
                target = ""
                print(line, end="", flush=True)
            elif line.startswith("FAILED: "):
                target = line.split()[-1]
            if target:
                failed.setdefault(target, []).append(line.strip())
    failures, stopped = {}, process.returncode != 0 and not failed
    for plan in plans:
        if lost := [path for path in plan.objects if stopped or str(path) in failed or not path.exists()]:
            said = [line for path in lost for line in failed.get(str(path), [])]
            count = f"{len(lost)} of {len(plan.objects)} files"
            failures[plan.folder] = f"{count} do not compile: {_explain(said)}; see {log}"
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
        # Messages of checks contain the names of source files, and end up in records that are published.
        folders = (plan.source.folder.parent, *compilers.torch_includes)
        unnamed = [f"-ffile-prefix-map={folder}/=" for folder in folders]
        named = {"cxx": unnamed, "nvcc": [f"-Xcompiler={flag}" for flag in unnamed]}
        for path, (source, component) in plan.objects.items():
            rule = "nvcc" if source.suffix == ".cu" else "cxx"
            own = [*plan.includes[component], *plan.flags[f"{component} {rule}"]]
            options = [*plan.flags[rule], *own, *named[rule]]
            flags = shlex.join(options).replace("$", "$$")
            made, read = (re.sub(r"([$ :])", r"$\1", str(each)) for each in (path, source))
            yield f"build {made}: {rule} {read}"
            yield from (f"  flags = {flags}", f"  name = {plan.source.repo} {source.name}")
    yield ""


def _finish(plan: Plan, request: BuildRequest, compilers: Compilers) -> str:
    """Link and assemble a build in place of an earlier one; return why it failed, or an empty string."""
    folder, output = plan.work / "assembled", Path(request.output)
    remove_tree(folder, output, strict=True)
    for path in plan.source.python_files():
        target = folder / path.relative_to(plan.source.package)
        make_folder(target.parent, output)
        update_file(target, read_file(path))
    if not (folder / "__init__.py").is_file():
        return f"{plan.source.package} has no __init__.py"
    if plan.objects and (reason := _link(plan, folder / f"{plan.id}.abi3.so", compilers)):
        return reason
    load = _LOAD.format(id=plan.id) if plan.objects else ""
    update_file(folder / "_ops.py", _OPS.format(id=plan.id, load=load).encode())
    _describe(plan, folder, request, compilers)
    target = plan.folder / "build" / plan.variant
    make_folder(target.parent, output)
    remove_tree(target, output, strict=True)
    folder.rename(target)
    return ""


def _link(plan: Plan, library: Path, compilers: Compilers) -> str:
    """Link the objects; functions that were left out throw an exception. Return why it failed."""
    openmp = any("-fopenmp" in flags for flags in plan.flags.values())

    def link(*more: Path) -> tuple[subprocess.CompletedProcess[str], list[str]]:
        done = run_program(compilers.link_command(plan.backend, library, [*plan.objects, *more], openmp))
        # Those of Python are in the process that loads the library.
        names = {name for name in _UNDEFINED.findall(done.stderr) if not name.lstrip("_").startswith("Py")}
        return done, sorted(names)

    done, missing = link()
    if done.returncode == 0 and missing and plan.left_out:
        stubs = plan.work / "left_out.cpp"
        # A name without C++'s prefix is of a library, not of a kernel's file.
        names = [name for name in missing if name.startswith("_Z")]
        update_file(stubs, (_STUBS + "".join(f"LEFT_OUT({name})\n" for name in names)).encode())
        done, missing = link(stubs)
    if done.returncode == 0 and not missing:
        return ""
    if missing:
        return f"undefined symbols: {abbreviated(missing)}"
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
    except (KbtError, OSError) as error:
        if isinstance(error, OSError):
            error = KbtError(str(error.filename), f"cannot be used ({error.strerror})", "", "Move it away")
        print(f"kbt: {error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        sys.exit(130)  # `kbt` prints the message
