"""Queues of calls that begin when another process says so, which sees their end and times them by its own clock.

Both processes map a page of memory, which the driver lets the GPU read and write, too. In the process of the function a kernel
waits for a word of the page, all calls are queued behind it, and a last kernel writes another word once the whole device
is done. No profiler, event or clock of that process takes part. On a CPU the process itself waits and writes.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import weakref
from collections.abc import Callable
from time import perf_counter
from typing import Any

import torch

MOST_QUEUING_SECONDS = 0.5
"""A queue that is not complete by then begins by itself: a function that waits for the device never completes it."""
_QUEUED, _RELEASED, _ENDED = range(3)
_WORD_BYTES = 4
_current_stream = torch.cuda.current_stream
_PTX = b"""
.version 6.3
.target sm_70
.address_size 64
.visible .entry wait_for(.param .u64 word, .param .u64 most_ns)
{
  .reg .pred %p; .reg .b32 %r; .reg .b64 %a, %end, %now;
  ld.param.u64 %a, [word];
  ld.param.u64 %end, [most_ns];
  mov.u64 %now, %globaltimer;
  add.u64 %end, %end, %now;
again:
  ld.volatile.global.u32 %r, [%a];
  setp.ne.u32 %p, %r, 0;
  @%p ret;
  mov.u64 %now, %globaltimer;
  setp.lt.u64 %p, %now, %end;
  @%p bra again;
  ret;
}
.visible .entry mark(.param .u64 word)
{
  .reg .b32 %r; .reg .b64 %a;
  ld.param.u64 %a, [word];
  mov.u32 %r, 1;
  st.volatile.global.u32 [%a], %r;
  ret;
}
"""


class NoQueueError(Exception):
    """The device's driver cannot queue calls behind a word of memory."""


class Signals:
    """A page of memory of the process that has the function and of the one that times it.

    ``file`` is the descriptor that the other process has made and closes; -1 to make one.
    """

    def __init__(self, device: str, file: int = -1) -> None:
        self.file = file
        if file < 0:
            self.file = os.memfd_create("signals")
            os.truncate(self.file, mmap.PAGESIZE)
        self._memory = mmap.mmap(self.file, mmap.PAGESIZE)
        self._words = memoryview(self._memory).cast("i")
        self._on_gpu = device.startswith("cuda")
        self._gpu: _Gpu | None = None
        self._asked = 0.0

    def wait(self) -> None:
        """Let what is queued now wait until the other side releases it, in the process that has the function."""
        if self._on_gpu:
            self._gpu = self._gpu or _Gpu(self._memory)
            self._words[_RELEASED] = self._words[_ENDED] = 0
            self._gpu.wait()
            return
        end = perf_counter() + MOST_QUEUING_SECONDS
        self._words[_RELEASED] = self._words[_ENDED] = 0
        self.complete()
        while not self._words[_RELEASED] and perf_counter() < end:
            pass

    def end(self) -> None:
        """Tell the other side when all work so far has ended."""
        if self._gpu:
            self._gpu.mark()
        else:
            self._words[_ENDED] = 1

    def complete(self) -> None:
        """Tell the other side that all is queued."""
        self._words[_QUEUED] = 1

    def begin(self) -> None:
        """Forget the last queue, before the process of the function is asked for another."""
        self._words[_QUEUED], self._asked = 0, perf_counter()

    def time(self, most_seconds: float) -> float | None:
        """Release the queue once it is complete; return the milliseconds until it has ended.

        None if it may not have waited, or takes longer than this.
        """
        words = self._words
        while not words[_QUEUED] and perf_counter() - self._asked < MOST_QUEUING_SECONDS:
            pass
        start, early = perf_counter(), words[_ENDED]
        words[_RELEASED] = 1
        while not words[_ENDED]:
            if perf_counter() - start > most_seconds:
                return None
        ended = perf_counter()
        # Else the kernel may have ceased to wait before it was released.
        waited = not early and start - self._asked < MOST_QUEUING_SECONDS
        return (ended - start) * 1e3 if waited else None


class _Gpu:
    """The kernels that wait for a word of a page and write another."""

    def __init__(self, memory: mmap.mmap) -> None:
        try:
            self._driver, self._memory = ctypes.CDLL("libcuda.so.1"), memory
            place, module = ctypes.c_void_p(), ctypes.c_void_p()
            address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
            portable_and_mapped = 3
            self._do("cuMemHostRegister_v2", address, ctypes.c_size_t(len(memory)), portable_and_mapped)
            self._do("cuMemHostGetDevicePointer_v2", ctypes.byref(place), address, 0)
            # Before the page is unmapped: another one may get its address.
            weakref.finalize(self, self._driver.cuMemHostUnregister, address).atexit = False
            self._page = place.value or 0
            self._do("cuModuleLoadData", ctypes.byref(module), _PTX)
            self._wait, self._mark = (self._function(module, name) for name in (b"wait_for", b"mark"))
            self._context, self._event = ctypes.c_void_p(), ctypes.c_void_p()
            self._do("cuCtxGetCurrent", ctypes.byref(self._context))
            self._do("cuEventCreate", ctypes.byref(self._event), 2)  # without a time
            # Loads the kernels, which would block behind one that waits.
            self._launch(self._wait, _QUEUED, 0)
            self.mark()
            torch.cuda.synchronize()
        except (OSError, AttributeError, RuntimeError) as error:
            raise NoQueueError(str(error)) from None

    def _do(self, name: str, *arguments: Any) -> None:
        if code := getattr(self._driver, name)(*arguments):
            raise RuntimeError(f"{name} failed with {code}")

    def _function(self, module: ctypes.c_void_p, name: bytes) -> ctypes.c_void_p:
        found = ctypes.c_void_p()
        self._do("cuModuleGetFunction", ctypes.byref(found), module, name)
        return found

    def wait(self) -> None:
        self._launch(self._wait, _RELEASED, int(MOST_QUEUING_SECONDS * 1e9))

    def mark(self) -> None:
        # Work on other streams, too, as far as the driver can say so (CUDA 12.5).
        record: Callable[..., int] | None = getattr(self._driver, "cuCtxRecordEvent", None)
        if record is not None and not record(self._context, self._event):
            self._do("cuStreamWaitEvent", self._stream(), self._event, 0)
        self._launch(self._mark, _ENDED)

    def _stream(self) -> ctypes.c_void_p:
        return ctypes.c_void_p(_current_stream().cuda_stream)

    def _launch(self, kernel: ctypes.c_void_p, word: int, *more: int) -> None:
        values = [ctypes.c_uint64(value) for value in (self._page + _WORD_BYTES * word, *more)]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        self._do("cuLaunchKernel", kernel, 1, 1, 1, 1, 1, 1, 0, self._stream(), pointers, None)
