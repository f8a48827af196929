"""Shared by the tests of operators."""

import importlib.util
from collections.abc import Callable
from pathlib import Path

import pytest
from fork_server import ForkServer

Run = Callable[..., str]

TRITON = """
import torch
import triton.language
from triton.runtime.autotuner import Autotuner

import kernels_bench_tools.measure.harness

# Triton 3.7 also times a configuration that is the only one.
Autotuner.do_bench = lambda self, kernel_call, quantiles: [0.0]
"""
INTERPRETER = """
from triton.language import core, semantic
from triton.runtime import interpreter
import triton.language as tl


# Where one function of a kernel calls another, the interpreter replaces all of triton.language once more, which took
# 2.7 ms a call and half the time of these tests: once for each launch is enough.
def call(self, *arguments, **options):
    modules = [value for value in self.fn.__globals__.values() if value is tl or value is core]
    if any(core.is_builtin(module.load) for module in modules):
        interpreter._patch_lang(self.fn)
    return self.rewrite()(*arguments, **options)


interpreter.InterpretedFunction.__call__ = call


# It also makes the types of its blocks anew in each operation, which took a third of the rest: once for each name is enough.
blocks, extents, arrays = {}, {}, {}


def describe_block(self, element, shape, describe=core.block_type.__init__):
    sizes = shape.value if isinstance(shape, core.constexpr) else shape
    name = element.name, *[one.value if isinstance(one, core.constexpr) else one for one in sizes]
    if name not in blocks:
        describe(self, element, shape)
        blocks[name] = vars(self)
    self.__dict__ = blocks[name]


def describe_tensor(self, handle, kind, describe=core.tensor.__init__):
    if kind.name not in extents:
        describe(self, handle, kind)
        extents[kind.name] = self.shape, self.numel
    self.handle, self.type, self.dtype = handle, kind, kind.scalar
    self.shape, self.numel = extents[kind.name]


def type_of_array(kind, find=interpreter._get_np_dtype):
    if kind.name not in arrays:
        arrays[kind.name] = find(kind)
    return arrays[kind.name]


def broadcast(self, one, other, differing=semantic.TritonSemantic.broadcast_impl_value):
    kinds = one.type, other.type
    if all(kind.is_block() for kind in kinds) and kinds[0].shape.values == kinds[1].shape.values:
        return one, other
    return differing(self, one, other)


core.block_type.__init__, core.tensor.__init__ = describe_block, describe_tensor
interpreter._get_np_dtype = type_of_array
semantic.TritonSemantic.broadcast_impl_value = broadcast

torch.ones(1, device="meta") * 2  # imports what backward modes use to find the shapes of gradients, in four seconds
"""


PRELUDE = """
import sys
from dataclasses import replace
import torch
import cell
from kernels_bench_tools.measure.correctness.check import check
from kernels_bench_tools.measure.operator import find_operator, no_edge_cases


def judge(operator, workload, function):
    verdict = check(operator, workload, function, operator.for_workload(workload).inputs(workload, "cpu", 0))
    assert verdict.ok and "refused" not in verdict.corr, (workload, verdict.reason, verdict.corr)
    return verdict


"""
"""What scripts that examine a kernel begin with: ``cell`` is its notebook's code."""


def runner(server: ForkServer, folder: Path, before: str = "") -> Run:
    """Return what runs a script beside a notebook's code, ``cell.py``, and returns what it prints. It has to succeed."""

    def run(code: str, script: str, *arguments: str) -> str:
        (folder / "cell.py").write_text(code, encoding="utf-8")
        done = server.run(folder, before + script, *arguments)
        assert done.returncode == 0, done.stderr[-4000:]
        return done.stdout.strip()

    return run


@pytest.fixture(scope="session")
def compiling() -> ForkServer:
    pytest.importorskip("triton")
    return ForkServer(TRITON)


@pytest.fixture(scope="session")
def interpreting() -> ForkServer:
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs triton")
    return ForkServer(TRITON + INTERPRETER, TRITON_INTERPRET="1")


@pytest.fixture
def compile_only(compiling: ForkServer, tmp_path: Path) -> Run:
    """Run a script where kernels are compiled."""
    return runner(compiling, tmp_path)


@pytest.fixture
def interpret(interpreting: ForkServer, tmp_path: Path) -> Run:
    """Run a script where kernels run in Triton's interpreter."""
    return runner(interpreting, tmp_path, PRELUDE)
