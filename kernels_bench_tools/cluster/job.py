"""Runs one job of a build on a worker, with what it came with put where a local build has it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec

from kernels_bench_tools.cluster.payload import Job, Left
from kernels_bench_tools.cluster.worker_state import Desk, make_environment
from kernels_bench_tools.run.cache.store import Draft, Entry, StoredResult
from kernels_bench_tools.run.cell import CellTask, finish, run_cell
from kernels_bench_tools.run.cell_inputs import hand_over
from kernels_bench_tools.run.environment.base import find_environment
from kernels_bench_tools.run.process.logs import Tail
from kernels_bench_tools.run.process.run import Processes
from kernels_bench_tools.schema.record import Failure, Status

_LINES, _LINE_LENGTH = 20, 500
"""Of what a cell prints, this much is told at each look; its logs have it all."""


class JobRun:
    """One job on this worker."""

    def __init__(
        self, desk: Desk, job: Job, base: Path, processes: Processes, tell: Callable[[list[str]], None]
    ) -> None:
        self.desk = desk
        self.job = job
        self.base = base
        self.processes = processes
        self.tell_lines = tell
        self.project = base / "project"
        """Stands for the client's project: what the cell is given lies where it lies there."""
        self.environment = find_environment(job.recipe.environment)
        self.draft = Draft(base / "draft")
        self.draft.artifacts.mkdir(parents=True)
        for log in (self.draft.stdout, self.draft.stderr, self.draft.environment_log):
            log.touch()

    def run(self) -> Left:
        """Run it to its end, well or not."""
        job = self.job
        task = CellTask(job.name, job.cell, job.context, job.device, self.draft, self._hidden(), job.policy)
        try:
            result = self._run(task)
        except OSError as error:
            result = finish(task, Status.ERROR, Failure(type=type(error).__name__, msg=str(error)))
        files = {
            path.relative_to(self.draft.folder).as_posix(): path.read_bytes()
            for path in sorted(self.draft.folder.rglob("*"))
            if path.is_file()
        }
        left = Left(result, files)
        result.artifacts = left.artifacts
        return left

    def _run(self, task: CellTask) -> StoredResult:
        recipe = self.job.recipe
        prepared, log = make_environment(self.desk, recipe, self.environment, self.processes)
        self.draft.environment_log.write_bytes(log)
        if prepared.reason:
            return finish(task, Status.ERROR, Failure(type="Resolution", msg=prepared.reason))
        lines: list[str] = []
        tail = Tail([self.draft.stdout, self.draft.stderr], lines.append)

        def look() -> None:
            tail.look()
            if lines:
                self.tell_lines([line[:_LINE_LENGTH] for line in lines[-_LINES:]])
                lines.clear()

        script = self.desk.depot.script(recipe)
        return run_cell(task, prepared.python, script, self.environment, self._tell, self.processes, look)

    def _hidden(self) -> dict[Path, str]:
        """Return what stands for paths of this worker: what a local build would show."""
        recipe = self.job.recipe
        script = self.desk.depot.script(recipe)
        cells = f"{recipe.notebook}/.kbt/cells".removeprefix("/")
        return {script.parent: cells, self.desk.depot.tree(recipe) / recipe.root: "", self.project: ""}

    def _tell(self, folder: Path) -> dict[str, str]:
        """Put what the cell is given where it is told to look for it."""
        job, depot = self.job, self.desk.depot
        results = {
            name: Entry(self.project / ".kbt" / "cache" / key, result)
            for name, (key, result) in job.needed.items()
        }
        for entry in results.values():
            entry.artifacts.mkdir(parents=True, exist_ok=True)
            for name, digest in entry.result.artifacts.items():
                depot.place(digest, entry.artifacts / name)
        for name, digest in job.files.items():
            depot.place(digest, self.project / name)
        cells = [
            msgspec.structs.replace(need, directory=str(results[name].artifacts))
            for name, need in zip(job.links.foreign, job.needs.cells, strict=True)
        ]
        files = [str(self.project / name) for name in job.files]
        needs = msgspec.structs.replace(job.needs, project=str(self.project), cells=cells, files=files)
        told = hand_over(folder, job.context, needs, job.links, results)
        if job.lock:
            depot.place(job.lock, folder / "kernels.lock")
            told["KBT_KERNELS_LOCK"] = str(folder / "kernels.lock")
        return job.variables | told
