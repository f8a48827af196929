"""Fresh processes to load kernels in."""

import json
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fork_server import ForkServer

ROOT = Path(__file__).parents[3]
HIDDEN = ("HF_", "KERNELS_", "KBT_", "LOCAL_KERNELS", "USE_HUB_KERNELS", "HTTP", "ALL_PROXY")
"""Prefixes of variables that no case gets from this process."""
PREPARE = f"import sys; sys.path.append({str(ROOT / 'tests/hub')!r}); from kit import worker"
BUILD = """
import json, os, sys
import msgspec
from kernels_bench_tools.hub.build.__main__ import main
from kernels_bench_tools.records.hub import BuildRequest

sys.exit(main(msgspec.convert(json.loads(sys.argv[1]), BuildRequest)))
"""
"""What ``kbt hub build`` starts, without starting torch again."""


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
    """Runs each case in a fork of a process that has torch, and nothing of the hub's client.

    The client reads its settings when it is imported, and modules stay for the life of a process; importing torch for
    every case would take minutes.
    """

    def __init__(self) -> None:
        self._server = ForkServer(PREPARE, PYTHONPATH=f"{ROOT}:{os.environ.get('PYTHONPATH', '')}")

    def run(
        self, calls: Sequence[dict[str, Any]], folder: Path, variables: dict[str, str], before: str = ""
    ) -> Outcome:
        """Make the calls of ``get_kernel`` in one fresh process and return how the last one ended."""
        kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(HIDDEN)}
        code = f"{before}\nimport sys\nfrom kit import worker\nworker.run_case(sys.argv[1])\n"
        done = self._server.run(folder, code, json.dumps(calls), variables=kept | variables)
        assert done.returncode == 0, done.stderr
        answer = json.loads(done.stdout.splitlines()[-1])
        last = {"reason": "", "value": None, **answer["all"][-1]}
        return Outcome(**last, **answer)

    def build(self, request: dict[str, Any]) -> tuple[int, str, str]:
        """Build from source as ``kbt hub build`` does; return its exit code, its output and its errors."""
        kept = {name: value for name, value in os.environ.items() if not name.upper().startswith(HIDDEN)}
        done = self._server.run(ROOT, BUILD, json.dumps(request), variables=kept)
        return done.returncode, done.stdout, done.stderr
