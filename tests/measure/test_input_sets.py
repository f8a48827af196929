import sys
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from pathlib import Path
from threading import Thread
from types import CodeType, FrameType
from typing import Any

import pytest
import torch
from torch import Tensor

import kernels_bench_tools
from kernels_bench_tools.measure.candidate import Candidate
from kernels_bench_tools.measure.judge.bindings import Bindings
from kernels_bench_tools.measure.judge.changing_inputs import new_change
from kernels_bench_tools.measure.judge.remote import RemoteCandidate, serve
from kernels_bench_tools.measure.operator import find_operator
from kernels_bench_tools.measure.timing.caches import (
    CPU_CACHES,
    FREE_MEMORY_SHARE,
    MAX_INPUT_SETS,
    MAX_ROTATED_BYTES,
    free_bytes,
    input_set_count,
    last_level_cache_bytes,
)
from kernels_bench_tools.measure.timing.calls import Method

PACKAGE = str(Path(kernels_bench_tools.__file__).parent)
METHODS = [name for name in dir(Tensor) if not name.startswith("__") and callable(getattr(Tensor, name))]
TIMED = {Candidate.batch.__code__, Candidate.change_next.__code__, Candidate.clocked.__code__}


def functions_between_calls(name: str, *, in_place: bool) -> set[Any]:
    """Return the built-in functions that run from changes to the end of their calls, and code of Python outside of this package."""
    operator = find_operator(name).adapted(in_place=in_place)
    found: set[Any] = set()
    running = False

    def implementation(*inputs: Any) -> Any:
        sys.setprofile(None)
        try:
            return operator.baseline(*inputs) if operator.baseline else None
        finally:
            sys.setprofile(noted)

    def noted(frame: FrameType, event: str, function: Any) -> None:
        nonlocal running
        if frame.f_code in TIMED and event in {"call", "return"}:
            running = event == "call"
        elif running and event == "c_call":
            found.add(function)
        elif running and event == "call" and not frame.f_code.co_filename.startswith((PACKAGE, __file__)):
            found.add(frame.f_code)

    def judge(connection: Connection) -> None:
        remote = RemoteCandidate(connection)
        remote.start(0, 0)
        remote.prepare(4)
        remote.make_ahead(4)
        remote.batch(Method.CLOCK, [new_change() for _ in range(4)])
        remote.make_ahead(1)
        remote.change_next(new_change())
        remote.clocked()
        remote.finish_run([])

    judging, serving = Pipe()
    candidate = Candidate(operator, operator.workloads("smoke"), implementation, "cpu")
    thread = Thread(target=judge, args=(judging,))
    thread.start()
    sys.setprofile(noted)
    try:
        serve(candidate, serving)
    finally:
        sys.setprofile(None)
        thread.join()
    return found


def test_enough_input_sets_exceed_the_cache_four_times() -> None:
    size = 4 * 2**20  # so large that their number is no bound, whatever cache this machine has
    affordable = min(MAX_ROTATED_BYTES, FREE_MEMORY_SHARE * free_bytes("cpu") - size)

    assert CPU_CACHES == 4
    assert input_set_count(size, "cpu") * size >= min(4 * last_level_cache_bytes(), affordable)


def test_input_sets_are_bounded_in_number_and_size() -> None:
    assert input_set_count(1, "cpu") == MAX_INPUT_SETS
    assert input_set_count(2**40, "cpu") == 1
    assert input_set_count(1, "cpu", 2**40) == 1  # a call reads one row of a table


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("name", ["layer_norm", "matmul", "moe"])
def test_what_runs_between_a_change_and_its_call_cannot_be_replaced_unseen(name: str, in_place: bool) -> None:
    found = functions_between_calls(name, in_place=in_place)

    generated = {"<string>"}  # methods of dataclasses
    assert not {one for one in found if isinstance(one, CodeType) and one.co_filename not in generated}
    of_torch = {
        one.__name__ for one in found if type(getattr(one, "__self__", None)).__module__.startswith("torch")
    }
    of_torch |= {one.__name__ for one in found if getattr(torch, getattr(one, "__name__", ""), None) is one}
    checked = {name.rpartition(".")[2] for name in Bindings()._bound}
    assert {"set_", "untyped_storage"} <= of_torch
    assert of_torch - checked - {"manual_seed"} == set()  # of a type that cannot be changed


def test_methods_that_an_implementation_gives_to_inputs_and_outputs_do_not_run_between_calls() -> None:
    ran = []

    def implementation(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        output = torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)
        for value in (x, output):
            for method in METHODS:
                setattr(value, method, lambda *_, name=method: ran.append(name))
        return output

    operator = find_operator("layer_norm")
    candidate = Candidate(operator, operator.workloads("smoke"), implementation, "cpu")
    candidate.start(0, 0)
    candidate.prepare(2)
    candidate.make_ahead(4)
    candidate.batch(Method.CLOCK, [new_change() for _ in range(4)])
    candidate.change_next(new_change())
    candidate.clocked()

    assert not ran
