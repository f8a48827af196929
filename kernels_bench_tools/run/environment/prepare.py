"""Making the environments of cells before any cell runs, so that nothing is installed during a measurement."""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from pathlib import Path

from kernels_bench_tools.notebooks.graph import CellName, Node
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.run.environment.base import CellEnvironment, Prepared, write_script
from kernels_bench_tools.run.log_text import hide_paths, without_paths
from kernels_bench_tools.run.process.run import Processes, wait_for
from kernels_bench_tools.run.progress import Progress


@dataclass(frozen=True)
class Preparation:
    """Makes the environments of one build."""

    project: Project
    environment: CellEnvironment
    processes: Processes
    progress: Progress
    hidden: Mapping[Path, str]
    """Folders whose paths are replaced in logs and messages."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def prepare(
        self, nodes: Sequence[Node], logs: Mapping[CellName, Path], pool: ThreadPoolExecutor
    ) -> dict[CellName, Prepared]:
        """Make the environments of cells in parallel, each once, with the output in the cells' ``logs``."""
        shared: dict[Path, list[Node]] = {}
        for node in nodes:
            code, script = self.environment.script(node.cell), node.notebook.script_path(node.cell)
            write_script(script, code)
            found = self.environment.shared_script(code, script, self.project.root, self.project.state)
            shared.setdefault(found, []).append(node)
        futures = {
            script: pool.submit(self._prepare_one, script, members, logs)
            for script, members in shared.items()
        }
        wait_for(futures.values())
        return {node.name: futures[script].result() for script, members in shared.items() for node in members}

    def renew(self, prepared: Prepared, name: CellName, log: Path) -> Prepared:
        """Return a prepared environment just before a cell starts; made again if a cell changed its packages."""
        if prepared.is_intact():
            return prepared
        with self.lock:
            if prepared.is_intact():
                return prepared
            self.progress.note(
                f"{name}: another cell changed the packages of its environment; it is made again"
            )
            return self._make(Path(prepared.script), log)

    def _prepare_one(self, script: Path, nodes: Sequence[Node], logs: Mapping[CellName, Path]) -> Prepared:
        name, log = str(nodes[0].name), logs[nodes[0].name]
        if len(nodes) > 1:
            name += f" and {len(nodes) - 1} more"
        self.progress.environment_started(name)
        prepared = self._make(script, log)
        for node in nodes[1:]:
            shutil.copyfile(log, logs[node.name])
        self.progress.environment_finished(name, prepared.seconds, not prepared.reason)
        return prepared

    def _make(self, script: Path, log: Path) -> Prepared:
        try:
            prepared = self.environment.prepare(script, log, self.processes)
        except OSError as error:
            prepared = Prepared(reason=f"its environment cannot be made: {error}")
        hide_paths(log, self.hidden)
        return replace(prepared, reason=without_paths(prepared.reason.encode(), self.hidden).decode())
