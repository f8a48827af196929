"""Statuses of exceptions that an implementation raises."""

from __future__ import annotations

import torch

from kernels_bench_tools.errors import Unsupported
from kernels_bench_tools.schema.record import Failure, Status


class CallError(Exception):
    """A call failed in the process of the implementation."""

    def __init__(self, status: Status, failure: Failure) -> None:
        super().__init__(failure.msg)
        self.status, self.failure = status, failure


def failed_status(error: Exception) -> Status:
    """Return the status for an exception."""
    if isinstance(error, CallError):
        return error.status
    if isinstance(error, Unsupported | NotImplementedError):
        return Status.UNSUPPORTED
    # The CPU's allocator raises a plain RuntimeError.
    if isinstance(error, torch.OutOfMemoryError | MemoryError) or "can't allocate memory" in str(error):
        return Status.OOM
    return Status.ERROR


def failure_of(error: Exception) -> Failure:
    """Return an exception for the record."""
    if isinstance(error, CallError):
        return error.failure
    message = " ".join(str(error).split())
    return Failure(type=type(error).__name__, msg=message[:500])
