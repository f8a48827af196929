"""Implementations as their notebooks have them, and the verdict on them: for the tests of operators."""

import ast
import importlib.util
import linecache
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch

from kernels_bench_tools.measure.correctness.check import Correctness, check
from kernels_bench_tools.measure.device.clocks import ClockSampler
from kernels_bench_tools.measure.device.sentinels import Sentinels
from kernels_bench_tools.measure.judge.candidate import Candidate, TimedCalls
from kernels_bench_tools.measure.modes import in_mode
from kernels_bench_tools.measure.operator import (
    Operator,
    Workload,
    built_in_modules,
    find_operator,
)
from kernels_bench_tools.measure.session import BenchmarkSession
from kernels_bench_tools.measure.trial import Trial, run_trial
from kernels_bench_tools.records.request import Request

ROOT = Path(__file__).resolve().parents[2]
HOPPER = pytest.mark.skipif(
    not torch.cuda.is_available() or torch.cuda.get_device_capability()[0] != 9, reason="needs a Hopper GPU"
)


def is_timed() -> bool:
    """Return whether the function that asks was called by a timed call on a CPU."""
    return sys._getframe(2).f_code is TimedCalls.clocked.__code__


def code_of(operator: str, name: str) -> str:
    """Return the code of an implementation's one benchmark cell."""
    text = (ROOT / operator / "impls" / f"{name}.md").read_text(encoding="utf-8")
    cells = re.findall(r"^```python id=benchmark outputs=\w+\.jsonl.*?\n(.*?)\n```$", text, re.S | re.M)
    assert len(cells) == 1
    return str(cells[0])


def options_of(operator: str, name: str) -> dict[str, Any]:
    """Return what a notebook tells ``run_benchmark`` beside the operator and the function."""
    calls = [one for one in ast.walk(ast.parse(code_of(operator, name))) if isinstance(one, ast.Call)]
    (call,) = [one for one in calls if ast.unparse(one.func) == "run_benchmark"]
    return {one.arg: ast.literal_eval(one.value) for one in call.keywords if one.arg != "load"}


def module_of(operator: str, name: str, folder: Path) -> ModuleType:
    """Return the notebook's code as a module, from a file: Gluon reads the source of its functions."""
    path = folder / f"{name}.py"
    path.write_text(code_of(operator, name), encoding="utf-8")
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def run_cell(operator: str, name: str) -> dict[str, Any]:
    """Run that code, without measuring; return the names that it leaves."""
    names: dict[str, Any] = {"__name__": "cell"}
    code, file = code_of(operator, name), f"<{name}.md>"
    # Triton compiles from source.
    linecache.cache[file] = (len(code), None, code.splitlines(keepends=True), file)
    exec(compile(code, file, "exec"), names)
    return names


def function_of(operator: str, name: str) -> Callable[..., Any]:
    """Return an implementation's function, from its notebook's own code."""
    found: Callable[..., Any] = run_cell(operator, name)[name]
    return found


IN_PLACE = {"kv_store", "decoder_layer", "causal_lm"}
"""Operators whose implementations write into their caches, and declare it."""


def find(name: str) -> Operator:
    """Return an operator as its implementations declare it."""
    return find_operator(name).adapted(in_place=True) if name in IN_PLACE else find_operator(name)


def smoke_workload(operator: Operator, group: str = "", dtype: str = "", **axes: Any) -> Workload:
    """Return the group's first workload of the smoke set, in this type and with these axes changed."""
    found = next(workload for workload in operator.workloads("smoke") if workload.group == group)
    return replace(found, dtype=dtype or found.dtype, axes={**found.axes, **axes})


ALL_SMOKE = [
    pytest.param(operator, workload, id=f"{operator.name}-{workload.name}")
    for found in map(find, built_in_modules())
    for operator in (found, *([in_mode(found, "bwd")] if found.gradients else []))
    for workload in operator.workloads("smoke")
]
"""Every operator that has them, forward and backward, with its smoke workloads."""


def judge(
    operator: Operator, group: str, dtype: str, function: Callable[..., Any], **axes: Any
) -> Correctness:
    """Return whether a function is right on that workload."""
    return judge_on(smoke_workload(operator, group, dtype, **axes), operator, function)


@torch.no_grad()
def judge_on(workload: Workload, operator: Operator, function: Callable[..., Any]) -> Correctness:
    """Return whether a function is right on a workload."""
    return check(operator, workload, function, operator.for_workload(workload).inputs(workload, "cpu", 0))


def attempt(
    operator: Operator,
    function: Callable[..., Any],
    workload: Workload | None = None,
    *,
    mode: str = "fwd",
    device: str = "cpu",
    process: int = 0,
    **peaks: float,
) -> Trial:
    """Judge and time an implementation in this process, by default on the first workload of the smoke set."""
    workload = workload or operator.workloads("smoke")[0]
    candidate = Candidate(operator, [workload], function, device, mode=mode)
    session = BenchmarkSession(
        device=device, clocks=ClockSampler(""), sentinels=Sentinels(device), peaks=peaks
    )
    return run_trial(operator, workload, 0, candidate, session, Request(mode=mode), process=process)


def counted(operator: Operator, workload: Workload) -> tuple[int, int, int]:
    """Return the bytes read, the bytes written and the operations that count as a workload's."""
    form = operator.for_workload(workload)
    inputs = form.inputs(workload, "cpu", 0)
    work = form.work(inputs, form.reference(*inputs))
    return work.bytes_read, work.bytes_written, work.flops


def assert_correct(verdict: Correctness) -> None:
    """Assert that a result is right, without a flag."""
    assert verdict.ok, verdict.reason
    assert verdict.flags == []


def without_rest(output: torch.Tensor, tile: int, axis: int = -1) -> torch.Tensor:
    """Return an output with zeros after its last whole tile along an axis, if there is one."""
    size = output.shape[axis]
    if size > tile:
        output.narrow(axis, size - size % tile, size % tile).zero_()
    return output


def in_8_bits(matrix: torch.Tensor) -> torch.Tensor:
    """Return a matrix in float32 whose values were rounded to 8-bit integers, with a scale for each row."""
    scale = matrix.float().abs().amax(-1, keepdim=True) / 127
    return (matrix.float() / scale).round() * scale
