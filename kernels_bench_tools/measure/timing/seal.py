"""Sealed calls: queues whose every call gets inputs that did not exist before, and whose every output is digested before the next.

Two processes map a page of memory: that of the function and that of the judge, whose clock counts. Before each call, a kernel
digests what the call before returned, draws a number from the digest and from a word that the judge writes when it releases the
queue, makes the next call's inputs from that number, and reads so much memory that all caches are cold. It fills the device:
while it runs, no other kernel does. So nothing is computed before a call begins or after it has ended, no table has the inputs,
and the judge says only at the end which outputs it wants to see. Without calls, the same queue runs in the judge's own process;
the difference is the time of the calls. No profiler, event or clock of the function's process takes part.

On a CPU the processes themselves wait, digest, and exchange elements of the inputs.
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

from kernels_bench_tools.measure.judge.memory import fingerprint
from kernels_bench_tools.measure.operator import tensors_of

MOST_QUEUING_SECONDS = 0.5
"""A queue that is not complete by then begins by itself: a function that waits for the device never completes it."""
MOST_SECONDS = 5.0
"""Of a queue without calls."""
MOST_CALLS = 1000
"""Of a queue, whose digests fit into the page. The queue of a GPU holds about 1024 kernels."""
MOST_GIVEN, MOST_RETURNED, _MOST_DIMENSIONS = 24, 20, 4
"""Tensors that one kernel makes and digests."""
_QUEUED, _RELEASED, _ENDED, _SEED, _DIGESTS = range(5)
"""Words of the page."""
_SOME, _ALL = 1, 2
"""How much is queued."""
_BYTES = mmap.PAGESIZE * -(-8 * (_DIGESTS + MOST_CALLS) // mmap.PAGESIZE)
_THREADS = 512
_WAIT, _MAKE, _WRITE, _FILL, _LAST = (1 << number for number in range(5))
"""What the kernel does beside digesting."""
_WRITE_CYCLES, _CYCLES, _NS, _CALLS = range(2, 6)
"""Words of the kernel's own memory; two for each call follow: its sum and its number."""
_MASK = 2**64 - 1
_FLUSHED_CACHES, _LEAST_FLUSHED = 4, 2**26
_current_stream = torch.cuda.current_stream
_SOURCE = """
typedef unsigned long long u64;
typedef unsigned int u32;
struct Given { u64 a, b, to, bytes, step, grain, width; };
struct Returned { u64 at, count, width, dims; u64 sizes[4], strides[4]; };
struct Seam {
    u64 page, work, flush, flushed, number, stages, given_count, returned_count, most_ns, seed;
    Given given[24]; Returned returned[20];
};

__device__ u64 now() { u64 ns; asm volatile("mov.u64 %0, %globaltimer;" : "=l"(ns)); return ns; }
__device__ u64 mix(u64 x) {
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
    return x ^ (x >> 31);
}
/* All blocks go on once all have come: until then each of them keeps its place on the device. */
__device__ void meet(volatile u64* work, u64 goal, u64 most_ns) {
    __syncthreads();
    if (!threadIdx.x) {
        __threadfence();
        atomicAdd((u64*)work, 1);
        u64 end = now() + most_ns;
        while (work[0] < goal && !work[1]) if (now() > end) work[1] = 1;
        __threadfence();
    }
    __syncthreads();
}
__device__ u32 chosen(u64 bits, int lane, int width) {
    if (width == 2) return (bits >> (2 * lane) & 1 ? 0xffffu : 0) | (bits >> (2 * lane + 1) & 1 ? 0xffff0000u : 0);
    if (width == 4) return bits >> lane & 1 ? ~0u : 0;
    if (width == 8) return bits >> (lane / 2) & 1 ? ~0u : 0;
    if (width == 16) return bits & 1 ? ~0u : 0;
    u32 mask = 0;
    for (int n = 0; n < 4; n++) if (bits >> (4 * lane + n) & 1) mask |= 0xffu << (8 * n);
    return mask;
}
/* Elements of two tensors, chosen one by one or row by row, beginning at another one. */
__device__ void make(const Given& g, u64 key, u64 first, u64 stride) {
    u64 start = g.step ? mix(key) % (g.bytes / g.step) * g.step : 0;
    bool fine = g.grain == g.width;
    bool wide = !((g.a | g.b | g.to | g.bytes | start) & 15) && (fine || !(g.grain & 15));
    u64 size = wide ? 16 : g.width;
    for (u64 n = first; n < g.bytes / size; n += stride) {
        u64 at = n * size, from = at + start;
        if (from >= g.bytes) from -= g.bytes;
        u64 bits = !g.grain ? ~0ull : mix(key + 1 + (fine ? at / 16 : at / g.grain));
        if (!wide && fine) bits = bits >> (at % 16 / g.width);
        if (wide) {
            uint4 a = *(const uint4*)(g.a + from), b = *(const uint4*)(g.b + from);
            int width = fine ? g.width : 16;
            u32 m0 = chosen(bits, 0, width), m1 = chosen(bits, 1, width);
            u32 m2 = chosen(bits, 2, width), m3 = chosen(bits, 3, width);
            *(uint4*)(g.to + at) = make_uint4(
                a.x & m0 | b.x & ~m0, a.y & m1 | b.y & ~m1, a.z & m2 | b.z & ~m2, a.w & m3 | b.w & ~m3);
        } else {
            u64 source = (bits & 1 ? g.a : g.b) + from;
            for (u64 byte = 0; byte < g.width; byte++) ((char*)(g.to + at))[byte] = ((const char*)source)[byte];
        }
    }
}
__device__ u64 weighted(u64 word, u64 place) {
    return (word ^ (word >> 29)) * ((place + 1) * 0x9E3779B97F4A7C15ull | 1);
}
__device__ u64 digest(const Returned& r, u64 first, u64 stride) {
    u64 sum = 0, bytes = r.count * r.width;
    if (!r.dims && !((r.at | bytes) & 15)) {
        for (u64 n = first; n < bytes / 16; n += stride) {
            ulonglong2 pair = *(const ulonglong2*)(r.at + n * 16);
            sum += weighted(pair.x, 2 * n) + weighted(pair.y, 2 * n + 1);
        }
        return sum;
    }
    for (u64 n = first; n < r.count; n += stride) {
        u64 place = r.dims ? 0 : n, left = n, word = 0;
        for (int d = (int)r.dims - 1; d >= 0; d--) { place += left % r.sizes[d] * r.strides[d]; left /= r.sizes[d]; }
        for (u64 byte = 0; byte < r.width; byte++)
            word = (word << 8 | word >> 56) ^ ((const unsigned char*)(r.at + place * r.width))[byte];
        sum += weighted(word, n);
    }
    return sum;
}
__device__ void add(u64* to, u64 value) {
    for (int lane = 16; lane; lane >>= 1) value += __shfl_down_sync(~0u, value, lane);
    if (!(threadIdx.x & 31)) atomicAdd(to, value);
}
extern "C" __global__ void __launch_bounds__(512, 4) seam(const __grid_constant__ Seam s) {
    volatile u64* work = (volatile u64*)s.work;
    volatile u64* page = (volatile u64*)s.page;
    u64 first = blockIdx.x * (u64)blockDim.x + threadIdx.x, stride = gridDim.x * (u64)blockDim.x;
    bool leader = !first;
    u64 goal = s.number * 4 * gridDim.x, began = now(), cycles = clock64(), written = 0;
    volatile u64* own = work + 5 + 2 * s.number;
    if (leader && s.stages & 1) {
        u64 end = now() + s.most_ns;
        while (!page[1] && !work[1]) if (now() > end) work[1] = 1;
        __threadfence_system();
    }
    if (leader && !s.number) own[1] = page && s.stages & 1 ? page[3] : s.seed;
    meet(work, goal += gridDim.x, s.most_ns);
    u64 sum = 0, count = s.number ? s.returned_count : 0;
    for (u64 n = 0; n < count; n++) sum = sum * 3 + digest(s.returned[n], first, stride);
    if (count) add((u64*)(own - 2), sum);
    meet(work, goal += gridDim.x, s.most_ns);
    u64 key = s.number ? mix(own[-1] + own[-2]) : own[1];
    if (leader && s.number) { own[1] = key; if (page) page[4 + s.number - 1] = own[-2]; }
    if (s.stages & 2) {
        for (u64 n = 0; n < s.given_count; n++) make(s.given[n], mix(key + n), first, stride);
        sum = 0;
        for (u64 n = first; n < s.flushed / 16; n += stride) {
            ulonglong2 pair = *(const ulonglong2*)(s.flush + n * 16);
            u64 x = (pair.x ^ key) * 0xBF58476D1CE4E5B9ull, y = (pair.y + key) * 0x94D049BB133111EBull;
            sum += x ^ x >> 32 ^ y ^ y >> 29;
        }
        add((u64*)own, sum);
    }
    if (s.stages & 8)
        for (u64 n = first; n < s.flushed / 8; n += stride) ((u64*)s.flush)[n] = mix(n + 1);
    meet(work, goal += gridDim.x, s.most_ns);
    if (s.stages & 4) {
        written = clock64();  /* leaves in the caches what a call does */
        u64 longest = 0;
        for (u64 n = 0; n < s.given_count; n++) longest = max(longest, s.given[n].bytes);
        for (u64 n = 0; n < s.returned_count; n++) longest = max(longest, s.returned[n].count * s.returned[n].width);
        for (u64 n = first; n < longest / 16; n += stride) {
            ulonglong2 value = make_ulonglong2(n, key);
            for (u64 g = 0; g < s.given_count; g++) if (n < s.given[g].bytes / 16) {
                ulonglong2 read = ((const ulonglong2*)s.given[g].to)[n];
                value.x ^= read.x; value.y ^= read.y;
            }
            for (u64 r = 0; r < s.returned_count; r++)
                if (n < s.returned[r].count * s.returned[r].width / 16) ((ulonglong2*)s.returned[r].at)[n] = value;
        }
    }
    meet(work, goal += gridDim.x, s.most_ns);
    if (!leader) return;
    if (s.stages & 4) { work[2] += clock64() - written; work[3] += clock64() - cycles; work[4] += now() - began; }
    if (s.stages & 16 && page) { __threadfence_system(); page[2] = work[1] ? 2 : 1; }
}
"""


class NoQueueError(Exception):
    """The device's driver cannot queue calls behind a word of memory."""


class Given(NamedTuple):
    """An input that is made before each call of a queue: ``to`` from elements of ``a`` and ``b``, all flat.

    It begins at a multiple of ``step`` bytes; pieces of ``grain`` bytes are of one of both. 0: as in ``a``.
    """

    a: Tensor
    b: Tensor
    to: Tensor
    step: int
    grain: int


Make = Sequence[Given] | Callable[[int], object]
"""What makes a call's inputs from its number: a function on a CPU."""


class SealedCall(NamedTuple):
    """What the judge knows of one call of a queue."""

    key: int
    """The number from which its inputs were made."""
    digest: int


def mix(x: int) -> int:
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 & _MASK
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB & _MASK
    return x ^ (x >> 31)


class Seal:
    """A page of memory of the process that has the function and of the one that times it.

    ``file`` is the descriptor that the other process has made and closes; -1 to make one.
    """

    def __init__(self, device: str, file: int = -1) -> None:
        self.file = file
        if file < 0:
            self.file = os.memfd_create("seal")
            os.truncate(self.file, _BYTES)
        self._memory = mmap.mmap(self.file, _BYTES)
        self._words = memoryview(self._memory).cast("Q")
        self._on_gpu = device.startswith("cuda")
        self._place = 0
        """Of the page, as the GPU knows it."""
        if self._on_gpu:
            with suppress(NoQueueError):  # is raised again by the first queue
                _gpu()  # compiles
        self._number, self._key = 0, 0
        self._asked, self._seed = 0.0, 0
        self.queuing_seconds = 0.0
        """In which the calls of the last queue were queued."""

    def start(self, make: Make, write: Sequence[Tensor] = ()) -> None:
        """Let what is queued now wait until the other side releases it, and then make the first call's inputs."""
        self._words[_RELEASED] = self._words[_ENDED] = 0
        self._number = 0
        if self._on_gpu:
            self._place = self._place or _registered(self._memory)
            _gpu().work.zero_()
            self._launch(_WAIT | _MAKE | _WRITE * bool(write), make, write)
            self._words[_QUEUED] = _SOME
            return
        end = perf_counter() + MOST_QUEUING_SECONDS
        self.complete()
        while not self._words[_RELEASED] and perf_counter() < end:
            pass
        self._key = self._words[_SEED]
        assert callable(make)
        make(self._key)

    def following(self, output: Any, make: Make | None, *, write: bool = False) -> None:
        """Digest an output, and make the next call's inputs, unless this was the last; ``write`` over the output, too."""
        self._number += 1
        if self._on_gpu:
            self._launch((_MAKE if make is not None else 0) | _WRITE * write, make or (), tensors_of(output))
            return
        found = digest(output)
        self._words[_DIGESTS + self._number - 1] = found
        self._key = mix(self._key + found & _MASK)
        if callable(make):
            make(self._key)

    def end(self) -> None:
        """Tell the other side when all that was queued has ended, and that all is queued."""
        self._number += 1
        if self._on_gpu and self._place:
            self._launch(_LAST)
            self.complete()
        elif not self._on_gpu:
            self._words[_ENDED] = 1

    def complete(self) -> None:
        self._words[_QUEUED] = _ALL

    def _launch(self, stages: int, make: Make = (), returned: Sequence[Any] = ()) -> None:
        assert not callable(make)
        _gpu().launch(stages, self._number, make, returned, page=self._place)

    def begin(self) -> None:
        """Forget the last queue, before the process of the function is asked for another."""
        self._seed = secrets.randbits(64)
        self._words[_QUEUED], self._asked = 0, perf_counter()

    def time(self, most_seconds: float) -> float | None:
        """Release the queue once it is complete; return the milliseconds until it has ended.

        None if it may not have waited, or takes longer than this.
        """
        words, began = self._words, 0.0
        while words[_QUEUED] != _ALL and perf_counter() - self._asked < MOST_QUEUING_SECONDS:
            began = began or (perf_counter() if words[_QUEUED] else 0.0)
        early, words[_SEED] = words[_ENDED], self._seed
        start = perf_counter()
        words[_RELEASED] = 1
        while not words[_ENDED]:
            if perf_counter() - start > most_seconds:
                return None
        ended = perf_counter()
        self.queuing_seconds = start - (began or self._asked)
        # Else the kernel may have ceased to wait before it was released.
        waited = not early and words[_ENDED] == 1 and start - self._asked < MOST_QUEUING_SECONDS
        return (ended - start) * 1e3 if waited else None

    def calls(self, count: int) -> list[SealedCall]:
        """Return what is known of the calls of the last queue; the judge reads it as soon as that has ended."""
        found, key = [], self._seed
        for digest in self._words[_DIGESTS : _DIGESTS + count].tolist():
            found.append(SealedCall(key, digest))
            key = mix(key + digest & _MASK)
        return found


def digest(output: Any) -> int:
    """Return 64 bits that change with any element of an output on a CPU."""
    total = 0
    for one in tensors_of(output):
        total = (total * 3 + (fingerprint(one) if isinstance(one, Tensor) else 0)) & _MASK
    return total


class Replay:
    """The judge's side of sealed calls on a GPU: it makes ``inputs`` again, by ``given``, and has queues without calls.

    ``outputs`` are like those of a call.
    """

    def __init__(self, given: Sequence[Given], inputs: Sequence[Any], outputs: Sequence[Tensor]) -> None:
        self._given, self._inputs, self._outputs = given, tuple(inputs), outputs

    def inputs(self, call: SealedCall) -> tuple[Any, ...]:
        """Return the inputs of a call, which the next one changes."""
        gpu = _gpu()
        gpu.work.zero_()
        gpu.launch(_MAKE, 0, self._given, seed=call.key)
        return self._inputs

    def is_whole(self, call: SealedCall, output: Any) -> bool:
        """Return whether an output is what was digested as soon as the call had returned it."""
        self.inputs(call)
        _gpu().launch(0, 1, (), tensors_of(output))
        return int(_gpu().work[_CALLS]) & _MASK == call.digest

    def without_calls(self, count: int) -> float | None:
        """Return the milliseconds of a queue in this process that reads inputs and writes outputs in place of each call; without that.

        A kernel that writes one number is launched, too: before a cold one the device needs 3 us more than between two of ours.
        """
        try:
            seal, given, outputs = _own_seal(), self._given, self._outputs
        except NoQueueError:
            return None
        one = torch.zeros(1, device="cuda")
        torch.cuda.synchronize()
        seal.begin()
        seal.start(given, outputs)
        for number in range(1, count + 1):
            last = number == count
            one.fill_(1.0)
            seal.following(outputs, None if last else given, write=not last)
        seal.end()
        ms = seal.time(MOST_SECONDS)
        torch.cuda.synchronize()
        cycles, whole, ns = _gpu().work[_WRITE_CYCLES:_CALLS].tolist()
        return None if ms is None else ms - ns / max(whole, 1) * cycles / 1e6


def _registered(memory: mmap.mmap) -> int:
    """Return the address at which a GPU reads and writes memory of this process."""
    try:
        driver, place = ctypes.CDLL("libcuda.so.1"), ctypes.c_void_p()
        address = ctypes.c_void_p(ctypes.addressof(ctypes.c_char.from_buffer(memory)))
        portable_and_mapped = 3
        _do(driver.cuMemHostRegister_v2, address, ctypes.c_size_t(len(memory)), portable_and_mapped)
        _do(driver.cuMemHostGetDevicePointer_v2, ctypes.byref(place), address, 0)
    except (OSError, AttributeError, RuntimeError) as error:
        raise NoQueueError(str(error)) from None
    # Before the page is unmapped: another one may get its address.
    weakref.finalize(memory, driver.cuMemHostUnregister, address).atexit = False
    return place.value or 0


def _do(function: Callable[..., int], *arguments: Any) -> None:
    if code := function(*arguments):
        raise RuntimeError(f"{getattr(function, '__name__', function)} failed with {code}")


class _Given(ctypes.Structure):
    _fields_ = [(name, ctypes.c_uint64) for name in ("a", "b", "to", "bytes", "step", "grain", "width")]


class _Returned(ctypes.Structure):
    _fields_ = [
        *((name, ctypes.c_uint64) for name in ("at", "count", "width", "dims")),
        *((name, ctypes.c_uint64 * _MOST_DIMENSIONS) for name in ("sizes", "strides")),
    ]


class _Seam(ctypes.Structure):
    """Arguments of the kernel, as in its source."""

    _fields_ = [
        *(
            (name, ctypes.c_uint64)
            for name in ("page", "work", "flush", "flushed", "number", "stages", "given_count")
        ),
        *((name, ctypes.c_uint64) for name in ("returned_count", "most_ns", "seed")),
        ("given", _Given * MOST_GIVEN),
        ("returned", _Returned * MOST_RETURNED),
    ]


class _Gpu:
    """The kernel between calls, with its memory."""

    def __init__(self) -> None:
        try:
            self._kernel = torch.cuda._compile_kernel(_SOURCE, "seam").func
            self._driver = ctypes.CDLL("libcuda.so.1")
            blocks = ctypes.c_int()
            most = self._driver.cuOccupancyMaxActiveBlocksPerMultiprocessor
            _do(most, ctypes.byref(blocks), self._kernel, _THREADS, ctypes.c_size_t(0))
        except (AttributeError, ImportError, OSError, RuntimeError) as error:
            raise NoQueueError(str(error)) from None
        about = torch.cuda.get_device_properties(torch.cuda.current_device())
        self._blocks = blocks.value * about.multi_processor_count
        self.work = torch.zeros(_CALLS + 2 * (MOST_CALLS + 2), dtype=torch.int64, device="cuda")
        size = max(_FLUSHED_CACHES * about.L2_cache_size, _LEAST_FLUSHED)
        self._flush = torch.empty(size // 8, dtype=torch.int64, device="cuda")
        self._seam = _Seam(
            work=self.work.data_ptr(),
            flush=self._flush.data_ptr(),
            flushed=size,
            most_ns=int(MOST_QUEUING_SECONDS * 1e9),
        )
        self._made: Sequence[Given] | None = None
        self.launch(_FILL, 0)
        torch.cuda.synchronize()

    def launch(
        self,
        stages: int,
        number: int,
        given: Sequence[Given] = (),
        returned: Sequence[Any] = (),
        *,
        page: int = 0,
        seed: int = 0,
    ) -> None:
        seam = self._seam
        plain = [one for one in returned if type(one) in (Tensor, Parameter) and one.is_cuda and one.numel()]
        if len(given) > MOST_GIVEN or len(plain) > MOST_RETURNED:
            raise NoQueueError(f"a call has more than {MOST_GIVEN} inputs or {MOST_RETURNED} outputs")
        seam.page, seam.number, seam.stages, seam.seed = page, number, stages, seed
        if given is not self._made:
            for place, one in enumerate(given):
                bytes_, width = one.a.numel() * one.a.element_size(), one.a.element_size()
                pointers = (one.a.data_ptr(), one.b.data_ptr(), one.to.data_ptr())
                seam.given[place] = _Given(*pointers, bytes_, one.step, one.grain, width)
            self._made = given
        seam.given_count, seam.returned_count = len(given), len(plain)
        for place, value in enumerate(plain):
            seam.returned[place] = _returned(value)
        argument = (ctypes.c_void_p * 1)(ctypes.addressof(seam))
        stream = ctypes.c_void_p(_current_stream().cuda_stream)
        _do(
            self._driver.cuLaunchKernel,
            *(self._kernel, self._blocks, 1, 1, _THREADS, 1, 1, 0, stream, argument, None),
        )


def _returned(value: Tensor) -> _Returned:
    found = _Returned(at=value.data_ptr(), count=value.numel(), width=value.element_size())
    merged: list[tuple[int, int]] = []
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True), reverse=True):
        if size == 1:
            continue
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        else:
            merged.append((size, stride))
    if merged in ([], [(value.numel(), 1)]):
        return found
    if len(merged) > _MOST_DIMENSIONS:
        raise NoQueueError(f"an output has more than {_MOST_DIMENSIONS} dimensions with gaps between them")
    found.dims = len(merged)
    for place, (size, stride) in enumerate(merged):
        found.sizes[place], found.strides[place] = size, stride
    return found


@cache
def _gpu() -> _Gpu:
    return _Gpu()


@cache
def _own_seal() -> Seal:
    """Return that of queues which this process times in itself."""
    _gpu()  # compiles
    return Seal("cuda")
