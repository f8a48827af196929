"""Where the cells of a build run: on this machine, or on another executor such as a Dask cluster."""

from __future__ import annotations

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from secrets import token_hex
from typing import Protocol

from msgspec import structs

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import copy_file
from kernels_bench_tools.measure.judge.messages import Job
from kernels_bench_tools.measure.judge.runner import STARTER, Judge, JudgedProcess, Judges, leave_a_core
from kernels_bench_tools.notebooks.graph import CellName, Node
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.own_folders import remove_tree, temporary_folder
from kernels_bench_tools.own_process import PYTHON
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.foreign import mark_unjudged
from kernels_bench_tools.records.record import Failure, Status
from kernels_bench_tools.records.request import CONTEXT_VARIABLE
from kernels_bench_tools.run.cache.store import StoredResult
from kernels_bench_tools.run.cell import (
    CellTask,
    calls_combine,
    calls_harness,
    how_it_ended,
    process_result,
    write_inputs,
)
from kernels_bench_tools.run.cell_outputs import Collected, collect_outputs
from kernels_bench_tools.run.environment.base import (
    CellEnvironment,
    CurrentEnvironment,
    Prepared,
    write_process_script,
    write_script,
)
from kernels_bench_tools.run.environment.variables import (
    COMPILED,
    cache_folder,
    compiler_caches,
    forwarded_variables,
    only_gpu,
)
from kernels_bench_tools.run.locks import device_lock
from kernels_bench_tools.run.logs import Logs, hide_paths, public
from kernels_bench_tools.run.process.forks import Forker, can_fork
from kernels_bench_tools.run.process.reaper import reaper
from kernels_bench_tools.run.process.run import InterruptedBuildError, Limits, Processes, Start, wait_for
from kernels_bench_tools.run.progress import Progress
from kernels_bench_tools.run.session import Session

NOT_JUDGED = (
    "its results are not judged: its environment lacks torch or has a different version of kernels-bench-tools. "
    "Fix: kbt upgrade --harness"
)
_HOME, _SCRIPTS = "home", "cells"
"""In the folder of a process: its home, and its script with the cells that it imports."""
_FORKERS = 3
"""Environments whose imports are kept in memory, a few hundred MB each."""
_COMBINER = (
    *("-m", "kernels_bench_tools.forking"),
    *("kernels_bench_tools.chart.figure", "kernels_bench_tools.results.combine"),
)
_FULL_BYTES = 2**16
"""Space in the folder for temporary files below which a cell's result is not final."""


class Executor(Protocol):
    """Runs the cells of one build. Its methods raise ``InterruptedBuildError`` after :meth:`interrupt`."""

    device: Device
    environment: str
    """``"uv"`` or ``"current"``."""
    identity: list[str]
    """What of the environment can change results."""
    jobs: int
    """How many cells that do not measure can run at once."""
    sessions: int
    """How many sessions can run beside other cells; 0 for one session with nothing beside it."""

    def prepare(
        self, nodes: Sequence[Node], logs: Mapping[CellName, Path], pool: ThreadPoolExecutor
    ) -> dict[CellName, Prepared]:
        """Make the environments of cells, as far as that is possible before they are assigned to a device."""

    def run(self, task: CellTask) -> StoredResult:
        """Run a cell that does not measure, and put its outputs and logs into the task's draft."""

    def measure(self, session: Session) -> None:
        """Run a session on one device, with nothing else on it."""

    def interrupt(self) -> None: ...

    def close(self) -> None: ...


class LocalExecutor:
    """This machine: its first device, beside which nothing runs, or several ``gpus``, each with one session at a time.

    GPUs are named as in ``CUDA_VISIBLE_DEVICES``. On a worker of a cluster, ``hidden`` are the folders whose paths are replaced in logs, ``variables`` are those of
    the client that replace the worker's, and ``wait_progress`` receives the note that the device is in use.
    """

    def __init__(
        self,
        project: Project,
        device: Device,
        environment: CellEnvironment,
        jobs: int,
        progress: Progress,
        *,
        gpus: Sequence[str] = (),
        hidden: Mapping[Path, str] | None = None,
        variables: dict[str, str] | None = None,
        wait_progress: Progress | None = None,
    ) -> None:
        self.device = device
        self.environment = environment.name
        self.identity = environment.identity()
        self.jobs = jobs
        self.sessions = len(gpus)
        self._gpus = gpus or ("",)
        self._free = SimpleQueue[str]()
        for gpu in self._gpus:
            self._free.put(gpu)
        self._processes = Processes()
        self._project = project
        self._hidden = {project.root: ""} if hidden is None else hidden
        self._variables = variables
        self._wait_progress = wait_progress or progress
        self._environment = environment
        environment.on_download = progress.downloading
        self._progress = progress
        self._lock = threading.Lock()
        self._forkers: dict[tuple[str, ...], Forker] = {}
        """By Python, what they import and the names of variables that are passed on, the last ones that were used."""
        self._fork_lock = threading.Lock()
        self._torch_device = "cpu" if device.kind == "cpu" else "cuda"
        self._judges = Judges(environment, self._processes, self._torch_device)
        self._stopped = threading.Event()

    def prepare(
        self, nodes: Sequence[Node], logs: Mapping[CellName, Path], pool: ThreadPoolExecutor
    ) -> dict[CellName, Prepared]:
        """Make all environments in parallel, each once, so that nothing is installed beside a measurement."""
        shared: dict[Path, list[Node]] = {}
        for node in nodes:
            code, script = self._environment.script(node.cell), node.notebook.script_path(node.cell)
            write_script(script, code)
            used = self._environment.shared_script(code, script, self._project.state)
            shared.setdefault(used, []).append(node)
        futures = {
            script: pool.submit(self._prepare_one, script, members, logs)
            for script, members in shared.items()
        }
        wait_for(futures.values())
        return {node.name: futures[script].result() for script, members in shared.items() for node in members}

    def _prepare_one(self, script: Path, nodes: Sequence[Node], logs: Mapping[CellName, Path]) -> Prepared:
        name, log = str(nodes[0].name), logs[nodes[0].name]
        if len(nodes) > 1:
            name += f" and {len(nodes) - 1} more"
        self._progress.environment_started(name)
        started = time.monotonic()
        judged = any(calls_harness(node.cell) for node in nodes)
        if judged and isinstance(self._environment, CurrentEnvironment):
            self._start_judges(PYTHON)  # imports while the files of the environment are looked at
        prepared = self._make(script, log)
        for node in nodes[1:]:
            copy_file(log, logs[node.name])
        if judged and prepared.python:
            self._start_judges(prepared.python)
        self._progress.environment_finished(name, time.monotonic() - started, not prepared.reason)
        return prepared

    def _start_judges(self, python: str) -> None:
        """Start what judges cells of an environment, now, so that nothing is installed beside a measurement."""
        with suppress(OSError):  # is told to the cell
            judges = [self._judges.find(python, gpu) for gpu in self._gpus]
            # On a CPU it is not known yet whether cells measure in several processes.
            if can_fork(self.device.kind, 0) and None not in judges and len(self._forkers) < _FORKERS:
                self._find_forker(python, STARTER, self._project.policy.pass_env)

    def _make(self, script: Path, log: Path) -> Prepared:
        try:
            prepared = self._environment.prepare(script, self._project.state, log, self._processes)
        except OSError as error:
            prepared = Prepared(reason=f"its environment cannot be created: {error.strerror or error}")
        hide_paths(log, self._hidden)
        return replace(prepared, reason=public(prepared.reason, self._hidden))

    def _renew(self, task: CellTask) -> Prepared:
        """Return the environment of a cell; made again if its files have changed."""
        prepared, script = task.prepared, task.script
        with self._lock:
            code = self._environment.script(task.cell)
            write_script(script, code, replace=True)
            change = self._change(task, prepared)
            if not change or prepared.files is None:
                return prepared
            if not prepared.script:
                return Prepared(reason=f"its environment changed during this build: {change}")
            what = f"packages in its environment were modified ({change}); creating it again"
            self._progress.note(f"{task.node.name}: {public(what, self._hidden)}")
            self._environment.shared_script(code, script, self._project.state)
            made = self._make(Path(prepared.script), task.draft.environment_log)
            self._close_forkers()  # they have imported what there was before
            if made.files:  # also for the other cells that share it
                prepared.files.adopt(made.files)
            return replace(prepared, reason=made.reason, unsolvable=made.unsolvable)

    def _change(self, task: CellTask, prepared: Prepared) -> str:
        return prepared.change(self._processes.ended(), measures=task.cell.measures)

    def measure(self, session: Session) -> None:
        """Run a session while holding its device among all builds of this user."""
        gpu = self._free.get()
        try:
            with device_lock(self.device, gpu, self._project, self._wait_progress, self._stopped.is_set):
                session.run(partial(self.run, gpu=gpu))
        finally:
            self._free.put(gpu)

    def run(self, task: CellTask, gpu: str = "") -> StoredResult:
        """Run one process of a cell in an empty folder, on this GPU."""
        try:
            task.draft.make()
            prepared = self._renew(task)
            if prepared.reason:
                return task.result_without_environment(prepared)
            before = self._processes.changes()
            if changed := task.changed_input(False):
                return task.outdated_result(f"{changed} since this build began")
            with temporary_folder(reaper().folder) as folder:
                result = self._run_process(task, prepared.python, folder, gpu)
            changed = task.changed_input(True)
            if self._processes.changes() > before:
                changed = changed or "cores, priority or limits of kbt were changed"
            if task.cell.measures or task.node.needs:  # any other may install packages for itself
                changed = changed or self._change(task, prepared)
            if not changed:
                return result
            if self._stopped.is_set():  # what looked for changes was interrupted, too
                raise InterruptedBuildError
            if prepared.script:  # now: uv's cache may have changed with it
                self._renew(task)
            remove_tree(task.draft.artifacts, task.draft.folder)
            task.draft.make()
            outdated = task.outdated_result(public(f"{changed} while it ran", self._hidden))
            return structs.replace(outdated, seconds=result.seconds, exit_code=result.exit_code)
        except (OSError, ProjectError) as error:
            if self._stopped.is_set():  # the process that judges has been ended
                raise InterruptedBuildError from error
            task.draft.make()
            failure = Failure(type=type(error).__name__, msg=public(str(error), self._hidden))
            return task.result(Status.ERROR, failure, transient=True)

    def _run_process(self, task: CellTask, python: str, folder: Path, gpu: str) -> StoredResult:
        """Run the process of a cell in ``folder``, after a crash again for the workloads that are left; keep its files."""
        # Effects are relative: both sides are measured by the cell.
        judged = calls_harness(task.cell) and task.context.request.effect is None
        judge = self._judges.find(python, gpu) if judged else None
        if judged and judge is None:
            self._progress.note(f"{task.node.name}: {NOT_JUDGED}")
        on_cpu = judge is not None and self.device.kind == "cpu"
        job = Job(context=task.context, device=self._torch_device, token=token_hex())
        process = JudgedProcess(task.turn, judge, job, on_cpu=on_cpu)
        start = self._start(task, python, folder, judge, gpu)
        limits = Limits(task.timeout, task.policy.memory_limit)
        scripts = self._project.relative(task.script.parent)
        hidden = {start.folder: "", folder / _HOME: "~", folder / _SCRIPTS: scripts, **self._hidden}
        logs = Logs(task.draft.stderr, task.draft.stdout, task.on_output, hidden, task.draft.make)
        transient = False
        while True:
            with process.opened() as stdin:
                end = self._processes.run(replace(start, stdin=stdin), limits, logs, process.look)
            transient = transient or end.from_outside
            ended = how_it_ended(task, end)
            written = process.end(ended)
            if not written.more:
                break
        # What it could not write it may lack without an error.
        transient = transient or shutil.disk_usage(folder).free < _FULL_BYTES
        artifacts = task.draft.artifacts
        try:
            collected = collect_outputs(
                start.folder, task.cell.outputs, artifacts, task.policy.artifact_limit, written.files
            )
        except OSError as error:  # usually a full disk; what was copied before is complete
            collected = Collected(excess=f"its files cannot be copied: {error.strerror or error}")
            transient = True
        if task.cell.measures:
            for records in artifacts.rglob("*.jsonl"):
                hide_paths(records, hidden)
            mark_unjudged(artifacts, written.files, task.context.process)
        return process_result(task, end, ended, collected, transient=transient, note=self._progress.note)

    def _start(self, task: CellTask, python: str, folder: Path, judge: Judge | None, gpu: str) -> Start:
        """Write what the process of a cell reads into ``folder``; return what it is started with."""
        work, home, compiled = folder / "work", folder / _HOME, folder
        work.mkdir()
        home.mkdir()
        script = write_process_script(
            folder / _SCRIPTS, task.script.name, self._environment.script(task.cell), task.cell, python
        )
        if task.cell.measures:
            compiled = cache_folder(COMPILED, task.key)
            os.utime(compiled)  # its last use
        variables = self._variables_of(home, compiled, task.policy.pass_env, judged=judge is not None)
        variables |= only_gpu(gpu)
        inputs = write_inputs(folder, self._project, task, judge.socket if judge else "")
        forker = None
        if judge and can_fork(self.device.kind, task.context.processes):
            forker = self._find_forker(python, STARTER, task.policy.pass_env)
        elif calls_combine(task.cell) and can_fork():
            forker = self._find_forker(python, _COMBINER, task.policy.pass_env)
        return Start(
            command=[python, *(STARTER if judge else ()), str(script)],
            forker=forker,
            folder=work,
            variables=variables | inputs,
            marker=f"{CONTEXT_VARIABLE}={inputs[CONTEXT_VARIABLE]}",
        )

    def _variables_of(
        self, home: Path, compiled: Path, pass_env: Sequence[str], *, judged: bool
    ) -> dict[str, str]:
        """Return the variables of a process whose compiled kernels are in ``compiled``, without its inputs and its GPU."""
        variables = self._environment.variables(home)
        if self._variables is not None:
            worker = forwarded_variables(variables)
            variables = {name: value for name, value in variables.items() if name not in worker}
            variables |= self._variables
        if judged and self.device.kind == "cpu":
            leave_a_core(variables)
        variables |= compiler_caches(os.environ, compiled)
        return variables | {name: os.environ[name] for name in pass_env if name in os.environ}

    def _find_forker(self, python: str, starter: Sequence[str], pass_env: Sequence[str]) -> Forker:
        """Return what forks processes of an environment, which may still import; if it fails, they are started."""
        key = (python, *starter, *pass_env)
        with self._fork_lock:
            forker = self._forkers.pop(key, None)
            if forker is None or forker.is_spent:
                if forker:
                    forker.close()
                while len(self._forkers) >= _FORKERS:
                    self._forkers.pop(next(iter(self._forkers))).close()
                empty = Path(tempfile.mkdtemp(dir=reaper().folder))  # modules are looked for there, too
                variables = self._variables_of(empty, empty, pass_env, judged=starter == STARTER)
                forker = Forker([python, *starter], variables, empty)
            self._forkers[key] = forker
        return forker

    def _close_forkers(self) -> None:
        while self._forkers:
            self._forkers.popitem()[1].close()

    def interrupt(self) -> None:
        self._stopped.set()
        self._processes.interrupt()
        self.close()

    def close(self) -> None:
        self._judges.close()
        self._close_forkers()
