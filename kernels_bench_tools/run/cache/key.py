"""Keys of the cell cache: a digest of everything that can change a cell's result.

Prose, comments, paths of this machine and the rest of the project are not part of it: after editing them, or moving
the checkout, no cell runs again. A key is made of named parts, so that ``kbt plan`` can report which of them changed.
``run/environment/variables.py`` lists the environment variables that are part of it.
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from kernels_bench_tools.file_io import file_digest, read_file, walk_files
from kernels_bench_tools.notebooks.graph import CellName, Graph, Node
from kernels_bench_tools.notebooks.header import read_header, split_header
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.own_process import PACKAGE_FOLDER
from kernels_bench_tools.records.code import code_digest
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.hub import LOCK_FILE, builds_folder, described_builds, find_lock
from kernels_bench_tools.records.request import USUAL_REQUEST, Request
from kernels_bench_tools.records.settings import OPERATORS, operator_modules, operator_sources, shared_files
from kernels_bench_tools.run.cache.store import FORMAT, Entry
from kernels_bench_tools.run.environment.base import local_sources
from kernels_bench_tools.run.environment.variables import number_variables
from kernels_bench_tools.text.foreign import parse_toml
from kernels_bench_tools.text.words import words

UPSTREAM, DATA, SOURCE = "upstream ", "file ", "source of "
"""Prefixes of the names of parts that a cell may have several of."""

_HUB_CALL = "get_kernel"
_DIGITS = 32
"""Length of the digest of a part; all of them are stored with every result."""


class CacheKey(NamedTuple):
    digest: str
    """The name of the entry."""
    parts: dict[str, str]
    """Name to digest."""

    def has_same_code(self, entry: Entry) -> bool:
        """Return whether an entry was made by the same code in the same environment."""
        ours, theirs = self.parts, entry.result.parts
        code = [
            name for name in ours | theirs if name.startswith(SOURCE) or name in {"environment", "header"}
        ]
        return all(ours.get(name) == theirs.get(name) for name in code)


@dataclass
class Fingerprints:
    project: Project
    graph: Graph
    device: Device
    identity: list[str]
    """What of the environment can change results: ``"uv"`` or ``"current"``, and more."""
    request: Request = USUAL_REQUEST
    """What is asked of cells that measure."""
    package: Path = PACKAGE_FOLDER.parent
    """The folder that contains this package, which cells in the current environment import."""
    _variables: dict[str, str] = field(default_factory=lambda: number_variables(os.environ), init=False)
    _sources: dict[tuple[object, ...], str] = field(default_factory=dict, init=False)
    """Digests of local packages, each computed once."""
    operator_sources: dict[str, bytes] | None = None
    """The Python files of the project's own operators when the build began, which cells get; None for this package's."""
    _on_disk: dict[str, bytes] = field(default_factory=dict, init=False)
    """The same, as the last cell that measured has left them."""

    @cached_property
    def _built_in(self) -> Mapping[str, Path]:
        return operator_modules(self.package / PACKAGE / OPERATORS)

    def __post_init__(self) -> None:
        folder = self.project.operators_folder
        if folder != self.package / PACKAGE / OPERATORS:
            self._on_disk = operator_sources(folder)
            self.operator_sources = self._on_disk if self.operator_sources is None else self.operator_sources

    def keys(self, node: Node, results: Mapping[CellName, Entry], counts: Sequence[int]) -> list[CacheKey]:
        """Return the keys of a cell whose needs have ``results``; if it measures, one for each number of processes."""
        parts = self.own_parts(node)
        for name in node.needs:
            result = results[name].result
            seen: list[Any] = [result.status, result.reason, result.artifacts]
            if name not in node.local:  # a cell gets the front matter of the other notebooks that it needs
                seen.append(self.graph.nodes[name].notebook.front)
            parts[f"{UPSTREAM}{name}"] = _digest(seen)
        keys = []
        for variant in with_processes(node, parts, counts):
            encoded = msgspec.json.encode(variant, order="deterministic")
            keys.append(CacheKey(hashlib.sha256(encoded).hexdigest(), variant))
        return keys

    def own_parts(self, node: Node) -> dict[str, str]:
        """Return the parts of a cell's key without the cells that it needs and the number of processes: name to digest."""
        # Not cached: a data file may be edited during a long build.
        values = self._values(node)
        values |= {f"{DATA}{self.project.relative(path)}": file_digest(path) for path in node.files}
        values |= {f"{SOURCE}{name}": digest for name, _, digest in self._source_digests(node)}
        folder, sources = self.project.operators_folder, self.operator_sources or {}
        for name, path in self._operator_files(node).items():
            values[name] = module_digest(path, sources.get(path.relative_to(folder).as_posix()))
        return {name: _digest(value) for name, value in values.items()}

    def changed_input(
        self, node: Node, key: CacheKey, results: Mapping[CellName, Entry], *, ran: bool
    ) -> str:
        """Return which file or folder of a cell's key has changed since ``key`` was made; empty if none has.

        For a cell that measures and has ``ran``, also which of the project's operators, which others get as they were.
        """
        try:
            now = replace(self).own_parts(node)  # a new one has no cached digests of sources
            for name in node.needs:
                if artifact := results[name].changed_artifact():
                    return f"{artifact} of {name} changed"
            if ran and node.cell.measures and self.operator_sources is not None:
                before, self._on_disk = self._on_disk, operator_sources(self.project.operators_folder)
                for path in {**before, **self._on_disk}:
                    if before.get(path) != self._on_disk.get(path):
                        return f"{SOURCE}{self.project.operators}/{path} changed"
        except OSError as error:
            return f"{error.filename} cannot be read ({error.strerror})"
        for part in {**key.parts, **now}:  # a module that was removed has no part now
            of_file = part.startswith((DATA, SOURCE)) or part == LOCK_FILE
            if of_file and now.get(part) != key.parts.get(part):
                return f"{part} changed"
        return ""

    def sources(self, node: Node) -> dict[str, Path]:
        """Return the paths of the parts of a cell's key that are local packages or the project's own operators."""
        sources = {f"{SOURCE}{name}": path for name, path, _ in self._source_digests(node)}
        return sources | self._operator_files(node)

    def _values(self, node: Node) -> dict[str, Any]:
        front, cell = node.notebook.front, node.cell
        has_header = bool(split_header(cell.code)[1])
        values: dict[str, Any] = {
            "cache format": FORMAT,
            "name": node.name,
            "code": code_digest(cell.code),
            "header": [read_header(cell.code) if has_header else None, cell.deps],
            "outputs": cell.outputs,
            "needs": [node.local, node.foreign, node.whole],
            "environment": self.identity,
            # Also for cells that do not measure: they may print it.
            "device": self.device,
            "platforms": [front.platforms, os.environ.get("UVNOTE_PLATFORM", "")],
            "requires": front.requires,
        }
        if cell.imported:
            values |= {"imported": {name: code_digest(text) for name, text in cell.imported.items()}}
        if cell.measures:
            values |= {"family": front.family}
            values |= {name: asked for name, asked in structs.asdict(self.request).items() if asked}
            if self.request.effect:
                models = sorted((self.package / PACKAGE / "models").rglob("*.py"))
                values |= {"models": [module_digest(path) for path in models]}
            values |= {f"variable {name}": value for name, value in self._variables.items()}
        if _HUB_CALL in cell.sources:
            lock = find_lock(node.notebook.path.parent)
            values |= {LOCK_FILE: file_digest(lock) if lock is not None and lock.is_file() else ""}
            values |= {"USE_HUB_KERNELS": os.environ.get("USE_HUB_KERNELS", "")}
            # Metadata has the digests of all files of a build.
            builds = described_builds(builds_folder(node.notebook.path.parent))
            named = {
                repo: list(map(file_digest, paths)) for repo, paths in builds.items() if repo in cell.sources
            }
            values |= {"source builds": named} if named else {}
        return values

    def _source_digests(self, node: Node) -> Iterator[tuple[str, Path, str]]:
        """Yield name, path and digest of each local package that a cell may import.

        This package is always one if the cell runs in the ``current`` environment.
        """
        header = read_header(node.cell.code)
        sources = sorted(local_sources(header, node.notebook.script_path(node.cell)).items())
        if self.identity[0] == "current" and PACKAGE in node.cell.sources:
            sources.append((PACKAGE, self.package))
        listed = (header or {}).get("dependencies", node.cell.deps)
        texts = [text for text in listed if isinstance(text, str)] if isinstance(listed, list) else []
        matches = filter(None, map(_EXTRAS.match, texts))
        extras = sorted({extra.strip() for match in matches for extra in match["extras"].split(",")})
        operator = node.notebook.operator.rpartition("/")[2] if node.cell.measures else ""
        for name, source in sources:
            if not (source / PACKAGE / "__init__.py").is_file():
                key: tuple[object, ...] = (source,)
                files = source_files(source)
            else:
                key = (source, node.cell.measures, operator, *extras)
                files = _package_files(source / PACKAGE, node.cell.measures, operator)
            if key not in self._sources:
                digest = hashlib.sha256()
                for path in sorted(files):
                    inside = path.relative_to(source)
                    # Of the other modules there are too many to read them in each build.
                    digest_of = module_digest if OPERATORS in inside.parts else file_digest
                    digest.update(os.fsencode(f"{inside.as_posix()}\0{digest_of(path)}\n"))
                if len(key) > 1:
                    digest.update(_requirements(source / "pyproject.toml", extras))
                self._sources[key] = digest.hexdigest()
            yield name, source, self._sources[key]

    def _operator_files(self, node: Node) -> dict[str, Path]:
        """Return the files of the project's own operator that a cell measures, by the names of their parts."""
        folder = self.project.operators_folder
        of_package = {path / PACKAGE / OPERATORS for _, path, _ in self._source_digests(node)}
        if not node.cell.measures or folder in of_package:
            return {}
        sources = self.operator_sources or {}
        modules = {path.removesuffix(".py"): folder / path for path in sources if path[0] != "_"}
        name = node.notebook.operator.rpartition("/")[2]
        if name not in modules and name in self._built_in:
            return {}
        # If the cell's folder is not named like an operator's module, the cell may use any of them.
        paths = [modules[name]] if name in modules else list(modules.values())
        if paths:
            paths += [folder / path for path in sources if path[0] == "_"]
            paths += [path for path in shared_files(folder) if path.suffix != ".py"]
        return {f"{SOURCE}{self.project.relative(path)}": path for path in paths}


def with_processes(node: Node, parts: dict[str, str], counts: Sequence[int]) -> list[dict[str, str]]:
    """Return the parts of a cell's keys, one for each number of processes if it measures."""
    return [parts | {"processes": _digest(count)} for count in counts] if node.cell.measures else [parts]


def _digest(value: Any) -> str:
    data = msgspec.json.encode(value, order="deterministic")
    return hashlib.sha256(data).hexdigest()[:_DIGITS]


PACKAGE = "kernels_bench_tools"
_MEASURING_IMPORTS = words("""
    *.py records/*.py text/*.py hub/*.py measure/**/*.py operators/**/*.py
    models/derived/*.json models/derived/transformers/*.json
""")
_MODELS, _MODEL_IMPORTS = b"kernels_bench_tools.models", ("models/**/*.py",)
"""In the module of an operator that is a module of the models, and what such a module may import."""
_OTHER_IMPORTS = ("*.py", "records/*.py", "text/*.py", "results/**/*.py", "chart/*.py")
_NOT_SOURCE = {"site", "build", "dist"}
_EXTRAS = re.compile(r"\s*kernels[-_.]bench[-_.]tools\s*\[(?P<extras>[^]]*)\]", re.IGNORECASE)


def module_digest(path: Path, data: bytes | None = None) -> str:
    """Return the digest of a file, with ``data`` if that was read; of a Python module, that of its code without comments."""
    if path.suffix == ".py":
        data = read_file(path) if data is None else data
        with suppress(UnicodeDecodeError):
            return code_digest(data.decode())
        return hashlib.sha256(data).hexdigest()
    return file_digest(path)


def _requirements(project: Path, extras: Sequence[str]) -> bytes:
    """Return the parts of a ``pyproject.toml`` that affect which packages a cell gets."""
    try:
        data = parse_toml(read_file(project))
    except (OSError, ValueError):
        return b""
    about = data.get("project", {})
    optional = about.get("optional-dependencies", {})
    relevant = [
        about.get("requires-python"),
        about.get("dependencies"),
        {extra: optional.get(extra) for extra in extras},
        data.get("build-system"),
        data.get("tool", {}).get("uv", {}).get("sources"),
    ]
    return msgspec.json.encode(relevant, order="deterministic")


def source_files(source: Path) -> Iterator[Path]:
    """Yield the files of a package on the disk, without build output and environments."""
    if source.is_file():
        yield source
        return
    files = walk_files(source, lambda path: path.name in _NOT_SOURCE or path.name.endswith(".egg-info"))
    yield from filter(Path.is_file, files)


def _package_files(package: Path, measures: bool, operator: str) -> Iterator[Path]:
    operators = package / OPERATORS
    own = operator_modules(operators).get(operator)
    of_models = bool(measures and own and _MODELS in own.read_bytes())
    # If the cell's folder is not named like an operator's module, the cell may use any of them; so may a model.
    only_own = measures and own and not of_models
    patterns = _MEASURING_IMPORTS if measures else _OTHER_IMPORTS
    for pattern in (*patterns, *(_MODEL_IMPORTS if of_models else ())):
        for path in package.glob(pattern):
            if not only_own or not path.is_relative_to(operators) or path.stem in {operator, "__init__"}:
                yield path
