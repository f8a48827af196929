"""Shared by the tests of operators."""

import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Interpret = Callable[..., str]

SERVER = """
import json
import os
import sys
import traceback

import torch
import triton.language
from triton.runtime.autotuner import Autotuner

import kernels_bench_tools.measure.harness

# Triton 3.7 also times a configuration that is the only one.
Autotuner.do_bench = lambda self, kernel_call, quantiles: [0.0]
exec(sys.argv[1])
for line in sys.stdin:
    folder, script, arguments = json.loads(line)
    process = os.fork()
    if process == 0:
        os.chdir(folder)
        sys.path.insert(0, folder)
        sys.argv = ["-c", *arguments]
        for number, name in ((1, "stdout"), (2, "stderr")):
            os.dup2(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC), number)
        code = 0
        try:
            exec(compile(script, "script", "exec"), {"__name__": "__main__"})
        except BaseException:
            traceback.print_exc()
            code = 1
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    _, status = os.waitpid(process, 0)
    print(os.waitstatus_to_exitcode(status), flush=True)
"""
"""Runs each script in a fork of itself: the imports take one to five seconds."""

INTERPRETER = """
from triton.language import core
from triton.runtime import interpreter
import triton.language as tl


# Where one function of a kernel calls another, the interpreter replaces all of triton.language once more, which took
# 2.7 ms a call and half the time of these tests: once for each launch is enough.
def call(self, *arguments, **options):
    modules = [value for value in self.fn.__globals__.values() if value is tl or value is core]
    if any(core.is_builtin(module.load) for module in modules):
        interpreter._patch_lang(self.fn)
    return self.rewrite()(*arguments, **options)


interpreter.InterpretedFunction.__call__ = call
torch.ones(1, device="meta") * 2  # imports what backward modes use to find the shapes of gradients, in four seconds
"""


PRELUDE = """
import sys
from dataclasses import replace
import torch
import cell
from kernels_bench_tools.measure.correctness.check import check
from kernels_bench_tools.measure.operator import find_operator, no_edge_cases


def judge(operator, workload, function):
    verdict = check(operator, workload, function, operator.for_workload(workload).inputs(workload, "cpu", 0))
    assert verdict.ok and "refused" not in verdict.corr, (workload, verdict.reason, verdict.corr)
    return verdict


"""
"""What scripts that examine a kernel begin with: ``cell`` is its notebook's code."""


class ScriptServer:
    """A process that runs scripts one after another, each in its own fork."""

    def __init__(self, prepare: str = "", **environment: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-c", SERVER, prepare],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, folder: Path, script: str, *arguments: str) -> str:
        """Run a script in a folder that it can import from; return what it prints. It has to succeed."""
        print(json.dumps([str(folder), script, arguments]), file=self._process.stdin, flush=True)
        code = self._process.stdout.readline().strip()
        assert code == "0", (folder / "stderr").read_text(encoding="utf-8")[-4000:]
        return (folder / "stdout").read_text(encoding="utf-8").strip()

    def close(self) -> None:
        """Stop the process, and the script that runs if a test was interrupted."""
        os.killpg(self._process.pid, signal.SIGKILL)
        self._process.communicate()


@pytest.fixture(scope="session")
def compiler() -> Iterator[ScriptServer]:
    """Where kernels are compiled."""
    pytest.importorskip("triton")
    server = ScriptServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def interpreter() -> Iterator[ScriptServer]:
    """Where kernels run in Triton's interpreter."""
    if importlib.util.find_spec("triton") is None:
        pytest.skip("needs triton")
    server = ScriptServer(INTERPRETER, TRITON_INTERPRET="1")
    yield server
    server.close()


@pytest.fixture
def interpret(interpreter: ScriptServer, tmp_path: Path) -> Interpret:
    """Run a script beside a notebook's code, ``cell.py``, in Triton's interpreter; return what it prints."""

    def run(code: str, script: str, *arguments: str) -> str:
        (tmp_path / "cell.py").write_text(code, encoding="utf-8")
        return interpreter.run(tmp_path, PRELUDE + script, *arguments)

    return run
