"""The key of a cell's result: everything that led to it, and nothing that did not.

Prose, paths of this machine and the rest of the project are not in it, so editing them, or moving the
checkout, runs nothing again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from kernels_bench_tools.devices import Device
from kernels_bench_tools.notebooks.cache import FORMAT, Entry, file_digest
from kernels_bench_tools.notebooks.environments import PACKAGE_FOLDER, CellEnvironment
from kernels_bench_tools.notebooks.graph import CellName, Graph, Node
from kernels_bench_tools.notebooks.headers import path_sources, read_header
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.runs import FORWARD

_PACKAGE = "kernels_bench_tools"
_MEASURING_IMPORTS = ("*.py", "hub/*.py", "measure/**/*.py", "operators/**/*.py")
_OTHER_IMPORTS = ("*.py", "summarize/**/*.py")
_HUB_CALL = "get_kernel"
_LOCK_VARIABLE, _LOCK_NAME = "KBT_KERNELS_LOCK", "kernels.lock"
_NEVER_IMPORTED = "selfcheck"
"""The part of the harness that checks it, which no cell imports."""
_NOT_SOURCE = {"__pycache__", "node_modules", "site", "build", "dist"}


class Fingerprints:
    """Makes the keys of one build; what many cells share is digested once."""

    def __init__(
        self,
        project: Project,
        graph: Graph,
        device: Device,
        environment: CellEnvironment,
        workloads: str = "",
        mode: str = FORWARD,
    ) -> None:
        self.project = project
        self.graph = graph
        self.device = device
        self.environment = environment
        self.workloads = workloads
        self.mode = mode
        self._sources: dict[tuple[Path, bool, str], str] = {}

    def key(self, node: Node, results: Mapping[CellName, Entry], processes: int = 1) -> str:
        """Return the key of a cell whose needs have ``results``.

        Args:
            node: The cell.
            results: How the cells that it needs ended.
            processes: In how many fresh processes it is run, if it measures.
        """
        front, cell = node.notebook.front, node.cell
        parts: dict[str, Any] = {
            "format": FORMAT,
            "cell": node.name,
            "code": cell.code,
            "deps": cell.deps,
            "outputs": cell.outputs,
            "environment": self._identity,
            "device": self.device,
            "requires": front.requires,
            "platforms": [front.platforms, os.environ.get("UVNOTE_PLATFORM", "")],
            "family": front.family if cell.measures else "",
            "workloads": self.workloads if cell.measures else "",
            "mode": self.mode if cell.measures else FORWARD,
            "processes": processes if cell.measures else 1,
            "kernels": self._kernels(node),
            "needs": [self._need(node, name, results) for name in node.needs],
            "files": [(self.project.relative(path), file_digest(path)) for path in node.files],
            "sources": list(self._source_digests(node)),
        }
        return hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()

    @cached_property
    def _identity(self) -> list[str]:
        return self.environment.identity()

    @staticmethod
    def _kernels(node: Node) -> list[str]:
        """Return what decides which hub kernels a cell gets: the lock, and the switch."""
        if _HUB_CALL not in node.cell.code:
            return []
        named = os.environ.get(_LOCK_VARIABLE)
        folders = node.notebook.path.parents
        lock = Path(named) if named else next(filter(Path.is_file, (f / _LOCK_NAME for f in folders)), None)
        return [
            os.environ.get("USE_HUB_KERNELS", ""),
            file_digest(lock) if lock is not None and lock.is_file() else "",
        ]

    def _need(self, node: Node, name: CellName, results: Mapping[CellName, Entry]) -> list[Any]:
        result = results[name].result
        seen: list[Any] = [name, result.status, result.reason, result.artifacts]
        # Of another notebook, the front matter reaches the cell as well.
        return seen if name in node.local else [*seen, self.graph.nodes[name].notebook.front]

    def _source_digests(self, node: Node) -> Iterator[tuple[str, str]]:
        """Yield a digest of each thing on the disk that the cell may import."""
        folder = node.notebook.script_path(node.cell).parent
        for name, written in sorted(path_sources(read_header(node.cell.code)).items()):
            yield name, self._digest(Path(os.path.normpath(folder / written)), node)
        if self.environment.name == "current" and _PACKAGE in node.cell.code:
            yield _PACKAGE, self._digest(PACKAGE_FOLDER.parent, node)

    def _digest(self, source: Path, node: Node) -> str:
        measures, operator = node.cell.measures, node.notebook.operator
        key = (source, measures, operator if measures else "")
        if key not in self._sources:
            digest = hashlib.sha256()
            for path in sorted(_source_files(source, measures, operator)):
                digest.update(f"{path.relative_to(source).as_posix()}\0{file_digest(path)}\n".encode())
            self._sources[key] = digest.hexdigest()
        return self._sources[key]


def _source_files(source: Path, measures: bool, operator: str) -> Iterator[Path]:
    if source.is_file():
        yield source
    elif (source / _PACKAGE / "__init__.py").is_file():
        yield from _package_files(source / _PACKAGE, measures, operator)
    else:
        for folder, folders, files in os.walk(source):
            here = Path(folder)
            folders[:] = [name for name in folders if _holds_source(here / name)]
            for name in files:
                if not name.startswith(".") and (here / name).is_file():
                    yield here / name


def _package_files(package: Path, measures: bool, operator: str) -> Iterator[Path]:
    """Yield what a cell of this role imports: the package is edited all the time, mostly elsewhere."""
    operators = package / "operators"
    # A cell may name another operator than its folder's; where that has no module, it does.
    others = measures and (operators / f"{operator}.py").is_file()
    for pattern in _MEASURING_IMPORTS if measures else _OTHER_IMPORTS:
        for path in package.glob(pattern):
            of_another = others and path.parent == operators and path.stem not in {operator, "__init__"}
            if not of_another and _NEVER_IMPORTED not in path.relative_to(package).parts:
                yield path


def _holds_source(folder: Path) -> bool:
    hidden = folder.name.startswith(".") or folder.name.endswith(".egg-info")
    return not hidden and folder.name not in _NOT_SOURCE and not (folder / "pyvenv.cfg").exists()
