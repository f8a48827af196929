"""Makes the environments of cells before any of them runs, so that nothing is installed beside a measurement."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from kernels_bench_tools.notebooks.environments import CellEnvironment, Prepared, write_script
from kernels_bench_tools.notebooks.graph import CellName, Node
from kernels_bench_tools.notebooks.outputs import hide_paths, without_paths
from kernels_bench_tools.notebooks.processes import Processes
from kernels_bench_tools.notebooks.progress import Progress


@dataclass(frozen=True)
class Preparation:
    """What making environments takes."""

    environment: CellEnvironment
    processes: Processes
    progress: Progress
    hidden: Mapping[Path, str]
    """Folders whose paths are replaced in logs and reasons."""

    def prepare(
        self, nodes: Sequence[Node], logs: Mapping[CellName, Path], pool: ThreadPoolExecutor
    ) -> dict[CellName, Prepared]:
        """Make the environments of cells side by side; one that cannot be made says why.

        Args:
            nodes: The cells.
            logs: Where to put what making each environment prints.
            pool: What to do it in.
        """
        for node in nodes:
            write_script(node.notebook.script_path(node.cell), self.environment.script(node.cell))
        futures = {node.name: pool.submit(self._prepare_one, node, logs[node.name]) for node in nodes}
        return {name: future.result() for name, future in futures.items()}

    def _prepare_one(self, node: Node, log: Path) -> Prepared:
        name = str(node.name)
        self.progress.environment_started(name)
        try:
            prepared = self.environment.prepare(node.notebook.script_path(node.cell), log, self.processes)
        except OSError as error:
            prepared = Prepared(reason=f"its environment cannot be made: {error}")
        hide_paths(log, self.hidden)
        reason = without_paths(prepared.reason.encode(), self.hidden).decode()
        prepared = replace(prepared, reason=reason)
        self.progress.environment_finished(name, prepared.seconds, not prepared.reason)
        return prepared
