"""Implementations of layer_norm that cheat, or err as honest ones do."""

import _thread
import gc
import threading
import time
from collections.abc import Callable
from queue import Queue
from typing import Any

import torch
from implementations import attempt
from torch import Tensor

from kernels_bench_tools.measure.operator import Operator, Workload
from kernels_bench_tools.measure.trial import Trial
from kernels_bench_tools.records.record import Flag

Function = Callable[[Tensor, Tensor, Tensor], Any]


def right(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """What an honest implementation returns."""
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, 1e-5)


class Lazy(Tensor):
    """A tensor that computes when something looks at it."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        plain = [value.as_subclass(Tensor) if isinstance(value, cls) else value for value in args]
        return func(*plain, **(kwargs or {}))


def lazy(*inputs: Tensor) -> Tensor:
    return right(*inputs).as_subclass(Lazy)


def fake() -> Function:
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode()

    def fake_output(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        with mode:
            return torch.empty(x.shape, dtype=x.dtype, device=x.device)

    return fake_output


def cached(key: Callable[[Tensor], Any], *, cloned: bool = True) -> Function:
    """Return the first result for each key of the input."""
    kept: dict[Any, Tensor] = {}

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        if key(x) not in kept:
            kept[key(x)] = right(x, weight, bias)
        return kept[key(x)].clone() if cloned else kept[key(x)]

    return function


def same_buffer() -> Function:
    buffers: dict[Any, Tensor] = {}

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        return buffers.setdefault(x.shape, torch.empty_like(x)).copy_(right(x, weight, bias))

    return function


def unwritten_after_the_first_call() -> Function:
    calls: list[int] = []

    def function(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        calls.append(1)
        return right(x, weight, bias) if len(calls) == 1 else torch.empty_like(x)

    return function


def in_place(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    return x.copy_(right(x, weight, bias))


def poisoning_the_reference(x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
    """Fill every tensor of the input's shape that it can find with NaN, and return NaN."""
    for found in gc.get_objects():
        if type(found) is Tensor and found.shape == x.shape and found.is_floating_point():
            found.fill_(float("nan"))
    return torch.full_like(x, float("nan"))


def noisy(*inputs: Tensor) -> Tensor:
    """Right, and never twice the same."""
    output = right(*inputs)
    return output * (1 + 2e-7 * (torch.rand_like(output) > 0.99))


def threaded(*, joined: bool = False) -> Function:
    """Start a thread in each call, which outlives the call unless it is joined."""

    def function(*inputs: Tensor) -> Tensor:
        thread = threading.Thread(target=time.sleep, args=(0.05,))
        thread.start()
        if joined:
            thread.join()
        return right(*inputs)

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


MATRIX: list[tuple[str, Callable[[], Function], bool, set[str]]] = [
    # name, factory, whether it may pass for right, the flags that a harness must find
    ("honest", lambda: right, True, set()),
    ("as subclass", lambda: lazy, False, {"lazy_output"}),
    ("on meta", lambda: lambda x, w, b: torch.empty_like(x, device="meta"), False, {"lazy_output"}),
    ("fake", fake, False, {"lazy_output"}),
    ("expanded", lambda: lambda x, w, b: right(x, w, b)[:1, :1].expand(x.shape), False, {"lazy_output"}),
    ("negated later", lambda: lambda x, w, b: torch._neg_view(-right(x, w, b)), True, {"lazy_output"}),
    ("cached by pointer, cloned", lambda: cached(Tensor.data_ptr), False, {"stale_output"}),
    ("cached by pointer", lambda: cached(Tensor.data_ptr, cloned=False), False, {"aliased_output"}),
    ("cached by shape", lambda: cached(lambda x: x.shape), False, {"stale_output"}),
    ("same buffer", same_buffer, True, {"aliased_output"}),
    (
        "ignores where its input begins",
        lambda: lambda x, w, b: right(x.as_strided(x.shape, x.stride(), 0), w, b),
        False,
        set(),
    ),
    ("view of its input", lambda: lambda x, w, b: x.view(x.shape), False, {"aliased_output"}),
    ("unwritten after the first call", unwritten_after_the_first_call, False, set()),
    ("in place", lambda: in_place, True, {"input_mutated", "aliased_output"}),
    ("poisons the reference", lambda: poisoning_the_reference, False, set()),
    (
        "half precision",
        lambda: lambda x, w, b: right(x.half(), w.half(), b.half()).to(x.dtype),
        False,
        {"precision"},
    ),
    ("noisy", lambda: noisy, True, {"nondeterministic"}),
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
    trial = attempt(operator, function, workload, device=device)
    return trial, {flag.value for flag in INTEGRITY & set(trial.flags)}
