"""Every way of gaming a measurement that Python can see is seen in the process itself, and honest code is not accused."""

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import fixtures_integrity as cheats
import pytest
import torch
from implementations import is_timed
from norms import LAYER_NORM, compile_for
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from kernels_bench_tools.measure.correctness import compare as compare_module
from kernels_bench_tools.measure.judge import bindings as bindings_module
from kernels_bench_tools.measure.judge import candidate as calls_module
from kernels_bench_tools.measure.judge import remote  # noqa: F401 - its names are checked, too
from kernels_bench_tools.measure.judge.bindings import Bindings
from kernels_bench_tools.measure.judge.candidate import Candidate, TimedCalls
from kernels_bench_tools.measure.judge.changing_inputs import InputChanges
from kernels_bench_tools.measure.judge.guard import Guard
from kernels_bench_tools.measure.judge.memory import copy_elsewhere, fingerprint, same_bits
from kernels_bench_tools.measure.operator import Operator, Workload
from kernels_bench_tools.measure.trial import Trial
from kernels_bench_tools.records.record import REJECTING, Flag, Status

DEVICE = "cpu"
WORKLOAD = Workload(name="w", axes={"batch": 5, "seq_len": 80, "hidden_dim": 256}, dtype="float32")
SMALL = Workload(name="w", axes={"batch": 2, "seq_len": 8, "hidden_dim": 256}, dtype="float32")


pytestmark = pytest.mark.usefixtures("few_input_sets", "few_samples")


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


@pytest.fixture
def guard() -> Guard:
    return Guard(DEVICE)


def examine(
    function: Callable[..., Any], workload: Workload = WORKLOAD, operator: Operator = LAYER_NORM
) -> tuple[Trial, set[str]]:
    return cheats.examine(operator, function, workload, DEVICE)


def inspected(guard: Guard, function: Callable[..., Any], workload: Workload = SMALL) -> list[Flag]:
    return guard.inspect(LAYER_NORM, function, LAYER_NORM.inputs(workload, DEVICE, 0))


@pytest.mark.parametrize(
    ("make", "ok", "flags"), [case[1:] for case in cheats.MATRIX], ids=[case[0] for case in cheats.MATRIX]
)
def test_each_fixture_gets_exactly_its_flags(make: Callable[[], Any], ok: bool, flags: set[str]) -> None:
    trial, found = examine(make())

    # What is wrong in untimed calls may be wrong in timed ones, too.
    either = {"stale_output"} if trial.status is Status.INCORRECT else set()
    assert found | either == flags | either, trial.failure
    assert (trial.status is Status.OK) == (ok and not flags & REJECTING), trial.failure


@pytest.mark.parametrize("kind", ["float32", "bfloat16", "compiled", "in place"])
def test_honest_code_gets_no_flag(kind: str) -> None:
    dtype = kind if "float" in kind else "float32"
    function = {"compiled": compile_for(WORKLOAD, cheats.right), "in place": cheats.in_place}.get(
        kind, cheats.right
    )
    operator = replace(LAYER_NORM, in_place=kind == "in place")

    trial, found = examine(function, replace(WORKLOAD, dtype=dtype), operator)
    torch._dynamo.reset()

    assert trial.status is Status.OK, trial.failure
    assert not found


def test_what_the_compiler_adds_to_a_module_is_no_replaced_function() -> None:
    torch.compile(LAYER_NORM.reference, backend="eager")(torch.ones(2, 4), torch.ones(4), torch.ones(4))
    module = sys.modules[LAYER_NORM.reference.__module__]
    assert any(name.startswith("__compiled_fn_") for name in vars(module))
    bindings = Bindings()
    torch._dynamo.reset()

    assert bindings.replaced() == []


def timed(function: Callable[..., Any]) -> Trial:
    """Try a function that is right in untimed calls."""
    return examine(lambda *inputs: (function if is_timed() else cheats.right)(*inputs), SMALL)[0]


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="CPU time of threads is not counted")
def test_a_thread_that_works_longer_than_the_calls_is_detected(guard: Guard) -> None:
    square = torch.ones(600, 600)
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()

        def leaving_work(*inputs: Tensor) -> Tensor:
            pool.submit(torch.matmul, square, square)
            return cheats.right(*inputs)

        # On a busy machine, the thread may get no core.
        flags = next(filter(None, (inspected(guard, leaving_work) for _ in range(100))), [])

    assert flags == [Flag.THREAD_INJECTION]
    assert "'ThreadPoolExecutor" in guard.reasons[Flag.THREAD_INJECTION]


@pytest.mark.parametrize("workload", [WORKLOAD, SMALL], ids=["large", "small"])
def test_a_pool_whose_results_a_call_waits_for_gets_no_flag(workload: Workload) -> None:
    with ThreadPoolExecutor(2) as pool:

        def halves(x: Tensor, *rest: Tensor) -> Tensor:
            return torch.cat([*pool.map(lambda half: cheats.right(half, *rest), x.chunk(2))])

        trial, found = examine(halves, workload)

    assert trial.status is Status.OK, trial.failure
    assert not found


def test_inputs_changed_by_a_timed_call_are_detected() -> None:
    def changing(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        output = cheats.right(x, weight, bias)
        weight[-1] += 1
        return output

    trial = timed(changing)

    assert trial.status is Status.REJECTED
    assert Flag.INPUT_MUTATED in trial.flags
    assert Flag.STALE_OUTPUT not in trial.flags


class Dispatch(TorchDispatchMode):
    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


class Override(TorchFunctionMode):
    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: torch.device("cpu"), []),
        (Dispatch, [Flag.LAZY_OUTPUT]),
        (Override, [Flag.LAZY_OUTPUT]),
        (type("DeviceContext", (Override,), {}), [Flag.LAZY_OUTPUT]),
        (enable_python_dispatcher, [Flag.LAZY_OUTPUT]),
    ],
)
def test_a_mode_that_is_left_active_makes_outputs_lazy(
    guard: Guard, make: Callable[[], Any], expected: list[Flag]
) -> None:
    with make():
        assert inspected(guard, cheats.right) == expected
        assert guard.finish() == []  # each flag once
        guard.reasons.clear()
        assert guard.finish() == expected


class TestThreads:
    def test_a_thread_that_outlives_its_call_is_detected(self, guard: Guard) -> None:
        flags = inspected(guard, cheats.threaded())
        time.sleep(0.1)

        assert Flag.THREAD_INJECTION in flags

    @pytest.mark.parametrize("hidden", [False, True], ids=["", "threading does not list it"])
    def test_a_worker_is_detected_if_its_time_is_not_known(self, guard: Guard, hidden: bool) -> None:
        function = cheats.worker_thread(hidden=hidden)
        flags = inspected(guard, function)
        function.stop()

        assert flags == [Flag.THREAD_INJECTION] * hidden

    def test_a_process_that_outlives_its_call_is_detected(self, guard: Guard) -> None:
        started: list[subprocess.Popen[bytes]] = []

        def starting(*inputs: Tensor) -> Tensor:
            started.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
            return cheats.right(*inputs)

        flags = inspected(guard, starting)
        for process in started:
            process.communicate(b"\n")

        assert flags == [Flag.THREAD_INJECTION]

    def test_idle_and_joined_threads_are_not_flagged(self, guard: Guard) -> None:
        stop = threading.Event()
        threading.Thread(target=stop.wait).start()

        assert inspected(guard, cheats.right) == []
        assert inspected(guard, cheats.threaded(joined=True)) == []
        stop.set()

    def test_a_forked_process_is_not_one_of_the_harness(self, monkeypatch: pytest.MonkeyPatch) -> None:
        own = Path("/proc/self/cmdline").read_text().split("\0")[0]
        monkeypatch.setattr(bindings_module, "_BACKGROUND", (own,))
        before, child = bindings_module.take_snapshot(), os.fork()
        if not child:
            signal.pause()
        found = bindings_module.started_between(before, bindings_module.take_snapshot())
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)

        assert found == f"process {child}"


def _fake(*args: Any, **kwargs: Any) -> float:
    return 1e-9


class TestTimers:
    @pytest.mark.parametrize(
        ("owner", "name", "value"),
        [
            *((calls_module, name, _fake) for name in ("perf_counter_ns", "_synchronize")),
            (InputChanges, "exchange", _fake),
            (compare_module.OutputComparison, "require_correct", _fake),
            (Candidate, "call", _fake),
            # To the process that judges; inherited: a new attribute hides it.
            (Connection, "send_bytes", _fake),
            (TimedCalls, "clocked", _fake),
        ],
        ids=lambda one: getattr(one, "__name__", one if isinstance(one, str) else type(one).__name__),
    )
    def test_a_replaced_function_is_detected(self, guard: Guard, owner: Any, name: str, value: Any) -> None:
        had, original = name in vars(owner), getattr(owner, name, None)
        setattr(owner, name, value)
        try:
            flags = guard.finish()
        finally:
            setattr(owner, name, original) if had else delattr(owner, name)

        assert flags == [Flag.TIMER_TAMPER]
        assert name in guard.reasons[Flag.TIMER_TAMPER]
        assert Guard(DEVICE).finish() == []

    def test_exchanged_code_of_a_function_is_detected(
        self, guard: Guard, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(compare_module.require_alike, "__code__", _fake.__code__)

        assert guard.finish() == [Flag.TIMER_TAMPER]


DTYPES = [torch.float32, torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.int8, torch.bool]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("size", [1, 7, 64, 1001])
def test_any_changed_element_changes_the_fingerprint(dtype: torch.dtype, size: int) -> None:
    value = torch.ones(size, dtype=dtype)
    before = fingerprint(value)
    assert fingerprint(value.clone()) == before

    for place in {0, size // 2, size - 1}:
        changed = value.clone()
        changed[place] = 0
        assert fingerprint(changed) != before
        assert not same_bits(changed, value)


def test_nan_is_the_same_as_itself_and_a_signed_zero_is_not() -> None:
    assert same_bits(torch.tensor([float("nan")]), torch.tensor([float("nan")]))
    assert not same_bits(torch.tensor([0.0]), torch.tensor([-0.0]))


def test_a_copy_elsewhere_is_aligned_equal_and_no_view() -> None:
    value = torch.randn(3, 5)
    copies = [copy_elsewhere(value) for _ in range(8)]

    assert all(torch.equal(copy, value) and copy._base is None for copy in copies)
    assert all(copy.storage_offset() * 4 % 512 == 0 < copy.storage_offset() for copy in copies)
