"""The process that judges the cells of a build: it makes inputs and references, compares, and writes the records.

No code of a cell ever runs here. ``kbt`` starts it without ``.pth`` files and user settings, and tells it on standard
input whose turn it is; the processes of cells connect to its socket.
"""

from __future__ import annotations

import gc
import os
import socket
import sys
import time
import traceback
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader
from multiprocessing.connection import Connection, wait
from pathlib import Path
from types import ModuleType
from typing import Any, BinaryIO

import msgspec
import torch

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.measure.device.clocks import ClockSampler
from kernels_bench_tools.measure.device.environment import gpu_uuid
from kernels_bench_tools.measure.device.sentinels import Sentinels
from kernels_bench_tools.measure.judge.candidate import Description
from kernels_bench_tools.measure.judge.messages import Ended, Job, Written
from kernels_bench_tools.measure.judge.remote import RemoteCandidate, announce
from kernels_bench_tools.measure.modes import start_autograd
from kernels_bench_tools.measure.modules import open_problem
from kernels_bench_tools.measure.operator import Operator, find_operator, load_operators
from kernels_bench_tools.measure.project_operators import ReadSource, project_operators
from kernels_bench_tools.measure.session import BenchmarkSession
from kernels_bench_tools.measure.task import Task, TaskState, make_record, measure_task
from kernels_bench_tools.measure.trial import Trial
from kernels_bench_tools.records.code import harness_version
from kernels_bench_tools.records.codec import encode_record
from kernels_bench_tools.records.problem import REFERENCE
from kernels_bench_tools.records.record import Environment, Failure, Status
from kernels_bench_tools.text.names import is_file_name

_ABANDONED = Ended(
    status=Status.ERROR,
    failure=Failure(type="Abandoned", msg="the cell ended this run during a workload"),
)
"""Noted so that the number of earlier runs is right: a cell could end a run that it sees to be slow."""


class OlderFiles(MetaPathFinder):
    """Finds modules in files from before it was made: cells could put others where modules are looked for.

    Nobody can set the time of a file's last change of state. Bytecode is not read.
    """

    def __init__(self) -> None:
        self._made_ns = time.time_ns()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        spec = PathFinder.find_spec(fullname, path, target)
        if spec is None or not spec.has_location or not spec.origin:
            return None
        with open(spec.origin, "rb") as file:  # noqa: PTH123 - what is read must be what is looked at
            if os.fstat(file.fileno()).st_ctime_ns >= self._made_ns:
                return None
            if isinstance(spec.loader, SourceFileLoader):
                spec.loader = ReadSource(fullname, Path(spec.origin), file.read())
        return spec


class _Judge:
    """Judges one cell after the other."""

    def __init__(self, server: socket.socket, answers: BinaryIO) -> None:
        self._server = server
        self._answers = answers
        self._sessions: dict[str, BenchmarkSession] = {}
        self._has_loaded = False
        self._stack = ExitStack()

    def judge(self, job: Job) -> None:
        """Judge the processes of one cell until ``kbt`` says that the cell has ended."""
        if not self._has_loaded:  # before the first cell starts, which could edit what is imported
            if job.context.sources is not None:
                project_operators(job.context.operators, job.context.sources)
            load_operators(job.context.operators)
            harness_version()
            self._has_loaded = True
            if job.context.origin.environment == "uv":  # else packages are the user's, who may install others
                sys.meta_path[:] = [OlderFiles() if one is PathFinder else one for one in sys.meta_path]
        self.answer(Written())
        states: list[TaskState] = []
        number, done_before = 0, -1
        while True:
            ready = wait([self._server, sys.stdin.fileno()])
            if self._server in ready:
                accepted, _ = self._server.accept()
                if number == len(states):
                    if states:
                        _note_crash(states[-1], _ABANDONED)
                    states.append(TaskState())
                with Connection(accepted.detach()) as connection:
                    self._connected(connection, job, states[number], number)
                number += 1
                continue
            ended = _read(Ended)
            done = sum(state.done for state in states)
            if number:
                _note_crash(states[number - 1], ended if ended.failure else _ABANDONED)
            left = any(state.selected is None or state.done < len(state.selected) for state in states)
            more = ended.crashed and done > done_before and left
            self.answer(Written(more=more, files={} if more else _lines(states)))
            if not more:
                return
            number, done_before = 0, done

    def answer(self, answer: Written) -> None:
        """Answer a line of ``kbt``."""
        self._answers.write(msgspec.json.encode(answer) + b"\n")
        self._answers.flush()

    def _connected(self, connection: Connection, job: Job, state: TaskState, number: int) -> None:
        """Judge what a cell's call of ``run_benchmark`` with this number asks for."""
        remote = RemoteCandidate(connection)
        try:
            own = self.session(job.device)
            if connection.recv_bytes(2**10) != job.token.encode():
                raise KbtError("run_benchmark", "is called by another program than the one that kbt started")
            session = replace(own, smaller_results={}, sentinel_ms={})
            session.measure_sentinels()
            announce(connection)
            task = msgspec.json.decode(connection.recv_bytes(2**20), type=Task)
            operator = self._problem(task, job, number) or find_operator(task.operator, job.context.operators)
            _check_task(task, job, operator)
            state.selected = task.selected(operator)
            session.measure_peaks(task.peaks(state.selected))
            records = measure_task(
                task, operator, remote, session, job.context, print=remote.print, state=state
            )
            remote.finish_run(records)
        except (ConnectionError, EOFError) as error:
            remote.fail(str(error))  # mostly it has ended; ``kbt`` says how
        except (KbtError, msgspec.MsgspecError) as error:
            remote.fail(str(error))
        except Exception as error:
            traceback.print_exc()
            remote.fail(f"the judge failed: {type(error).__name__}: {error}")

    def _problem(self, task: Task, job: Job, number: int) -> Operator | None:
        """Return the problem of another harness as an operator: first its reference is measured, and then the candidate."""
        if (request := job.context.problem) is None:
            return None
        if number > 1:
            raise KbtError(request.implementation, "measures more than the reference and itself")
        task.implementation = request.implementation if number else REFERENCE
        if not number:
            self._opened = open_problem(request, Path.cwd(), job.device).module.operator()
        return self._opened

    def session(self, device: str) -> BenchmarkSession:
        """Return what is prepared and measured once in a build."""
        if device not in self._sessions:
            clocks = self._stack.enter_context(ClockSampler(gpu_uuid(device)))
            sentinels = Sentinels(device)
            self._sessions[device] = BenchmarkSession(
                device=device, clocks=clocks, sentinels=sentinels, separate=True
            )
            start_autograd(device)
            sentinels.measure()  # starts the profiler
            gc.freeze()  # torch alone is a million objects
        return self._sessions[device]


def _check_task(task: Task, job: Job, operator: Operator) -> None:
    """Let a task's device and implementation be those of the job.

    Raises ``KbtError`` if the operator, the kind of device or the file is not one that the cell may name.
    """
    where = f"{job.context.origin.notebook}: run_benchmark({task.operator!r})"
    expected = job.context.operator.rpartition("/")[2]
    if expected and operator.name != expected:
        raise KbtError(
            where,
            f"measures another operator than {expected!r}, in whose folder the notebook is",
            "",
            f"Move it to {operator.name}/impls/, or to such a folder elsewhere",
        )
    if task.device.partition(":")[0] != job.device.partition(":")[0]:
        raise KbtError(where, f"measures on {task.device!r}, and this build measures on {job.device!r}", "")
    if not is_file_name(task.file) or not task.file.endswith(".jsonl"):
        raise KbtError(
            where, f"writes to {task.file!r}", "The name of a .jsonl file in the working directory"
        )
    task.device = job.device
    task.implementation = job.context.implementation or task.implementation


def _lines(states: list[TaskState]) -> dict[str, str]:
    """Return the lines of each file of records."""
    found: dict[str, str] = {}
    for state in states:
        if (file := state.file) is not None:
            lines = "".join(encode_record(record).decode() for record in file.records)
            found[file.path.name] = found.get(file.path.name, "") + lines
    return found


def _note_crash(state: TaskState, ended: Ended) -> None:
    """Write the record of the workload during which a cell's process ended."""
    if state.file is None or state.info is None or state.selected is None or state.started == state.done:
        return
    workload = state.selected[state.done]
    trial = Trial(status=ended.status, failure=ended.failure)
    nothing = Description(Environment(), {}, [])
    state.file.append(make_record(state.info, workload, trial, state.description or nothing))
    state.done += 1


def _read(kind: type[Any]) -> Any:
    line = sys.stdin.buffer.readline()
    if not line:
        raise SystemExit  # kbt has ended
    return msgspec.json.decode(line, type=kind)


def main(path: str, device: str) -> None:
    """Listen on the socket ``path``, and judge on a device until standard input ends."""
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what an operator prints is no answer
    with torch.no_grad(), socket.socket(socket.AF_UNIX) as server:
        server.bind(path)
        server.listen()
        judge = _Judge(server, answers)
        judge.answer(Written())
        with suppress(Exception):  # is told to the cell
            judge.session(device)  # while the first one imports
        while True:
            judge.judge(_read(Job))
