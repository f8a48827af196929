"""Implementations of layer_norm that cheat, or err as honest ones do; each factory makes a fresh one."""

import _thread
import gc
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from queue import Queue
from typing import Any

import torch
from torch import Tensor

from kernels_bench_tools.measure.candidate import Candidate
from kernels_bench_tools.measure.device.clocks import ClockSampler
from kernels_bench_tools.measure.operator import Operator, Workload
from kernels_bench_tools.measure.session import BenchmarkSession
from kernels_bench_tools.measure.trial import Trial, run_trial
from kernels_bench_tools.records.record import Flag

Function = Callable[[Tensor, Tensor, Tensor], Any]


def right(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What an honest implementation returns."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


# Outputs that are not there (hacks 2, 3).


class Lazy(Tensor):
    """A tensor that computes when something looks at it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [value.as_subclass(Tensor) if isinstance(value, cls) else value for value in args]
        return func(*plain, **(kwargs or {}))


def as_subclass() -> Function:
    return lambda x, w, b: right(x, w, b).as_subclass(Lazy)


def on_meta() -> Function:
    return lambda x, w, b: torch.empty_like(x, device="meta")


def fake() -> Function:
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode()

    def fake_output(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        with mode:
            return torch.empty(x.shape, dtype=x.dtype, device=x.device)

    return fake_output


def expanded() -> Function:
    return lambda x, w, b: right(x, w, b)[:1, :1].expand(x.shape)


def negated_later() -> Function:
    return lambda x, w, b: torch._neg_view(-right(x, w, b))


# Outputs from elsewhere (hacks 6 to 10).


def cached_by_pointer() -> Function:
    kept: dict[int, Tensor] = {}

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if x.data_ptr() not in kept:
            kept[x.data_ptr()] = right(x, weight, bias)
        return kept[x.data_ptr()]

    return function


def cached_by_pointer_and_cloned() -> Function:
    cached = cached_by_pointer()
    return lambda x, w, b: cached(x, w, b).clone()


def cached_by_shape() -> Function:
    kept: dict[Any, Tensor] = {}

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if x.shape not in kept:
            kept[x.shape] = right(x, weight, bias)
        return kept[x.shape].clone()

    return function


def cached_by_call(honest_calls: int = 3) -> Function:
    """Compute for a few calls of each shape, then return the last of them over and over."""
    counts: dict[Any, int] = {}
    kept: dict[Any, Tensor] = {}

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        counts[x.shape] = counts.get(x.shape, 0) + 1
        if counts[x.shape] <= honest_calls:
            kept[x.shape] = right(x, weight, bias)
        return kept[x.shape].clone()

    return function


def same_buffer() -> Function:
    buffers: dict[Any, Tensor] = {}

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        buffer = buffers.setdefault(x.shape, torch.empty_like(x))
        return buffer.copy_(right(x, weight, bias))

    return function


def ignores_where_its_input_begins() -> Function:
    return lambda x, w, b: right(x.as_strided(x.shape, x.stride(), 0), w, b)


def view_of_input() -> Function:
    return lambda x, w, b: x.view(x.shape)


def unwritten() -> Function:
    return lambda x, w, b: torch.empty_like(x)


def unwritten_after_the_first_call() -> Function:
    calls: list[int] = []

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        calls.append(1)
        return right(x, weight, bias) if len(calls) == 1 else torch.empty_like(x)

    return function


# Inputs (hacks 11, 20).


def zeroes_its_input() -> Function:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        output = right(x, weight, bias)
        x.zero_()
        return output

    return function


def in_place() -> Function:
    return lambda x, w, b: x.copy_(right(x, w, b))


def poisons_the_reference() -> Function:
    """Fill every tensor of the input's shape that it can find with NaN, and return NaN."""

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        for found in gc.get_objects():
            if type(found) is Tensor and found.shape == x.shape and found.is_floating_point():
                found.fill_(float("nan"))
        return torch.full_like(x, float("nan"))

    return function


# Less work than claimed (hacks 16, 18, 26).


def half_precision() -> Function:
    return lambda x, w, b: right(x.half(), w.half(), b.half()).to(x.dtype)


def half_accumulation() -> Function:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        mean = (x.half().cumsum(-1)[..., -1:] / x.shape[-1]).float()
        centred = x.float() - mean
        variance = ((centred * centred).half().cumsum(-1)[..., -1:] / x.shape[-1]).float()
        return (centred * (variance + 1e-5).rsqrt() * weight + bias).to(x.dtype)

    return function


def skips_the_last_row() -> Function:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        output = torch.empty_like(x)
        rows, columns = x.numel() // x.shape[-1], x.shape[-1]
        output.view(rows, columns)[:-1] = right(x, weight, bias).reshape(rows, columns)[:-1]
        return output

    return function


def skips_the_last_columns() -> Function:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        output = torch.zeros_like(x)
        output[..., :-3] = right(x, weight, bias)[..., :-3]
        return output

    return function


def noisy() -> Function:
    """Right, and never twice the same."""

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return right(x, weight, bias) * (1 + 2e-7 * (torch.rand_like(x) > 0.99))

    return function


# Threads, processes, timers (hacks 2, 4).


def thread_per_call() -> Function:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        output = torch.empty_like(x)

        def work() -> None:
            time.sleep(0.05)
            output.copy_(right(x, weight, bias))

        thread = threading.Thread(target=work)
        thread.start()
        if not function.asynchronous:
            thread.join()
        return output

    function.asynchronous = True
    return function


def lingering_thread() -> Function:
    """Compute at once, and leave a thread behind that goes on for a while."""

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        threading.Thread(target=time.sleep, args=(0.05,)).start()
        return right(x, weight, bias)

    return function


def worker_thread(*, hidden: bool = False) -> Function:
    """Hand the work to a thread that was started when the implementation was loaded, maybe not by ``threading``."""
    jobs: Queue[Any] = Queue()
    done: Queue[Tensor] = Queue()

    def work() -> None:
        while (job := jobs.get()) is not None:
            done.put(right(*job))

    if hidden:
        _thread.start_new_thread(work, ())
        time.sleep(0.1)  # until it runs
    else:
        threading.Thread(target=work, daemon=True).start()

    def function(*inputs: Tensor) -> Tensor:
        jobs.put(inputs)
        return done.get()

    function.stop = lambda: jobs.put(None)
    return function


def process_per_call() -> Function:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        function.started.append(subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE))
        return right(x, weight, bias)

    function.started = []
    return function


def patches(owner: Any, name: str, replacement: Any) -> Function:
    """Replace ``owner.name`` when called, once; the caller restores it."""

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        setattr(owner, name, replacement)
        return right(x, weight, bias)

    return function


# For the parts that time: host, streams, modes, heat.


def slow_host(seconds: float = 1e-3) -> Function:
    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        time.sleep(seconds)
        return right(x, weight, bias)

    return function


def alternating(factor: int = 2) -> Function:
    """Do the work once and ``factor`` times in turn: two groups of samples."""
    calls: list[int] = []

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        calls.append(1)
        for _ in range(factor if len(calls) % 2 else 1):
            output = right(x, weight, bias)
        return output

    return function


NONE: frozenset[str] = frozenset()
MATRIX: list[tuple[str, Callable[[], Function], bool, frozenset[str]]] = [
    # name, factory, whether it may pass for right, the flags that a harness must find
    ("honest", lambda: right, True, NONE),
    ("as_subclass", as_subclass, False, frozenset({"lazy_output"})),
    ("on_meta", on_meta, False, frozenset({"lazy_output"})),
    ("fake", fake, False, frozenset({"lazy_output"})),
    ("expanded", expanded, False, frozenset({"lazy_output"})),
    ("negated_later", negated_later, True, frozenset({"lazy_output"})),
    ("cached_by_pointer_and_cloned", cached_by_pointer_and_cloned, False, frozenset({"stale_output"})),
    ("cached_by_pointer", cached_by_pointer, False, frozenset({"stale_output"})),
    ("cached_by_shape", cached_by_shape, False, frozenset({"stale_output"})),
    ("same_buffer", same_buffer, True, frozenset({"aliased_output"})),
    ("ignores_where_its_input_begins", ignores_where_its_input_begins, True, frozenset({"stale_output"})),
    ("view_of_input", view_of_input, False, frozenset({"aliased_output"})),
    ("unwritten", unwritten, False, NONE),
    ("unwritten_after_the_first_call", unwritten_after_the_first_call, False, NONE),
    ("zeroes_its_input", zeroes_its_input, True, frozenset({"input_mutated"})),
    ("in_place", in_place, True, frozenset({"input_mutated", "aliased_output"})),
    ("poisons_the_reference", poisons_the_reference, False, NONE),
    ("half_precision", half_precision, False, frozenset({"precision"})),
    ("half_accumulation", half_accumulation, False, frozenset({"precision"})),
    ("skips_the_last_row", skips_the_last_row, False, NONE),
    ("skips_the_last_columns", skips_the_last_columns, False, NONE),
    ("noisy", noisy, True, frozenset({"nondeterministic"})),
]
"""What correctness and integrity together find, timed calls included, in float32."""


INTEGRITY = frozenset(
    {
        Flag.INPUT_MUTATED,
        Flag.PRECISION,
        Flag.NONDETERMINISTIC,
        Flag.LAZY_OUTPUT,
        Flag.THREAD_INJECTION,
        Flag.ALIASED_OUTPUT,
        Flag.STALE_OUTPUT,
        Flag.TIMER_TAMPER,
    }
)
"""The flags that do not depend on times."""


def examine(
    operator: Operator, function: Function, workload: Workload, device: str
) -> tuple[Trial, set[str]]:
    """Try an implementation in this process; return the trial, and those of its flags that do not depend on times."""
    session = BenchmarkSession(device=device, clocks=ClockSampler(""))
    trial = run_trial(operator, workload, 0, Candidate(operator, [workload], function, device), session)
    return trial, {flag.value for flag in INTEGRITY & set(trial.flags)}
