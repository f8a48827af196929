"""Where the cells of a build run: on this machine, or on another executor such as a Dask cluster."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Protocol

from kernels_bench_tools.notebooks.graph import CellName, Node
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.run.cache.entry import StoredResult
from kernels_bench_tools.run.cell import CellTask, finish, run_cell
from kernels_bench_tools.run.cell_inputs import write_inputs
from kernels_bench_tools.run.environment.base import CellEnvironment, Prepared
from kernels_bench_tools.run.environment.prepare import Preparation
from kernels_bench_tools.run.locks import device_lock
from kernels_bench_tools.run.process.logs import Tail
from kernels_bench_tools.run.process.run import Processes
from kernels_bench_tools.run.progress import Progress
from kernels_bench_tools.run.session import Session
from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.record import Failure, Status


class Executor(Protocol):
    """Runs the cells of one build. Its methods raise ``InterruptedBuildError`` after :meth:`interrupt`."""

    device: Device
    environment: CellEnvironment
    jobs: int
    """How many cells that do not measure can run at once."""
    sessions: int
    """How many sessions can run at once."""
    parallel_sessions: bool
    """Whether other cells may be started while a session runs."""

    def prepare(
        self, nodes: Sequence[Node], logs: Mapping[CellName, Path], pool: ThreadPoolExecutor
    ) -> dict[CellName, Prepared]:
        """Make the environments of cells, as far as that is possible before they are assigned to a device."""
        ...

    def run(self, task: CellTask) -> StoredResult:
        """Run a cell that does not measure, and put its outputs and logs into the task's draft."""
        ...

    def measure(self, session: Session) -> None:
        """Run a session on one device, with nothing else on it."""
        ...

    def interrupt(self) -> None:
        """End everything that runs, and start nothing more."""
        ...

    def close(self) -> None:
        """Release what the executor holds."""
        ...


class LocalExecutor:
    """This machine: one device, and nothing runs beside a measurement.

    Args:
        project: The project.
        device: What cells run on.
        environment: The kind of environment that cells run in.
        jobs: How many cells that do not measure run at once.
        progress: Receives what the executor does.
        hidden: Folders whose paths are replaced in logs; the project's folder if not given.
        wait_progress: Receives a note when the device is in use by another build; ``progress`` if not given.
    """

    sessions = 1
    parallel_sessions = False

    def __init__(
        self,
        project: Project,
        device: Device,
        environment: CellEnvironment,
        jobs: int,
        progress: Progress,
        *,
        hidden: Mapping[Path, str] | None = None,
        wait_progress: Progress | None = None,
    ) -> None:
        self.device = device
        self.environment = environment
        self.jobs = jobs
        self.processes = Processes()
        self._project = project
        self._hidden = {project.root: ""} if hidden is None else hidden
        self._wait_progress = wait_progress or progress
        self._preparation = Preparation(project, environment, self.processes, progress, self._hidden)
        self._stopped = threading.Event()

    def prepare(
        self, nodes: Sequence[Node], logs: Mapping[CellName, Path], pool: ThreadPoolExecutor
    ) -> dict[CellName, Prepared]:
        """Make all environments, so that nothing is installed beside a measurement."""
        return self._preparation.prepare(nodes, logs, pool)

    def measure(self, session: Session) -> None:
        """Run a session while holding this machine's device among all builds of this user."""
        with device_lock(self.device.slug, self._wait_progress, self._stopped.is_set):
            session.run(self.run)

    def run(self, task: CellTask) -> StoredResult:
        """Run one process of a cell."""
        tail = Tail([task.draft.stdout, task.draft.stderr], task.on_output)
        try:
            prepared = self._preparation.renew(task.prepared, task.node.name, task.draft.environment_log)
            if prepared.reason:
                return finish(task, Status.ERROR, Failure(type="Resolution", msg=prepared.reason))
            return run_cell(
                task,
                python=prepared.python,
                environment=self.environment,
                write_inputs=partial(write_inputs, project=self._project, task=task),
                hidden=self._hidden,
                processes=self.processes,
                watch=tail.look,
            )
        except OSError as error:
            return finish(task, Status.ERROR, Failure(type=type(error).__name__, msg=str(error)))

    def interrupt(self) -> None:
        """End everything that runs, and start nothing more."""
        self._stopped.set()
        self.processes.interrupt()

    def close(self) -> None:
        """Do nothing: this machine has nothing to release."""
