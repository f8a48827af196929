"""Sealed calls: queues whose every call gets inputs that did not exist before, and whose every output is digested before the next.

Two processes map a page of memory: that of the function and that of the judge, whose clock counts. Before each call, a kernel
digests what the call before returned, draws a number from the digest and from a word that the judge writes when it releases the
queue, makes the next call's inputs from that number, and reads so much memory that all caches are cold. It fills the device:
while it runs, no other kernel does. So nothing is computed before a call begins or after it has ended, no table has the inputs,
and the judge says only at the end which outputs it wants to see. Without calls, the same queue runs in the judge's own process;
the difference is the time of the calls. No profiler, event or clock of the function's process takes part.

On a CPU the process itself waits, digests, and exchanges elements of the inputs.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import secrets
import weakref
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import cache
from time import perf_counter
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from kernels_bench_tools.measure.judge.changing_inputs import InputSets
from kernels_bench_tools.measure.judge.memory import fingerprint, is_dense
from kernels_bench_tools.measure.operator import tensors_of
from kernels_bench_tools.measure.timing import seam_kernel as kernel
from kernels_bench_tools.measure.timing.cpu import on_cores_of
from kernels_bench_tools.measure.timing.seam import MOST_QUEUING_SECONDS, Given, NoQueueError, do, seam

MOST_SECONDS = 5.0
"""Of a queue without calls."""
_QUEUED, _SOME, _ALL = 0, 1, 2
"""The word of the page that says how much is queued, and its values."""
_BYTES = mmap.PAGESIZE * -(-8 * (kernel.DIGESTS + kernel.MOST_CALLS) // mmap.PAGESIZE)
_MASK = 2**64 - 1


class SealedCall(NamedTuple):
    """What the judge knows of one call of a queue."""

    key: int
    """The number from which its inputs were made."""
    digest: int


class Seal:
    """A page of memory of the process that has the function and of the one that times it, for that one.

    ``file`` is the descriptor that the other process has made and closes; -1 to make one.
    """

    def __init__(self, file: int = -1) -> None:
        self.file = file
        if file < 0:
            self.file = os.memfd_create("seal")
            os.truncate(self.file, _BYTES)
        self._memory = mmap.mmap(self.file, _BYTES)
        self._words = memoryview(self._memory).cast("Q")
        self._asked, self._seed = 0.0, 0
        self.queuing_seconds = 0.0
        """In which the calls of the last queue were queued."""

    def begin(self) -> None:
        """Forget the last queue, before the process of the function is asked for another."""
        self._seed = secrets.randbits(64)
        self._words[_QUEUED], self._asked = 0, perf_counter()

    def time(self, most_seconds: float, answered: Callable[[], object] | None = None) -> float | None:
        """Release the queue once it is complete; return the milliseconds until it has ended.

        None if it may not have waited, or takes longer than this. ``answered`` waits for its end without taking a core of it.
        """
        words, began = self._words, 0.0
        while words[_QUEUED] != _ALL and perf_counter() - self._asked < MOST_QUEUING_SECONDS:
            began = began or (perf_counter() if words[_QUEUED] else 0.0)
        early, words[kernel.SEED] = words[kernel.ENDED], self._seed
        start = perf_counter()
        words[kernel.RELEASED] = 1
        if answered is not None:
            answered()
        while not words[kernel.ENDED]:
            if perf_counter() - start > most_seconds:
                return None
        ended = perf_counter()
        self.queuing_seconds = start - (began or self._asked)
        # Else the kernel may have ceased to wait before it was released.
        waited = not early and words[kernel.ENDED] == 1 and start - self._asked < MOST_QUEUING_SECONDS
        return (ended - start) * 1e3 if waited else None

    def calls(self, count: int) -> list[SealedCall]:
        """Return what is known of the calls of the last queue; the judge reads it as soon as that has ended."""
        found, key = [], self._seed
        for value in self._words[kernel.DIGESTS : kernel.DIGESTS + count].tolist():
            found.append(SealedCall(key, value))
            key = _mix(key + value & _MASK)
        return found


class HostSeal(Seal):
    """That of a function on a CPU. ``make`` changes the inputs, given a number."""

    def __init__(self, file: int = -1) -> None:
        super().__init__(file)
        self.keys: list[int] = []
        """From which the inputs of the last queue's calls were made."""

    def start(self, make: Callable[[int], object]) -> None:
        """Wait until the other side releases the queue, and then make the first call's inputs."""
        end = perf_counter() + MOST_QUEUING_SECONDS
        self._words[kernel.RELEASED] = self._words[kernel.ENDED] = 0
        self._words[_QUEUED] = _ALL
        while not self._words[kernel.RELEASED]:
            if perf_counter() > end:
                raise NoQueueError("the other side has not released the queue")
        self.first(self._words[kernel.SEED], make)

    def first(self, key: int, make: Callable[[int], object]) -> None:
        """Make the first call's inputs from this number."""
        self.keys = [key]
        make(key)

    def following(self, output: Any, make: Callable[[int], object] | None) -> None:
        """Digest an output, and make the next call's inputs, unless this was the last."""
        found = digest(output)
        self._words[kernel.DIGESTS + len(self.keys) - 1] = found
        if make is not None:
            self.keys.append(_mix(self.keys[-1] + found & _MASK))
            make(self.keys[-1])

    def end(self) -> None:
        """Tell the other side that the queue has ended."""
        self._words[kernel.ENDED] = 1


class GpuSeal(Seal):
    """That of a function on a GPU. ``make`` has the inputs that a kernel makes."""

    def __init__(self, file: int = -1) -> None:
        super().__init__(file)
        self._number = self._place = 0
        with suppress(NoQueueError):  # is raised again by the first queue
            seam()  # compiles

    def start(self, make: Sequence[Given], write: Sequence[Tensor] = ()) -> None:
        """Let what is queued now wait until the other side releases it, and then make the first call's inputs."""
        self._words[kernel.RELEASED] = self._words[kernel.ENDED] = 0
        self._place = self._place or _registered(self._memory)
        seam().work.zero_()
        self._number = -1
        self._launch(kernel.WAIT | kernel.MAKE | kernel.WRITE * bool(write), make, write)
        self._words[_QUEUED] = _SOME

    def following(self, output: Any, make: Sequence[Given] | None, *, write: bool = False) -> None:
        """Digest an output, and make the next call's inputs, unless this was the last; ``write`` over the output, too."""
        self._launch(kernel.MAKE * (make is not None) | kernel.WRITE * write, make or (), tensors_of(output))

    def end(self) -> None:
        """Tell the other side when all that was queued has ended, and that all is queued."""
        if self._place:  # else nothing could be queued
            self._launch(kernel.LAST)
            self._words[_QUEUED] = _ALL

    def _launch(self, stages: int, make: Sequence[Given] = (), returned: Sequence[Any] = ()) -> None:
        self._number += 1
        seam().launch(stages, self._number, make, returned, page=self._place)


class HostReplay:
    """The judge's side of sealed calls on a CPU: it has queues without calls, on the cores of the other process.

    ``sets`` of inputs are like those of the calls, and ``outputs`` like one of theirs.
    """

    def __init__(self, sets: InputSets, outputs: Sequence[Tensor], pid: int) -> None:
        self._sets, self._outputs, self._pid = sets, outputs, pid
        self._seal = HostSeal()

    def is_whole(self, call: SealedCall, output: Any) -> bool:
        """Return whether an output is what was digested as soon as the call had returned it."""
        return digest(output) == call.digest

    def without_calls(self, count: int) -> float:
        """Return the milliseconds of a queue in this process without calls."""
        first, *others = (make for make, _ in self._sets.sealed_on_host(count))
        with on_cores_of(self._pid):
            start = perf_counter()
            self._seal.first(secrets.randbits(64), first)
            for make in [*others, None]:
                self._seal.following(self._outputs, make)
            return (perf_counter() - start) * 1e3


class Replay:
    """The judge's side of sealed calls on a GPU: it makes ``inputs`` again, by ``given``, and has queues without calls.

    ``outputs`` are like those of a call.
    """

    def __init__(self, given: Sequence[Given], inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        self._given, self._inputs, self._outputs = given, tuple(inputs), outputs

    def inputs(self, call: SealedCall) -> tuple[Any, ...]:
        """Return the inputs of a call, which the next one changes."""
        seam().work.zero_()
        seam().launch(kernel.MAKE, 0, self._given, seed=call.key)
        return self._inputs

    def is_whole(self, call: SealedCall, output: Any) -> bool:
        """Return whether an output is what was digested as soon as the call had returned it."""
        self.inputs(call)
        seam().launch(0, 1, (), tensors_of(output))
        return int(seam().work[kernel.CALLS]) & _MASK == call.digest

    def without_calls(self, count: int) -> float | None:
        """Return the milliseconds of a queue in this process that reads inputs and writes outputs in place of calls; without that.

        A kernel that writes one number is launched, too: before a cold one the device needs 3 us more than between two of ours.
        """
        own, given, outputs = _own_seal(), self._given, self._outputs
        one = torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        own.begin()
        try:
            own.start(given, outputs)
        except NoQueueError:
            return None
        for number in range(1, count + 1):
            one.fill_(1.0)
            own.following(outputs, given if number < count else None, write=number < count)
        own.end()
        ms = own.time(MOST_SECONDS)
        torch.cuda.synchronize()
        cycles, whole, ns = seam().work[kernel.WRITE_CYCLES : kernel.ALL_NS + 1].tolist()
        return None if ms is None else ms - ns / max(whole, 1) * cycles / 1e6


def digest(output: Any) -> int:
    """Return 64 bits that change with any element of an output on a CPU."""
    total = 0
    for one in tensors_of(output):
        plain = (
            type(one) in (Tensor, Parameter) and is_dense(one) and not one.is_meta
        )  # others are never right
        total = (total * 3 + (fingerprint(one) if plain else 0)) & _MASK
    return total


def _mix(x: int) -> int:
    """Return what the kernel's ``mix`` does."""
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)


def _registered(memory: mmap.mmap) -> int:
    """Return the address at which a GPU reads and writes memory of this process."""
    try:
        driver, place = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
        portable_and_mapped = 3
        do(driver.cuMemHostRegister_v2, address, ctypes.c_size_t(len(memory)), portable_and_mapped)
        do(driver.cuMemHostGetDevicePointer_v2, ctypes.byref(place), address, 0)
    except (OSError, AttributeError, RuntimeError) as error:
        raise NoQueueError(str(error)) from None
    # Before the page is unmapped: another one may get its address.
    weakref.finalize(memory, driver.cuMemHostUnregister, address).atexit = False
    return place.value or 0


@cache
def _own_seal() -> GpuSeal:
    """Return that of queues which this process times in itself."""
    return GpuSeal()
