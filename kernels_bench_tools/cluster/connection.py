"""The wire to a Dask scheduler: who is there, calls to one worker, and what is said aloud."""

from __future__ import annotations

import logging
import socket
import threading
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from typing import Any
from urllib.parse import urlsplit

from distributed import Client
from distributed.scheduler import KilledWorker

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.notebooks.graph import CellName
from kernels_bench_tools.run.executor import LostPlaceError
from kernels_bench_tools.run.process.run import CancelledCellError, InterruptedBuildError, never

CONNECT_SECONDS = 8
"""How long a scheduler may take to answer."""

_LOOK_SECONDS = 0.1


class Connection:
    """A connection to a scheduler; its calls may come from several threads.

    Args:
        address: The scheduler's, such as ``tcp://host:8786``.
        topic: What this build's workers talk under.
        told: Given each message of the topic, in a thread of Dask's that must not wait.

    Raises:
        ProjectError: No scheduler answers there.
    """

    def __init__(self, address: str, topic: str, told: Callable[[dict[str, Any]], None]) -> None:
        self.address = address
        self.topic = topic
        self.stopped = threading.Event()
        self.joined: list[str] = []
        """Addresses of workers that came since this was last looked at."""
        self.gone: set[str] = set()
        """Addresses of workers that were lost."""
        # Its words about lost connections come as lines of ours, each once.
        for name in ("distributed", "distributed.client"):  # Dask sets the level of each
            logging.getLogger(name).setLevel(logging.CRITICAL + 1)
        try:
            _knock(address)
            # Dask's own settings decide about TLS.
            make: Any = Client  # Dask's functions have no types
            self._client: Any = make(address, timeout=CONNECT_SECONDS, set_as_default=False, name="kbt")
        except (OSError, ValueError, TypeError) as error:
            raise ProjectError(
                f"cluster {address}",
                f"no scheduler answers ({_first_line(error)})",
                "the address of a Dask scheduler, such as tcp://host:8786",
                "`kbt workers` starts one and prints its address",
            ) from None
        self._client.subscribe_topic("all", lambda event: self._note_worker(event[1]))
        self._client.subscribe_topic(topic, lambda event: told(event[1]))

    def workers(self) -> list[str]:
        """Return the addresses of all workers, sorted."""
        return sorted(self._client.scheduler_info()["workers"])

    def ask(self, function: Callable[..., Any], *arguments: Any, workers: Sequence[str]) -> dict[str, Any]:
        """Call a quick function on workers at once; return each one's answer, or the exception that it raised."""
        try:
            answers: dict[str, Any] = self._client.run(
                function, *arguments, workers=list(workers), on_error="return"
            )
        except (OSError, ValueError, TimeoutError) as error:  # a worker that is no more
            return dict.fromkeys(workers, error)
        return answers

    def submit(
        self, function: Callable[..., Any], *arguments: Any, workers: Sequence[str], **more: Any
    ) -> Any:
        """Return the future of a call on one of these workers, and no other.

        Its key is new each time: a call that was taken back is never taken up again.
        """
        return self._client.submit(
            function,
            *arguments,
            workers=list(workers),
            allow_other_workers=False,
            key=f"kbt-{function.__name__}-{uuid.uuid4().hex}",
            pure=False,
            retries=0,
            **more,
        )

    def call(
        self,
        function: Callable[..., Any],
        *arguments: Any,
        worker: str,
        cell: CellName,
        cancelled: Callable[[], bool] = never,
    ) -> Any:
        """Call a function on a worker, and return its answer.

        Raises:
            InterruptedBuildError: The build was interrupted.
            CancelledCellError: ``cancelled`` said so.
            LostPlaceError: The worker is gone.
            ProjectError: The scheduler is gone.
        """
        if worker in self.gone:
            raise LostPlaceError(f"worker {worker}")
        future = self.submit(function, *arguments, workers=[worker])
        ended = threading.Event()
        future.add_done_callback(lambda _: ended.set())
        try:
            while not ended.wait(_LOOK_SECONDS):
                self.check()
                if cancelled():
                    raise CancelledCellError
                if worker in self.gone:
                    raise LostPlaceError(f"worker {worker}", cell)
            return future.result()
        except (KilledWorker, InterruptedBuildError):
            self.check()
            # Its worker closes in good order, and has ended what ran there.
            raise LostPlaceError(f"worker {worker}", cell) from None
        except CancelledError:
            self.check()
            raise self.lost() from None
        finally:
            self.take_back(future)

    def check(self) -> None:
        """Raise if the build was interrupted, or the scheduler is gone."""
        if self.stopped.is_set():
            raise InterruptedBuildError
        if self._client.status != "running":
            raise self.lost()

    def lost(self) -> ProjectError:
        """Return what is said when the scheduler is gone."""
        what = "the scheduler is gone; what was finished is kept"
        return ProjectError(f"cluster {self.address}", what, "", "Start it again, and then the same build")

    def take_back(self, future: Any) -> None:
        """Let go of a call; if it still runs, its worker ends it."""
        if not future.done() and self._client.status == "running":
            future.cancel()
        future.release()

    def close(self) -> None:
        """Let go of the scheduler, which takes back whatever still runs for this client."""
        if self._client.status == "running":
            for topic in ("all", self.topic):
                self._client.unsubscribe_topic(topic)
        self._client.close(timeout=2)

    def _note_worker(self, event: dict[str, Any]) -> None:
        if event.get("action") == "remove-worker":
            self.gone.add(event["worker"])
        elif event.get("action") == "add-worker":
            self.joined.append(event["worker"])


def _knock(address: str) -> None:
    """Raise an ``OSError`` at once where nobody listens: Dask would try again and again."""
    parts = urlsplit(address)
    if parts.scheme in {"tcp", "tls"} and parts.hostname and parts.port:
        socket.create_connection((parts.hostname, parts.port), timeout=CONNECT_SECONDS).close()


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
