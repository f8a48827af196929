"""Runs scripts one after another, each in a fork of a process that has imported what takes long.

Each line of that process's standard input is a script: its folder, code, arguments, variables, the files for its output and
its errors, and the seconds after which it is killed. The answer is its exit code.
"""

import atexit
import gc
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from pathlib import Path


class ForkServer:
    """A process that has run ``prepare``, and runs each script in a fork of itself."""

    def __init__(self, prepare: str, python: str = sys.executable, **variables: str) -> None:
        self._process = subprocess.Popen(
            [python, __file__, prepare],
            env=os.environ | variables,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        atexit.register(self._process.kill)

    def run(
        self,
        folder: Path,
        code: str,
        *arguments: str,
        variables: Mapping[str, str] | None = None,
        seconds: int = 600,
    ) -> subprocess.CompletedProcess[str]:
        """Run a script in a folder that it can import from, in the server's environment unless one is given."""
        with tempfile.TemporaryDirectory() as place:
            outputs = [f"{place}/stdout", f"{place}/stderr"]
            script = [str(folder), code, ["kbt", *arguments], variables and {**variables}, outputs, seconds]
            print(json.dumps(script), file=self._process.stdin, flush=True)
            exit_code = int(self._process.stdout.readline())
            texts = [Path(output).read_text(encoding="utf-8") for output in outputs]
        return subprocess.CompletedProcess(["kbt", *arguments], exit_code, *texts)


def serve() -> None:
    exec(sys.argv[1], {})
    gc.freeze()  # torch alone is a million objects
    for line in sys.stdin:
        folder, code, arguments, variables, outputs, seconds = json.loads(line)
        process = os.fork()
        if process == 0:
            os.chdir(folder)
            if variables:
                os.environ.clear()
                os.environ.update(variables)
            sys.argv, sys.path[0] = arguments, folder
            for number, name in enumerate((os.devnull, *outputs)):
                os.dup2(os.open(name, os.O_RDWR | os.O_CREAT), number)
            signal.alarm(seconds)
            exec(compile(code, "script", "exec"), {"__name__": "__main__"})
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(0)  # without Python's own clean-up, and without threads that still wait
        _, status = os.waitpid(process, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    serve()
