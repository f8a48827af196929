"""Launches the kernel between sealed calls, which digests what a call has returned and makes the next one's inputs."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Parameter

from kernels_bench_tools.measure.timing import seam_kernel
from kernels_bench_tools.measure.timing.caches import flush_bytes
from kernels_bench_tools.measure.timing.seam_kernel import MOST_DIMENSIONS, MOST_GIVEN, MOST_RETURNED

MOST_QUEUING_SECONDS = 0.5
"""A queue that is not complete by then begins by itself: a function that waits for the device never completes it."""
_THREADS = 512
_OF_LAUNCH, _OF_GIVEN, _OF_RETURNED = 10, 7, 4 + 2 * MOST_DIMENSIONS
"""Words of the kernel's argument: all of its structure, in order, are of 64 bits."""
_current_stream = torch.cuda.current_stream


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


class Seam:
    """The kernel, with its memory; ``NoQueueError`` if this torch or driver cannot compile or launch it."""

    def __init__(self) -> None:
        numbers = [(name, value) for name, value in vars(seam_kernel).items() if isinstance(value, int)]
        source = "".join(f"#define {name} {value}\n" for name, value in numbers) + seam_kernel.SOURCE
        try:
            self._kernel = torch.cuda._compile_kernel(source, "seam").func
            self._driver, blocks = ctypes.CDLL("libcuda.so.1"), ctypes.c_int()
            most = self._driver.cuOccupancyMaxActiveBlocksPerMultiprocessor
            do(most, ctypes.byref(blocks), self._kernel, _THREADS, ctypes.c_size_t(0))
        except (AttributeError, ImportError, OSError, RuntimeError) as error:
            raise NoQueueError(str(error)) from None
        device = torch.cuda.current_device()
        self._blocks = blocks.value * torch.cuda.get_device_properties(device).multi_processor_count
        words = seam_kernel.CALLS + 2 * (seam_kernel.MOST_CALLS + 2)
        self.work = torch.zeros(words, dtype=torch.int64, device="cuda")
        self._flush = torch.empty(flush_bytes("cuda") // 8, dtype=torch.int64, device="cuda")
        size = _OF_LAUNCH + _OF_GIVEN * MOST_GIVEN + _OF_RETURNED * MOST_RETURNED
        self._words: Any = (ctypes.c_uint64 * size)()
        self._made: Sequence[Given] | None = None
        self.launch(seam_kernel.FILL, 0)
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
        """Launch it on the current stream, as the one with this ``number`` since the first words of ``work`` were zeros.

        ``page`` is where a GPU finds that of a queue, ``seed`` is in place of its word, and it waits as long as a queue may.
        """
        words = self._words
        plain = [one for one in returned if type(one) in (Tensor, Parameter) and one.is_cuda and one.numel()]
        if len(given) > MOST_GIVEN or len(plain) > MOST_RETURNED:
            raise NoQueueError(f"a call has more than {MOST_GIVEN} inputs or {MOST_RETURNED} outputs")
        memory = self.work.data_ptr(), self._flush.data_ptr(), self._flush.nbytes
        counts = len(given), len(plain)
        words[:_OF_LAUNCH] = [page, *memory, number, stages, *counts, int(MOST_QUEUING_SECONDS * 1e9), seed]
        start = _OF_LAUNCH
        for one in given if given is not self._made else ():
            places = [tensor.data_ptr() for tensor in (one.a, one.b, one.to)]
            sizes = one.a.nbytes, one.step, one.grain, one.a.element_size()
            words[start : start + _OF_GIVEN] = [*places, *sizes]
            start += _OF_GIVEN
        self._made, start = given, _OF_LAUNCH + _OF_GIVEN * MOST_GIVEN
        for value in plain:
            words[start : start + _OF_RETURNED] = _described(value)
            start += _OF_RETURNED
        argument = (ctypes.c_void_p * 1)(ctypes.addressof(words))
        stream = ctypes.c_void_p(_current_stream().cuda_stream)
        grid = (self._blocks, 1, 1, _THREADS, 1, 1, 0)
        do(self._driver.cuLaunchKernel, self._kernel, *grid, stream, argument, None)


def _described(value: Tensor) -> list[int]:
    """Return address, number and size of the elements of a tensor, and its dimensions if there are gaps between them."""
    found = [value.data_ptr(), value.numel(), value.element_size()]
    merged: list[tuple[int, int]] = []
    for stride, size in sorted(zip(value.stride(), value.shape, strict=True), reverse=True):
        if merged and merged[-1][1] == size * stride:
            merged[-1] = (merged[-1][0] * size, stride)
        elif size > 1:
            merged.append((size, stride))
    merged = [] if merged == [(value.numel(), 1)] else merged
    if len(merged) > MOST_DIMENSIONS:
        raise NoQueueError(f"an output has more than {MOST_DIMENSIONS} dimensions with gaps between them")
    unused = [0] * (MOST_DIMENSIONS - len(merged))
    return [
        *found,
        len(merged),
        *(size for size, _ in merged),
        *unused,
        *(step for _, step in merged),
        *unused,
    ]


@cache
def seam() -> Seam:
    """Return the kernel of this process, compiled once."""
    return Seam()


def do(function: Callable[..., int], *arguments: Any) -> None:
    """Call a function of the driver; raise ``RuntimeError`` if it fails."""
    if code := function(*arguments):
        raise RuntimeError(f"{getattr(function, '__name__', function)} failed with {code}")
