"""Every way of gaming a measurement that Python can see is seen, and honest implementations are not accused."""

import builtins
import gc
import io
import json
import os
import signal
import sys
import threading
import time
import types
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import replace
from functools import partial
from multiprocessing.connection import Connection
from operator import is_
from pathlib import Path
from typing import Any

import fixtures_integrity as cheats
import msgspec
import pytest
import torch
from norms import LAYER_NORM, compile_for
from torch import Tensor
from torch._dispatch.python import enable_python_dispatcher
from torch.overrides import TorchFunctionMode

from kernels_bench_tools.measure.candidate import Candidate
from kernels_bench_tools.measure.correctness import compare as compare_module
from kernels_bench_tools.measure.correctness.check import check
from kernels_bench_tools.measure.device.clocks import ClockSampler
from kernels_bench_tools.measure.judge import bindings as process_module
from kernels_bench_tools.measure.judge import changing_inputs, remote  # noqa: F401 - names of the second are checked, too
from kernels_bench_tools.measure.judge.bindings import Bindings
from kernels_bench_tools.measure.judge.guard import TRUST, Guard
from kernels_bench_tools.measure.operator import Operator, Workload
from kernels_bench_tools.measure.session import BenchmarkSession
from kernels_bench_tools.measure.timing import calls as calls_module
from kernels_bench_tools.measure.trial import Trial, run_trial
from kernels_bench_tools.records.record import REJECTING, Flag, Status

DEVICE = "cpu"
WORKLOAD = Workload(name="w", axes={"batch": 5, "seq_len": 80, "hidden_dim": 256}, dtype="float32")
SMALL = Workload(name="w", axes={"batch": 2, "seq_len": 8, "hidden_dim": 256}, dtype="float32")


pytestmark = pytest.mark.usefixtures("few_input_sets", "few_samples")


@pytest.fixture(autouse=True)
def _without_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def examine(
    function: Callable[..., Any], workload: Workload = WORKLOAD, operator: Operator = LAYER_NORM
) -> tuple[Trial, set[str]]:
    return cheats.examine(operator, function, workload, DEVICE)


@pytest.mark.parametrize(
    ("make", "ok", "flags"), [case[1:] for case in cheats.MATRIX], ids=[case[0] for case in cheats.MATRIX]
)
@pytest.mark.parametrize("workload", [WORKLOAD, SMALL], ids=["large", "small"])
def test_each_fixture_gets_exactly_its_flags(
    make: Callable[[], Any], ok: bool, flags: frozenset[str], workload: Workload
) -> None:
    trial, found = examine(make(), workload)

    assert found == flags, trial.failure
    assert (trial.status is Status.OK) == (ok and not flags & REJECTING), trial.failure


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_torch_gets_no_flag_in_any_type(dtype: str) -> None:
    trial, found = examine(cheats.right, replace(WORKLOAD, dtype=dtype))

    assert trial.status is Status.OK, trial.failure
    assert not found


@pytest.mark.filterwarnings("default")
def test_compiled_code_gets_no_flag() -> None:
    trial, found = examine(compile_for(WORKLOAD, cheats.right))
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


def test_an_operator_that_declares_it_may_work_in_place() -> None:
    trial, found = examine(cheats.in_place(), operator=replace(LAYER_NORM, in_place=True))

    assert trial.status is Status.OK, trial.failure
    assert not found


def test_an_implementation_that_cheats_after_some_calls_is_detected() -> None:
    for honest in (1, 2, 3, 5, 8):
        trial, found = examine(cheats.cached_by_call(honest), SMALL)

        assert "stale_output" in found or trial.status is Status.INCORRECT, honest


class Timed(Candidate):
    """A candidate that says whether its calls are timed."""

    timing = False

    def prepare(self, sets: int) -> None:
        super().prepare(sets)
        self.timing = True


def timed(function: Callable[..., Any]) -> Trial:
    """Try ``function``, which is also told whether the call is a timed one."""
    candidate = Timed(LAYER_NORM, [SMALL], lambda *inputs: function(candidate.timing, *inputs), DEVICE)
    session = BenchmarkSession(device=DEVICE, clocks=ClockSampler(""))
    return run_trial(LAYER_NORM, SMALL, 0, candidate, session)


def test_a_replay_in_the_timed_phase_is_detected() -> None:
    kept: list[Tensor] = []

    def replaying(timing: bool, *inputs: Tensor) -> Tensor:
        if not timing:
            kept[:] = [cheats.right(*inputs)]
        return kept[0].clone()

    trial = timed(replaying)

    assert trial.status is Status.REJECTED
    assert trial.failure.msg.startswith("stale_output: the output of a timed call is wrong")


@pytest.mark.parametrize(
    "key",
    [
        lambda x: (id(x), x._version),
        lambda x: (x.data_ptr(), x._version),
        lambda x: (x.data_ptr(), float(x[0, 0, 0]), float(x[-1, -1, -1])),
    ],
    ids=["identity and version", "pointer and version", "pointer and some elements"],
)
def test_results_kept_by_their_inputs_are_stale(key: Callable[[Tensor], Any]) -> None:
    kept: dict[Any, Tensor] = {}

    def keeping(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if key(x) not in kept:
            kept[key(x)] = cheats.right(x, weight, bias)
        return kept[key(x)].clone()

    trial, _ = examine(keeping, SMALL)

    assert trial.status in {Status.REJECTED, Status.INCORRECT} or len(kept) > 50


def test_a_thread_that_works_in_timed_calls_only_is_detected() -> None:
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).result()

        def handing_over(timing: bool, *inputs: Tensor) -> Tensor:
            return pool.submit(cheats.right, *inputs).result() if timing else cheats.right(*inputs)

        trial = timed(handing_over)

    assert trial.failure.msg.startswith("thread_injection: thread 'ThreadPoolExecutor")


def test_few_wrong_elements_of_a_timed_call_are_detected() -> None:
    def damaging(timing: bool, *inputs: Tensor) -> Tensor:
        output = cheats.right(*inputs)
        if timing:
            output[0, 0, 0] += 1
        return output

    assert timed(damaging).status is Status.REJECTED


def test_inputs_changed_by_a_timed_call_are_detected() -> None:
    def changing(timing: bool, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        output = cheats.right(x, weight, bias)
        if timing:
            weight[-1] += 1
        return output

    trial = timed(changing)

    assert trial.status is Status.REJECTED
    assert Flag.INPUT_MUTATED in trial.flags
    assert Flag.STALE_OUTPUT not in trial.flags


def test_inputs_changed_by_an_untimed_call_are_detected() -> None:
    guard = Guard(DEVICE)
    inputs = LAYER_NORM.inputs(WORKLOAD, DEVICE, 0)
    before = [value.clone() for value in inputs]

    assert guard.inspect(LAYER_NORM, WORKLOAD, cheats.zeroes_its_input(), inputs) == [Flag.INPUT_MUTATED]
    assert all(torch.equal(now, then) for now, then in zip(inputs, before, strict=True))


def test_inputs_have_addresses_that_no_earlier_call_had() -> None:
    offsets = []

    def watching(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        offsets.append(x.storage_offset())
        return cheats.right(x, weight, bias)

    Guard(DEVICE).inspect(LAYER_NORM, SMALL, watching, LAYER_NORM.inputs(SMALL, DEVICE, 0))

    assert len(set(offsets)) == 1
    assert offsets[0] > 0


def test_a_default_device_is_not_a_lazy_mode() -> None:
    guard = Guard(DEVICE)
    inputs = LAYER_NORM.inputs(WORKLOAD, DEVICE, 0)
    with torch.device("cpu"):
        assert guard.inspect(LAYER_NORM, WORKLOAD, cheats.right, inputs) == []


def test_a_lazy_output_of_a_timed_call_is_detected() -> None:
    lazy = cheats.as_subclass()

    trial = timed(lambda timing, *inputs: lazy(*inputs) if timing else cheats.right(*inputs))

    assert trial.status is Status.REJECTED


@pytest.mark.parametrize(
    "make",
    [type("DeviceContext", (TorchFunctionMode,), {}), enable_python_dispatcher],
    ids=["with the name of that of a default device", "of the dispatcher"],
)
def test_a_mode_of_any_kind_that_is_left_active_is_lazy(make: Callable[[], Any]) -> None:
    guard = Guard(DEVICE)
    with make():
        assert guard.finish() == [Flag.LAZY_OUTPUT]


def test_a_mode_left_active_makes_outputs_lazy() -> None:
    from torch.utils._python_dispatch import TorchDispatchMode

    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    class Override(TorchFunctionMode):
        def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            return func(*args, **(kwargs or {}))

    guard = Guard(DEVICE)
    inputs = LAYER_NORM.inputs(WORKLOAD, DEVICE, 0)
    with Override():
        assert guard.inspect(LAYER_NORM, WORKLOAD, cheats.right, inputs) == [Flag.LAZY_OUTPUT]
    with Mode():
        assert guard.inspect(LAYER_NORM, WORKLOAD, cheats.right, inputs) == [Flag.LAZY_OUTPUT]


class TestThreads:
    def inspected(self, make: Callable[[], Any]) -> tuple[Any, list[Flag]]:
        guard = Guard(DEVICE)
        function = make()
        inputs = LAYER_NORM.inputs(SMALL, DEVICE, 0)
        return function, guard.inspect(LAYER_NORM, SMALL, function, inputs)

    @pytest.mark.parametrize("make", [cheats.thread_per_call, cheats.lingering_thread])
    def test_a_thread_that_outlives_its_call_is_detected(self, make: Callable[[], Any]) -> None:
        _, flags = self.inspected(make)
        time.sleep(0.1)

        assert Flag.THREAD_INJECTION in flags

    @pytest.mark.parametrize("hidden", [False, True], ids=["", "threading does not list it"])
    def test_a_worker_from_before_the_first_call_is_detected(self, hidden: bool) -> None:
        function, flags = self.inspected(partial(cheats.worker_thread, hidden=hidden))
        function.stop()

        assert flags == [Flag.THREAD_INJECTION]

    def test_a_worker_from_before_the_guard_is_detected(self) -> None:
        function = cheats.worker_thread()
        _, flags = self.inspected(lambda: function)
        function.stop()

        assert flags == [Flag.THREAD_INJECTION]

    def test_a_process_that_outlives_its_call_is_detected(self) -> None:
        function, flags = self.inspected(cheats.process_per_call)
        for process in function.started:
            process.communicate(b"\n")

        assert flags == [Flag.THREAD_INJECTION]

    def test_an_idle_thread_is_not_flagged(self) -> None:
        stop = threading.Event()

        def with_idle_thread() -> Any:
            threading.Thread(target=stop.wait).start()
            return cheats.right

        _, flags = self.inspected(with_idle_thread)
        stop.set()

        assert flags == []

    def test_a_joined_thread_is_not_flagged(self) -> None:
        def joined() -> Any:
            function = cheats.thread_per_call()
            function.asynchronous = False
            return function

        assert self.inspected(joined)[1] == []

    def test_a_thread_started_by_timed_calls_only_is_detected(self) -> None:
        guard = Guard(DEVICE)
        inputs = LAYER_NORM.inputs(SMALL, DEVICE, 0)
        assert guard.inspect(LAYER_NORM, SMALL, cheats.right, inputs) == []
        cheats.lingering_thread()(*inputs)
        thread = cheats.thread_per_call()
        thread(*inputs)

        assert guard.finish() == [Flag.THREAD_INJECTION]
        time.sleep(0.1)


def test_each_process_chooses_the_block_sizes_of_compiled_kernels_itself() -> None:
    candidate = Candidate(LAYER_NORM, [SMALL], torch.compile(cheats.right), DEVICE)
    torch._inductor.config.autotune_local_cache = True

    candidate.start(0, process=0)

    assert not torch._inductor.config.autotune_local_cache


def test_the_compiler_s_pool_starts_no_thread_after_a_call() -> None:
    """The pool's timer would be taken for a thread that an implementation leaves running."""
    assert not torch._inductor.config.quiesce_async_compile_pool


def _fake(*args: Any, **kwargs: Any) -> float:
    return 1e-9


class TestTimers:
    def test_another_class_of_an_object_of_the_harness_is_detected(self) -> None:
        class Other(Candidate):
            pass

        candidate = Candidate(LAYER_NORM, [SMALL], cheats.right, DEVICE)
        assert candidate.finish() == {}
        candidate.__class__ = Other

        assert candidate.finish().keys() == {Flag.TIMER_TAMPER}

    @pytest.mark.parametrize("name", ["following", "changed"])
    def test_a_replaced_method_of_the_sets_of_inputs_is_detected(self, name: str) -> None:
        candidate = Candidate(LAYER_NORM, [SMALL], cheats.right, DEVICE)
        setattr(candidate.sets, name, _fake)

        assert name in candidate.finish()[Flag.TIMER_TAMPER]

    @pytest.mark.parametrize("name", ["_prepared", "_turn", "_ahead"])
    def test_state_with_code_of_its_own_is_detected(self, name: str) -> None:
        candidate = Candidate(LAYER_NORM, [SMALL], cheats.right, DEVICE)
        before = getattr(candidate.sets, name)
        setattr(candidate.sets, name, type("Own", (type(before),), {})(before))

        assert f"InputSets.{name}" in candidate.finish()[Flag.TIMER_TAMPER]

    @pytest.mark.parametrize(
        ("owner", "name"),
        [
            (time, "perf_counter"),
            (time, "perf_counter_ns"),
            (torch.cuda.Event, "elapsed_time"),
            (torch.cuda.Event, "record"),
            (torch.cuda, "synchronize"),
            (changing_inputs.Random, "getrandbits"),  # draws what changes before the next call
            (torch.UntypedStorage, "data_ptr"),
            (io, "BytesIO"),
            (Connection, "recv_bytes"),  # from the process that judges
            (msgspec.json, "encode"),
            (torch, "allclose"),
            (torch, "equal"),
            (torch.Tensor, "double"),  # inherited: a new attribute hides it
            (torch.autograd.profiler, "profile"),
            (torch.autograd.profiler.profile, "__exit__"),
            (compare_module, "compare"),
            (compare_module.OutputComparison, "require_correct"),
        ],
        ids=str,
    )
    def test_a_replaced_function_is_detected(self, owner: Any, name: str) -> None:
        guard = Guard(DEVICE)
        had, original = name in vars(owner), getattr(owner, name)
        inputs = LAYER_NORM.inputs(SMALL, DEVICE, 0)
        try:
            cheats.patches(owner, name, _fake)(*inputs)
            flags = guard.finish()
        finally:
            if had:
                setattr(owner, name, original)
            else:
                delattr(owner, name)

        assert flags == [Flag.TIMER_TAMPER]
        assert name in guard.reasons[Flag.TIMER_TAMPER]
        assert Guard(DEVICE).finish() == []

    @pytest.mark.parametrize(
        "owner", [builtins, calls_module], ids=["replaced", "hidden in a module of the harness"]
    )
    def test_another_function_in_place_of_a_built_in_one_is_detected(
        self, monkeypatch: pytest.MonkeyPatch, owner: Any
    ) -> None:
        guard = Guard(DEVICE)
        monkeypatch.setattr(owner, "len", partial(len), raising=False)
        reasons = guard.finish(), dict(guard.reasons)
        monkeypatch.undo()

        assert reasons == ([Flag.TIMER_TAMPER], {Flag.TIMER_TAMPER: f"replaced: {owner.__name__}.len"})

    def test_a_replaced_property_of_tensors_is_detected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        guard = Guard(DEVICE)
        monkeypatch.setattr(torch.Tensor, "is_meta", property(lambda _: False))

        assert guard.finish() == [Flag.TIMER_TAMPER]

    def test_exchanged_code_of_a_function_is_detected(self) -> None:
        guard = Guard(DEVICE)
        original = compare_module.is_plausible.__code__
        compare_module.is_plausible.__code__ = (lambda *args: True).__code__
        flags = guard.finish()
        compare_module.is_plausible.__code__ = original

        assert flags == [Flag.TIMER_TAMPER]


def _hook(*_: Any) -> None:
    """Called by Python, where it is set as a hook."""


def _renamed() -> Any:
    hook = types.FunctionType(_hook.__code__, vars(sys.modules["__main__"]))
    hook.__module__ = "jax"
    return hook


@pytest.fixture
def of_script(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let this module be the script of the cell."""
    monkeypatch.setitem(sys.modules, "__main__", sys.modules[__name__])


@pytest.mark.usefixtures("of_script")
class TestHooks:
    @pytest.mark.parametrize(
        "make",
        [lambda: _hook, lambda: partial(_hook), _renamed, lambda: type("Hook", (), {"__call__": _hook})()],
        ids=["a function", "partial", "with the name of a package", "an object"],
    )
    def test_a_callback_of_the_garbage_collector_is_detected(self, make: Callable[[], Any]) -> None:
        guard, hook = Guard(DEVICE), make()
        gc.callbacks.append(hook)
        try:
            assert guard.finish() == [Flag.TIMER_TAMPER]
        finally:
            gc.callbacks.remove(hook)

    def test_a_handler_of_a_signal_is_detected(self) -> None:
        guard = Guard(DEVICE)
        before = signal.signal(signal.SIGUSR1, _hook)
        try:
            assert guard.finish() == [Flag.TIMER_TAMPER]
        finally:
            signal.signal(signal.SIGUSR1, before)

    def test_a_monitoring_tool_is_detected(self, monkeypatch: pytest.MonkeyPatch) -> None:
        tools: dict[int, str] = {}
        monkeypatch.setattr(sys, "monitoring", types.SimpleNamespace(get_tool=tools.get), raising=False)
        guard = Guard(DEVICE)
        tools[3] = "any name"

        assert guard.finish() == [Flag.TIMER_TAMPER]

    def test_hooks_of_packages_are_none_of_the_script(self) -> None:
        guard = Guard(DEVICE)
        hooks: list[Any] = [is_, partial(is_), nullcontext().__exit__]
        gc.callbacks.extend(hooks)
        try:
            assert guard.finish() == []
        finally:
            for hook in hooks:
                gc.callbacks.remove(hook)


def test_a_forked_process_is_not_one_of_the_harness(monkeypatch: pytest.MonkeyPatch) -> None:
    own = Path("/proc/self/cmdline").read_text().split("\0")[0]
    monkeypatch.setattr(
        process_module, "_BACKGROUND", (own,)
    )  # as `-m kernels_bench_tools.measure.judge.start`
    before, child = process_module.take_snapshot(), os.fork()
    if not child:
        signal.pause()
    found = process_module.started_between(before, process_module.take_snapshot())
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)

    assert found == f"process {child}"


def test_flags_and_reasons_fit_into_a_record() -> None:
    def picky(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if x.shape != (5, 80, 256):
            raise ValueError("a message much longer than anybody wants to read in a record, " * 9)
        return cheats.right(x, weight, bias)

    for function in (picky, lambda x, w, b: torch.zeros_like(x), cheats.half_accumulation()):
        verdict = check(LAYER_NORM, WORKLOAD, function, LAYER_NORM.inputs(WORKLOAD, DEVICE, 0))
        assert len(json.dumps(verdict.corr)) < 750  # with the names of all refused cases
    assert len(TRUST) < 220
