"""Keys of the cell cache: a digest of everything that can change a cell's result.

Prose, comments, paths of this machine and the rest of the project are not part of it: after editing them, or moving
the checkout, no cell runs again. A key is made of named parts, so that ``kbt plan`` can report which of them changed.
``run/environment/variables.py`` lists the environment variables that are part of it.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec

from kernels_bench_tools.file_io import file_digest
from kernels_bench_tools.notebooks.graph import CellName, Graph, Node
from kernels_bench_tools.notebooks.header import read_header, split_header
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.own_process import PACKAGE_FOLDER
from kernels_bench_tools.records.build import FORWARD, EffectRequest, code_digest
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.hub import LOCK_FILE, builds_folder, described_builds, find_lock
from kernels_bench_tools.records.settings import OPERATORS, operator_modules, shared_files
from kernels_bench_tools.run.cache.entry import FORMAT, Entry
from kernels_bench_tools.run.cache.sources import PACKAGE, Sources, module_digest
from kernels_bench_tools.run.environment.variables import number_variables

UPSTREAM, DATA, SOURCE = "upstream ", "file ", "source of "
"""Prefixes of the names of parts that a cell may have several of."""

_HUB_CALL = "get_kernel"
_DIGITS = 32
"""Length of the digest of a part; all of them are stored with every result."""


@dataclass
class Fingerprints:
    """Computes the keys of one build's cells."""

    project: Project
    graph: Graph
    device: Device
    environment: str
    """``"uv"`` or ``"current"``."""
    identity: list[str]
    """What of the environment can change results."""
    workloads: str = ""
    """Names of workload sets, for cells that measure."""
    mode: str = FORWARD
    """One of ``MODES``, for cells that measure."""
    effect: EffectRequest | None = None
    """The model that cells measure in, instead of workloads."""
    package: Path = PACKAGE_FOLDER.parent
    """The folder that contains this package, which cells in the current environment import."""
    _made: dict[str, dict[str, str]] = field(default_factory=dict, init=False)

    @cached_property
    def _sources(self) -> Sources:
        return Sources(self.package)

    def key(self, node: Node, results: Mapping[CellName, Entry], processes: int = 1) -> str:
        """Return the key of a cell whose needs have ``results`` and which, if it measures, has ``processes``."""
        parts = self.parts(node, results, processes)
        key = hashlib.sha256(msgspec.json.encode(parts, order="deterministic")).hexdigest()
        self._made[key] = parts
        return key

    def parts(self, node: Node, results: Mapping[CellName, Entry], processes: int = 1) -> dict[str, str]:
        """Return the parts of a cell's key: name to digest."""
        upstream = {f"{UPSTREAM}{name}": self._upstream(node, name, results) for name in node.needs}
        return {**self.own_parts(node, processes), **upstream}

    def parts_of(self, key: str) -> dict[str, str]:
        """Return the parts of a key that ``key`` returned."""
        return self._made.get(key, {})

    def own_parts(self, node: Node, processes: int = 1) -> dict[str, str]:
        """Return the parts of a cell's key without those of the cells that it needs."""
        # Not cached: a data file may be edited during a long build.
        values = self._values(node, processes)
        values |= {f"{DATA}{self.project.relative(path)}": file_digest(path) for path in node.files}
        values |= {f"{SOURCE}{name}": digest for name, _, digest in self._source_digests(node)}
        values |= {name: module_digest(path) for name, path in self._operator_files(node).items()}
        return {name: _digest(value) for name, value in values.items()}

    def changed_input(self, node: Node, key: str, results: Mapping[CellName, Entry]) -> str:
        """Return which file or folder of a cell's key has changed since ``key`` was made; empty if none has."""
        known, fresh = self.parts_of(key), replace(self)  # a new one has no cached digests of sources
        try:
            found = fresh.own_parts(node)
            for name in node.needs:
                for artifact, digest in results[name].result.artifacts.items():
                    if file_digest(results[name].artifacts / artifact) != digest:
                        return f"{artifact} of {name} changed"
        except OSError as error:
            return f"{error.filename} cannot be read ({error.strerror})"
        names = {**known, **found}  # a module that was removed is only known
        of_files = (name for name in names if name.startswith((DATA, SOURCE)) or name == LOCK_FILE)
        changed = next((name for name in of_files if found.get(name) != known.get(name)), "")
        return f"{changed} changed" if changed else ""

    def inputs(self, node: Node) -> dict[str, Path]:
        """Return the paths of the parts of a cell's key that are files or folders."""
        files = {f"{DATA}{self.project.relative(path)}": path for path in node.files}
        files |= {f"{SOURCE}{name}": path for name, path, _ in self._source_digests(node)}
        return files | self._operator_files(node)

    def _values(self, node: Node, processes: int) -> dict[str, Any]:
        front, cell = node.notebook.front, node.cell
        code, header = split_header(cell.code)
        values: dict[str, Any] = {
            "cache format": FORMAT,
            "name": node.name,
            "code": code_digest(code),
            "header": [read_header(cell.code) if header else None, cell.deps],
            "outputs": cell.outputs,
            "needs": [node.local, node.foreign, node.whole],
            "environment": self.identity,
            # Also for cells that do not measure: they may print it.
            "device": self.device,
            "platforms": [front.platforms, os.environ.get("UVNOTE_PLATFORM", "")],
            "requires": front.requires,
        }
        if cell.measures:
            values |= {"family": front.family, "workloads": self.workloads, "mode": self.mode}
            values |= {"processes": processes}
            if self.effect:
                models = sorted((self.package / PACKAGE / "models").rglob("*.py"))
                values |= {"effect": self.effect, "models": [module_digest(path) for path in models]}
            values |= {f"variable {name}": value for name, value in number_variables(os.environ).items()}
        if _HUB_CALL in cell.code:
            lock = find_lock(node.notebook.path.parent)
            values |= {LOCK_FILE: file_digest(lock) if lock is not None and lock.is_file() else ""}
            values |= {"USE_HUB_KERNELS": os.environ.get("USE_HUB_KERNELS", "")}
            # Metadata has the digests of all files of a build.
            builds = described_builds(builds_folder(node.notebook.path.parent))
            named = {
                repo: list(map(file_digest, paths)) for repo, paths in builds.items() if repo in cell.code
            }
            values |= {"source builds": named} if named else {}
        return values

    def _source_digests(self, node: Node) -> Iterator[tuple[str, Path, str]]:
        return self._sources.of(node, self.environment == "current")

    def _operator_files(self, node: Node) -> dict[str, Path]:
        """Return the files of the project's own operator that a cell measures, by the names of their parts."""
        folder = self.project.operators_folder
        of_package = {path / PACKAGE / OPERATORS for _, path, _ in self._source_digests(node)}
        if not node.cell.measures or folder in of_package:
            return {}
        modules, name = operator_modules(folder), node.notebook.operator.rpartition("/")[2]
        if name not in modules and (self.package / PACKAGE / OPERATORS / f"{name}.py").is_file():
            return {}
        # If the cell's folder is not named like an operator's module, the cell may use any of them.
        paths = [modules[name]] if name in modules else list(modules.values())
        paths += shared_files(folder) if paths else []
        return {f"{SOURCE}{self.project.relative(path)}": path for path in paths}

    def _upstream(self, node: Node, name: CellName, results: Mapping[CellName, Entry]) -> str:
        result = results[name].result
        seen: list[Any] = [result.status, result.reason, result.artifacts]
        # A cell gets the front matter of the other notebooks that it needs.
        return _digest(seen if name in node.local else [*seen, self.graph.nodes[name].notebook.front])


def _digest(value: Any) -> str:
    data = msgspec.json.encode(value, order="deterministic")
    return hashlib.sha256(data).hexdigest()[:_DIGITS]
