"""A candidate in another process: its methods are called by messages over a Unix socket.

Messages are JSON, never pickled. Tensors on the CPU follow as bytes; those on a CUDA device are opened by their
handles, without a copy. The process of the candidate is not trusted: what it sends is checked or compared.
"""

from __future__ import annotations

import os
import select
import socket
import sys
import time
import traceback
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from multiprocessing.connection import Connection
from multiprocessing.reduction import recv_handle, send_handle
from types import MappingProxyType
from typing import Any, get_type_hints

import msgspec
import torch
from torch import Tensor
from torch.nn import Parameter

from kernels_bench_tools.measure.judge.candidate import Candidate, TimedCalls
from kernels_bench_tools.measure.judge.memory import lazy_reason
from kernels_bench_tools.measure.operator import CallError, failed_status, failure_of
from kernels_bench_tools.measure.timing.cupti import MarkersMissingError, NoKernelError
from kernels_bench_tools.measure.timing.queue import Seal
from kernels_bench_tools.measure.timing.seam import NoQueueError
from kernels_bench_tools.records.record import Failure, Record, Status

MOST_BYTES = 2**36
"""Of one message; more would be a mistake or an attack."""
READY = b"ready"
TOKEN: list[bytes] = []
"""What the runner has told this process before the cell's code ran."""
_set_grad_enabled = torch._C._set_grad_enabled
_SPIN_SECONDS = 0.002
"""A core that waits for the next call without sleeping does not lower its clock."""
_METHODS = (
    *("start", "call", "inspect", "prepare", "arguments", "finish", "peak_bytes", "release", "describe"),
    *("open", "make_ahead", "batch", "change_next", "clocked", "queue", "again", "output", "abort"),
)
_HINTS = MappingProxyType(
    {
        name: MappingProxyType(get_type_hints(getattr(Candidate, name), include_extras=True))
        for name in _METHODS
    }
)
"""Types of arguments and results. Converting to a type of the implementation's would run its code."""
_RAISED: dict[str, type[Exception]] = {
    error.__name__: error for error in (MarkersMissingError, NoKernelError, NoQueueError)
}


_DTYPES = {str(value): value for value in vars(torch).values() if isinstance(value, torch.dtype)}
"""By what a message calls them: an attribute of ``torch`` with any name might be a module, which would be imported."""


class _Request(msgspec.Struct):
    """A call of a method."""

    method: str
    arguments: list[Any]
    options: dict[str, Any] = {}


class _Reply(msgspec.Struct):
    """What the method returned or raised."""

    value: Any = None
    status: Status | None = None
    failure: Failure | None = None
    buffers: int = 0
    """Messages with the memory of tensors that follow."""


class _SharedTensor(msgspec.Struct, tag="tensor"):
    """A tensor of the other process."""

    dtype: str
    shape: list[int]
    stride: list[int]
    offset: int
    buffer: int = -1
    """Number of the message with its elements."""
    handle: tuple[int, bytes, int, int, bytes, int, bytes, bool] | None = None
    """Of its memory on a CUDA device."""


class JudgeError(Exception):
    """The process that judges refused the task or failed."""


def announce(connection: Connection) -> None:
    """Tell the other side that this one is ready."""
    connection.send_bytes(TOKEN[0] if TOKEN else READY)


def wait_for_turn(connection: Connection) -> None:
    """Wait until the other side is ready for the candidate."""
    if (message := connection.recv_bytes()) != READY:
        raise JudgeError(msgspec.json.decode(message, type=_Request).arguments[0])


def serve(candidate: TimedCalls, connection: Connection) -> list[Record]:
    """Call the candidate as the other side asks, until that has the records of all workloads; return them."""
    readable = _readable(connection)
    with torch.no_grad():
        while True:
            _spin(readable)
            request = msgspec.json.decode(connection.recv_bytes(), type=_Request)
            if request.method == "print":
                print(request.arguments[0], end="", flush=True)
            elif request.method == "fail":
                raise JudgeError(request.arguments[0])
            elif request.method == "seal":
                candidate.seal(file := recv_handle(connection))
                os.close(file)
            elif request.method == "records":
                return msgspec.convert(request.arguments[0], list[Record])
            else:
                _answer(candidate, connection, request)


def _readable(connection: Connection) -> Callable[[int], list[Any]]:
    found = select.poll()  # a tenth of the time of the connection's own
    found.register(connection.fileno(), select.POLLIN)
    return found.poll


def _spin(readable: Callable[[int], list[Any]]) -> None:
    """Wait for a message, for a while without sleeping."""
    end = time.perf_counter() + _SPIN_SECONDS
    while not readable(0) and time.perf_counter() < end:
        pass


def _answer(candidate: TimedCalls, connection: Connection, request: _Request) -> None:
    buffers: list[bytes] = []
    try:
        hints = list(_HINTS[request.method].values())
        arguments = [msgspec.convert(*pair) for pair in zip(request.arguments, hints, strict=False)]
        _set_grad_enabled(False)  # an earlier call may have changed it
        # Of the class: the object's own could be replaced, ``finish`` too.
        value = getattr(Candidate, request.method)(candidate, *arguments, **request.options)
        reply = _Reply(msgspec.to_builtins(value, enc_hook=partial(_share, buffers)), buffers=len(buffers))
    except Exception as error:
        if failed_status(error) is Status.ERROR and type(error).__name__ not in _RAISED:
            traceback.print_exc(file=sys.stderr)
        buffers.clear()
        reply = _Reply(status=failed_status(error), failure=failure_of(error))
    connection.send_bytes(msgspec.json.encode(reply))
    for buffer in buffers:
        connection.send_bytes(buffer)


def _share(buffers: list[bytes], value: Any) -> Any:
    """Return the description of a value that is neither text nor a number."""
    why = lazy_reason(value, value.device) if type(value) in (Tensor, Parameter) else None
    if why != "":
        return {"type": "other", "name": ": ".join(filter(None, (type(value).__name__, why)))}
    value = value.detach()
    handle = None
    if value.is_cuda:
        torch.cuda.ipc_collect()
        handle = value.untyped_storage()._share_cuda_()
    else:
        value = value.contiguous()
        buffers.append(value.view(-1).view(torch.uint8).numpy().tobytes() if value.numel() else b"")
    shared = _SharedTensor(
        str(value.dtype),
        list(value.shape),
        list(value.stride()),
        value.storage_offset(),
        -1 if handle else len(buffers) - 1,
        handle,
    )
    return msgspec.to_builtins(shared)


class RemoteCandidate:
    """The methods of a :class:`..candidate.Candidate` in another process; ``ConnectionError`` if that has ended."""

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self.pid = 0
        if sys.platform == "linux":
            with socket.fromfd(connection.fileno(), socket.AF_UNIX, socket.SOCK_STREAM) as own:
                credentials = own.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
            self.pid = int.from_bytes(credentials[:4], sys.byteorder)
        self._seal: Seal | None = None

    def seal(self) -> Seal:
        """Return what tells the other process when queues begin, and what it says of its calls."""
        if self._seal is None:
            self._seal = Seal()
            self._send(_Request("seal", []))
            send_handle(self._connection, self._seal.file, 0)
            os.close(self._seal.file)
        return self._seal

    def queue(self, change: int, count: int) -> None:
        """Ask the other process to queue calls, without waiting for the answer."""
        self._send(_Request("queue", [change, count]))

    def answered(self) -> None:
        """Wait for the answer to that."""
        self._reply("queue")

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name not in _METHODS:
            raise AttributeError(name)
        return partial(self._request, name)

    def print(self, text: str) -> None:
        """Print in the other process, whose output is the log."""
        self._send(_Request("print", [text]))

    def fail(self, message: str) -> None:
        """End the service with an error."""
        with suppress(ConnectionError):
            self._send(_Request("fail", [message]))

    def finish_run(self, records: list[Record]) -> None:
        """End the service; its caller gets the records."""
        self._send(_Request("records", [records]))

    def _send(self, request: _Request) -> None:
        try:
            self._connection.send_bytes(msgspec.json.encode(request))
        except OSError as error:
            raise ConnectionError(str(error)) from None

    def _request(self, method: str, *arguments: Any, **options: Any) -> Any:
        self._send(_Request(method, list(arguments), options))
        return self._reply(method)

    def _reply(self, method: str) -> Any:
        try:
            reply = msgspec.json.decode(self._connection.recv_bytes(MOST_BYTES), type=_Reply)
            buffers = [self._connection.recv_bytes(MOST_BYTES) for _ in range(reply.buffers)]
        except (EOFError, OSError) as error:
            raise ConnectionError(str(error)) from None
        except (
            msgspec.MsgspecError,
            UnicodeDecodeError,
        ) as error:  # where the next message starts is unknown
            raise ConnectionError(f"its process gave no valid answer to {method!r}: {error}") from None
        if reply.failure is not None:
            if raised := _RAISED.get(reply.failure.type):
                raise raised(reply.failure.msg)
            raise CallError(reply.status or Status.ERROR, reply.failure)
        try:
            return msgspec.convert(_opened(reply.value, buffers), _HINTS[method]["return"])
        except Exception as error:
            message = f"its process gave no valid answer to {method!r}: {error}"
            raise CallError(Status.ERROR, Failure(type="Invalid", msg=message[:500])) from None


def _opened(value: Any, buffers: list[bytes]) -> Any:
    """Return the value with tensors in place of their descriptions, and objects in place of other values."""
    if isinstance(value, list):
        return [_opened(one, buffers) for one in value]
    if not isinstance(value, dict):
        return value
    if value.get("type") == "tensor":
        shared = msgspec.convert(value, _SharedTensor)
        dtype = _DTYPES[shared.dtype]
        if shared.handle is None:
            memory = bytearray(buffers[shared.buffer])
            empty = torch.empty(0, dtype=torch.uint8)
            flat = torch.frombuffer(memory, dtype=torch.uint8) if memory else empty
            return flat.view(dtype).view(shared.shape)
        storage = torch.UntypedStorage._new_shared_cuda(*shared.handle)
        empty = torch.empty(0, dtype=dtype, device=storage.device)
        return empty.set_(storage, shared.offset, shared.shape, shared.stride)
    if value.get("type") == "other":
        return type(str(value.get("name")), (), {})()
    return {key: _opened(one, buffers) for key, one in value.items()}
