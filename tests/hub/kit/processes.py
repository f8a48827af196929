"""Fresh processes to load kernels in."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[3]


@dataclass(frozen=True)
class Outcome:
    """How the last call of a case ended, and what the process then knew."""

    status: str
    reason: str
    value: float | None
    seconds: float
    loaded: list[dict[str, Any]]
    imported: bool
    """Whether the process had imported ``kernels``."""
    all: list[dict[str, Any]]
    """How each call ended."""


class Processes:
    """Runs each case in a process of its own."""

    def __init__(self) -> None:
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        self._worker = subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name("worker.py"))],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in paths if path)},
        )
        assert self._worker.stdout.readline() == "ready\n"

    def run(
        self, calls: Sequence[dict[str, Any]], folder: Path, variables: dict[str, str], before: str = ""
    ) -> Outcome:
        """Make the calls of ``get_kernel`` in one fresh process and return how the last one ended."""
        answer = self._ask(
            {"calls": list(calls), "folder": str(folder), "variables": variables, "before": before}
        )
        last = answer["outcomes"][-1]
        return Outcome(
            status=last["status"],
            reason=last.get("reason", ""),
            value=last.get("value"),
            seconds=answer["seconds"],
            loaded=answer["loaded"],
            imported=answer["imported"],
            all=answer["outcomes"],
        )

    def build(self, request: dict[str, Any]) -> dict[str, Any]:
        """Build from source as ``kbt hub build`` does; return its exit code, its output and its errors."""
        return self._ask({"build": request, "before": "", "folder": str(ROOT), "variables": {}})

    def _ask(self, case: dict[str, Any]) -> dict[str, Any]:
        self._worker.stdin.write(json.dumps(case) + "\n")
        self._worker.stdin.flush()
        answer: dict[str, Any] = json.loads(self._worker.stdout.readline())
        assert "error" not in answer, answer
        return answer

    def close(self) -> None:
        """End the process that the others come from."""
        self._worker.stdin.close()
        self._worker.wait(timeout=30)
        self._worker.stdout.close()
