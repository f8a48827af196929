"""Which workers of a cluster may run a build's cells: those that give what any other of them would give."""

from __future__ import annotations

import threading
import time

from kernels_bench_tools.cluster import worker as remote
from kernels_bench_tools.cluster.connection import Connection
from kernels_bench_tools.cluster.payload import harness_digest, runner_digest
from kernels_bench_tools.cluster.slots import Place, Places
from kernels_bench_tools.cluster.worker import Introduction
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.run.environment.base import CellEnvironment
from kernels_bench_tools.run.progress import Progress

DEVICE = "device"
"""The resource of Dask that a worker has one of for each device; a session takes it."""

ARRIVAL_SECONDS = 10.0
"""How long a cluster may be without any worker before a build gives up on it."""

_LOOK_SECONDS = 0.25


class Staff:
    """The workers of a cluster, with those that come and go while a build lasts.

    Raises:
        ProjectError: There are none, one of them cannot run cells, or they would give different results.
    """

    def __init__(self, connection: Connection, environment: str, progress: Progress) -> None:
        self._connection = connection
        self._environment = environment
        self._progress = progress
        self._looking = threading.Lock()
        self._runner, self._harness = runner_digest(), harness_digest()
        self.places = Places(self._look)
        found = self._introduce(self._first_workers())
        for address, answer in found.items():
            self._complain(address, answer)
        known = [(address, one) for address, one in found.items() if isinstance(one, Introduction)]
        (self._address, self.first), *others = known
        for address, one in others:
            if difference := self._difference(address, one):
                raise difference
        for address, one in known:
            self._add(address, one)

    def _first_workers(self) -> list[str]:
        deadline = time.monotonic() + ARRIVAL_SECONDS
        while not (workers := self._connection.workers()):
            if time.monotonic() > deadline:
                where = f"cluster {self._connection.address}"
                hint = f"Start some with `kbt workers {self._connection.address}`"
                raise ProjectError(where, "has a scheduler, but no workers", "", hint)
            time.sleep(_LOOK_SECONDS)
        return workers

    def _introduce(self, addresses: list[str]) -> dict[str, Introduction | Exception]:
        return self._connection.ask(remote.introduce, self._environment, workers=addresses)

    def _complain(self, address: str, answer: Introduction | Exception) -> None:
        """Raise if a worker cannot run cells, or runs them with other code than this."""
        where = f"worker {address}"
        if isinstance(answer, ProjectError):
            raise ProjectError(where, str(answer))
        if isinstance(answer, Exception):
            what = f"cannot run cells ({type(answer).__name__}: {answer})"
            hint = "Install kernels-bench-tools[report,cluster] there, or start it with `kbt workers`"
            raise ProjectError(where, what, "this very version of kernels-bench-tools", hint)
        same, remedy = "the same code on all sides", "Update it there, and start it again"
        if answer.runner != self._runner:
            raise ProjectError(where, "runs another version of kernels-bench-tools", same, remedy)
        # Cells in environments of their own bring the harness that their headers ask for.
        if self._environment == "current" and answer.harness != self._harness:
            raise ProjectError(where, "has another harness in kernels-bench-tools", same, remedy)

    def _difference(self, address: str, one: Introduction) -> ProjectError | None:
        """Return what is wrong if a worker would give other results than the first one."""
        where = f"cluster {self._connection.address}"
        if one.device != self.first.device:
            what = (
                f"its workers have different devices: {self._address} has {_told(self.first)}, "
                f"{address} has {_told(one)}"
            )
            return ProjectError(where, what, "one kind of device", "Use a cluster for each kind")
        if one.identity != self.first.identity:
            unequal = sorted(set(one.identity) ^ set(self.first.identity))
            what = f"its workers {self._address} and {address} differ in {', '.join(unequal[:5])}"
            return ProjectError(
                where, what, "the same environment", "Install the same packages on all workers"
            )
        return None

    def _add(self, address: str, one: Introduction) -> None:
        has_device = one.resources.get(DEVICE, 0) >= 1
        self.places.add(Place(address, one.threads, has_device, set(one.stored)))

    def _look(self) -> None:
        """Notice who has come and gone; called by whoever waits for a worker."""
        self._connection.check()
        with self._looking:
            for address in list(self._connection.gone):
                self.places.remove(address)
            joined, self._connection.joined[:] = list(self._connection.joined), []
            fresh = [address for address in joined if address not in self._connection.gone]
            if not fresh:
                return
            for address, answer in self._introduce(fresh).items():
                try:
                    self._complain(address, answer)
                    assert isinstance(answer, Introduction)
                    if difference := self._difference(address, answer):
                        raise difference
                except ProjectError as error:
                    self._progress.note(f"a worker that came is not used: {error}")
                else:
                    self._add(address, answer)


class WorkersEnvironment:
    """An environment as the workers have it: what counts for the cache is theirs, not this machine's."""

    def __init__(self, here: CellEnvironment, identity: list[str]) -> None:
        self.name = here.name
        self.script = here.script
        self.shared_script = here.shared_script
        self.prepare = here.prepare
        self.variables = here.variables
        self._identity = identity

    def identity(self) -> list[str]:
        """Return what of the workers' environment changes results."""
        return self._identity


def _told(one: Introduction) -> str:
    return f"{one.device.name}{f' (driver {one.device.driver})' if one.device.driver else ''}"
