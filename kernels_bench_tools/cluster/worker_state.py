"""What one worker process keeps between jobs: contents, environments, and who may run now."""

from __future__ import annotations

import tempfile
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernels_bench_tools.cluster.file_store import Depot
from kernels_bench_tools.cluster.payload import Recipe
from kernels_bench_tools.cluster.worker_lock import Gate
from kernels_bench_tools.run.environment.base import CellEnvironment, Prepared
from kernels_bench_tools.run.log_text import hide_paths, without_paths
from kernels_bench_tools.run.process.run import Processes


@dataclass
class Desk:
    """What one worker process keeps between jobs."""

    depot: Depot
    gate: Gate = field(default_factory=Gate)
    lock: threading.Lock = field(default_factory=threading.Lock)
    locks: dict[Path, threading.Lock] = field(default_factory=dict)
    """One for each script whose environment is made, so that it is made once."""
    prepared: dict[tuple[str, Path], tuple[Prepared, bytes]] = field(default_factory=dict)
    """By build and script: the environment, and what making it printed."""


def make_environment(
    desk: Desk, recipe: Recipe, environment: CellEnvironment, processes: Processes
) -> tuple[Prepared, bytes]:
    """Return a cell's environment, and what making it printed; made once for each build."""
    script, tree = desk.depot.script(recipe), desk.depot.tree(recipe)
    root = tree / recipe.root
    shared = environment.shared_script(recipe.script, script, root, desk.depot.folder)
    with desk.lock:
        lock = desk.locks.setdefault(shared, threading.Lock())
    with lock, tempfile.TemporaryDirectory() as folder:
        key = (recipe.build, shared)
        if key not in desk.prepared:
            log = Path(folder) / "environment.txt"
            log.touch()
            prepared = environment.prepare(shared, log, processes)
            hidden = {script.parent: f"{recipe.notebook}/.kbt/cells".removeprefix("/"), root: "", tree: "/"}
            hide_paths(log, hidden)
            reason = without_paths(prepared.reason.encode(), hidden).decode()
            desk.prepared[key] = replace(prepared, reason=reason), log.read_bytes()
        return desk.prepared[key]
