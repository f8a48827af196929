"""Where cells run: this machine, or a cluster; a build only knows that it is a workplace.

A cell that measures runs on a bench: a device that is held for a whole session, so that the numbers of one
table come from one card with nothing beside them. Other cells run wherever the workplace likes.
"""

from __future__ import annotations

import importlib.util
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.notebooks.graph import CellName, Node
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.run.cache.store import Entry, StoredResult
from kernels_bench_tools.run.cell import CellTask, finish, run_cell
from kernels_bench_tools.run.cell_inputs import hand_over
from kernels_bench_tools.run.environment.base import CellEnvironment, Prepared
from kernels_bench_tools.run.environment.prepare import Preparation
from kernels_bench_tools.run.locks import device_lock
from kernels_bench_tools.run.process.logs import Tail
from kernels_bench_tools.run.process.run import Processes
from kernels_bench_tools.run.progress import Progress
from kernels_bench_tools.schema.build import Needs
from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.record import Failure, Status


@dataclass(frozen=True)
class Errand:
    """One process of a cell, to be run."""

    node: Node
    task: CellTask
    prepared: Prepared
    """Its environment, as the workplace's ``prepare`` returned it."""
    needs: Needs
    results: Mapping[CellName, Entry]
    """How the cells that it needs ended, among others."""
    output: Callable[[str], None]
    """Told of each line that it prints."""
    cancelled: Callable[[], bool]
    """Asked now and then whether nobody wants the result any more."""


def need_distributed() -> None:
    """Raise a ``ProjectError`` if Dask is not installed."""
    if importlib.util.find_spec("distributed") is None:
        what = "needs the package 'distributed', which comes with the extra `cluster`"
        raise ProjectError("a cluster", what, "", "Install `kernels-bench-tools[report,cluster]`")


class LostPlaceError(Exception):
    """The place where a process ran is gone; there may be others.

    Args:
        place: What people call it.
        cell: The cell whose process ran there; None if none did.
    """

    def __init__(self, place: str, cell: CellName | None = None) -> None:
        super().__init__(place)
        self.place = place
        self.cell = cell


class Bench(Protocol):
    """A device that is held."""

    def run(self, errand: Errand) -> StoredResult:
        """Run one process to its end, and put what it leaves into its task's draft.

        Raises:
            InterruptedBuildError: The build was interrupted meanwhile.
            CancelledCellError: Nobody wants the result any more.
            LostPlaceError: The device is gone.
        """
        ...


class Workplace(Bench, Protocol):
    """Where the cells of one build run; its ``run`` is for those that do not measure."""

    device: Device
    environment: CellEnvironment
    jobs: int
    """How many cells that do not measure are worth starting at once."""
    sessions: int
    """How many sessions can be held at once."""
    apart: bool
    """Whether other cells may be started while a session lasts, since the workplace keeps them away from it."""

    def prepare(
        self, nodes: Sequence[Node], logs: Mapping[CellName, Path], pool: ThreadPoolExecutor
    ) -> dict[CellName, Prepared]:
        """Make the environments of cells, as far as that can be done before it is known where they will run."""
        ...

    def measuring(self, nodes: Sequence[Node]) -> AbstractContextManager[Bench]:
        """Hold a device for a session of these cells, when one is free, with their environments ready.

        Raises:
            InterruptedBuildError: The build was interrupted meanwhile.
            LostPlaceError: The device was lost before anything could run.
        """
        ...

    def interrupt(self) -> None:
        """End everything that runs, and let nothing start any more."""
        ...

    def close(self) -> None:
        """Let go of the workplace."""
        ...


class Here:
    """This machine: one device, and nothing beside a measurement."""

    sessions = 1
    apart = False

    def __init__(
        self, project: Project, device: Device, environment: CellEnvironment, jobs: int, progress: Progress
    ) -> None:
        self.device = device
        self.environment = environment
        self.jobs = jobs
        self.processes = Processes()
        self._progress = progress
        hidden = {project.root: ""}
        self._preparation = Preparation(project, environment, self.processes, progress, hidden)
        self._stopped = threading.Event()

    def prepare(
        self, nodes: Sequence[Node], logs: Mapping[CellName, Path], pool: ThreadPoolExecutor
    ) -> dict[CellName, Prepared]:
        """Make all environments, so that nothing is installed beside a measurement."""
        return self._preparation.prepare(nodes, logs, pool)

    @contextmanager
    def measuring(self, nodes: Sequence[Node]) -> Iterator[Bench]:  # noqa: ARG002
        """Hold this machine's device, among all of this user's builds."""
        with device_lock(self.device.slug, self._progress, self._stopped.is_set):
            yield self

    def run(self, errand: Errand) -> StoredResult:
        """Run one process of a cell."""
        task, node = errand.task, errand.node

        def tell(folder: Path) -> dict[str, str]:
            return hand_over(folder, task.context, errand.needs, node, errand.results)

        script = node.notebook.script_path(node.cell)
        tail = Tail([task.draft.stdout, task.draft.stderr], errand.output)
        try:
            prepared = self._preparation.renew(errand.prepared, node.name, task.draft.environment_log)
            if prepared.reason:
                return finish(task, Status.ERROR, Failure(type="Resolution", msg=prepared.reason))
            return run_cell(
                task,
                prepared.python,
                script,
                self.environment,
                tell,
                self.processes,
                tail.look,
                cancelled=errand.cancelled,
            )
        except OSError as error:
            return finish(task, Status.ERROR, Failure(type=type(error).__name__, msg=str(error)))

    def interrupt(self) -> None:
        """End everything that runs, and let nothing start any more."""
        self._stopped.set()
        self.processes.interrupt()

    def close(self) -> None:
        """Nothing is left to let go of."""
