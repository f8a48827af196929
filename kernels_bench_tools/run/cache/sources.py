"""Digests of the local packages that a cell may import: those in its header's ``[tool.uv.sources]``, and this one.

Only the modules of this package that the cell can import count: an edit of the pages, of another operator, or of a
comment in an operator does not make a measurement stale.
"""

from __future__ import annotations

import hashlib
import os
import re
import tomllib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from kernels_bench_tools.file_io import file_digest, read_file
from kernels_bench_tools.notebooks.graph import Node
from kernels_bench_tools.notebooks.header import path_sources, read_header
from kernels_bench_tools.records.build import code_digest
from kernels_bench_tools.records.settings import OPERATORS

PACKAGE = "kernels_bench_tools"
_MEASURING_IMPORTS = (
    "*.py",
    "records/*.py",
    "hub/*.py",
    "measure/**/*.py",
    "operators/**/*.py",
    "models/derived/*.json",
)
_MODELS, _MODEL_IMPORTS = b"kernels_bench_tools.models", ("models/**/*.py",)
"""In the module of an operator that is a module of the models, and what such a module may import."""
_OTHER_IMPORTS = ("*.py", "records/*.py", "results/*.py", "chart/*.py")
_NOT_SOURCE = {"__pycache__", "node_modules", "site", "build", "dist"}
_EXTRAS = re.compile(r"\s*kernels[-_.]bench[-_.]tools\s*\[(?P<extras>[^]]*)\]", re.IGNORECASE)


@dataclass(frozen=True)
class _Importer:
    """What decides which modules of this package a cell may import."""

    measures: bool
    operator: str
    extras: tuple[str, ...]


@dataclass(frozen=True)
class Sources:
    """Computes the digests of local packages, each once."""

    package: Path
    """The folder that contains this package."""
    _known: dict[tuple[Path, _Importer], str] = field(default_factory=dict)

    def of(self, node: Node, current: bool) -> Iterator[tuple[str, Path, str]]:
        """Yield name, path and digest of each local package that a cell may import.

        This package is always one if the cell runs in the ``current`` environment.
        """
        header = read_header(node.cell.code)
        importer = _importer(node, header)
        folder = node.notebook.script_path(node.cell).parent
        for name, written in sorted(path_sources(header).items()):
            source = Path(os.path.normpath(folder / written))
            yield name, source, self._digest(source, importer)
        if current and PACKAGE in node.cell.code:
            yield PACKAGE, self.package, self._digest(self.package, importer)

    def _digest(self, source: Path, importer: _Importer) -> str:
        ours = (source / PACKAGE / "__init__.py").is_file()
        key = (source, importer if ours else _Importer(False, "", ()))
        if key not in self._known:
            digest = hashlib.sha256()
            for path in sorted(_package_files(source / PACKAGE, importer) if ours else source_files(source)):
                name = path.relative_to(source).as_posix()
                # Of the other modules there are too many to read them in each build.
                content = module_digest(path) if path.parent.name == OPERATORS else file_digest(path)
                digest.update(os.fsencode(f"{name}\0{content}\n"))
            if ours:
                digest.update(_requirements(source / "pyproject.toml", importer.extras))
            self._known[key] = digest.hexdigest()
        return self._known[key]


def module_digest(path: Path) -> str:
    """Return the digest of a file; of a Python module, that of its code without comments."""
    if path.suffix == ".py":
        with suppress(UnicodeDecodeError):
            return code_digest(read_file(path).decode())
    return file_digest(path)


def _importer(node: Node, header: dict[str, Any] | None) -> _Importer:
    listed = (header or {}).get("dependencies", node.cell.deps)
    words = [word for word in listed if isinstance(word, str)] if isinstance(listed, list) else []
    found = [match["extras"] for word in words if (match := _EXTRAS.match(word))]
    extras = sorted({extra.strip() for text in found for extra in text.split(",")})
    measures = node.cell.measures
    return _Importer(measures, node.notebook.operator.rpartition("/")[2] if measures else "", tuple(extras))


def _requirements(project: Path, extras: tuple[str, ...]) -> bytes:
    """Return the parts of a ``pyproject.toml`` that affect which packages a cell gets."""
    try:
        data = tomllib.loads(read_file(project).decode())
    except (OSError, ValueError, RecursionError):
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
    for folder, folders, files in os.walk(source):
        here = Path(folder)
        folders[:] = [name for name in folders if _holds_source(here / name)]
        for name in files:
            if not name.startswith(".") and (here / name).is_file():
                yield here / name


def _package_files(package: Path, importer: _Importer) -> Iterator[Path]:
    operators = package / OPERATORS
    own = operators / f"{importer.operator}.py"
    of_models = importer.measures and own.is_file() and _MODELS in own.read_bytes()
    # If the cell's folder is not named like an operator's module, the cell may use any of them; so may a model.
    others = importer.measures and own.is_file() and not of_models
    patterns = _MEASURING_IMPORTS if importer.measures else _OTHER_IMPORTS
    for pattern in (*patterns, *(_MODEL_IMPORTS if of_models else ())):
        for path in package.glob(pattern):
            of_another = (
                others and path.parent == operators and path.stem not in {importer.operator, "__init__"}
            )
            if not of_another:
                yield path


def _holds_source(folder: Path) -> bool:
    hidden = folder.name.startswith(".") or folder.name.endswith(".egg-info")
    return not hidden and folder.name not in _NOT_SOURCE and not (folder / "pyvenv.cfg").exists()
