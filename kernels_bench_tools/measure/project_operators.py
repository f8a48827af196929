"""Modules of a project's own operators, loaded from its folder of them without an entry in ``sys.path``.

The sources are read when a folder is first used, and bytecode is neither read nor written: in the process that judges,
which does this before any code of the cell runs, a cell cannot replace a module.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping, Sequence
from importlib import import_module
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, SourceFileLoader
from importlib.util import spec_from_file_location
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any
from zlib import crc32

from kernels_bench_tools.errors import OperatorError
from kernels_bench_tools.records.request import CellContext
from kernels_bench_tools.records.settings import operator_sources


class ReadSource(SourceFileLoader):
    """Compiles a source that was read before."""

    def __init__(self, name: str, path: Path, source: bytes) -> None:
        super().__init__(name, str(path))
        self._source = source

    def get_code(self, fullname: str) -> CodeType:  # noqa: ARG002
        return self.source_to_code(self._source, self.path)


class ProjectOperators(MetaPathFinder):
    """The modules in a project's folder, as a package whose ``__path__`` is that folder; ``sources`` are its Python files."""

    def __init__(self, folder: Path, sources: Mapping[str, bytes]) -> None:
        self.folder = folder
        self._sources = {folder / path: data for path, data in sources.items()}
        self.paths = {
            path.stem: path for path in self._sources if path.parent == folder and path.name[0] != "_"
        }
        """The modules of operators, by the operators' names."""
        # Beneath this package, so that functions that an implementation replaces there are found, too.
        self._package = f"kernels_bench_tools.project_operators_{crc32(bytes(folder)):08x}"
        self._loaded: set[str] = set()

    def find_spec(
        self,
        fullname: str,
        path: Sequence[str] | None = None,  # noqa: ARG002
        target: ModuleType | None = None,  # noqa: ARG002
    ) -> ModuleSpec | None:
        """Return how one of these modules is loaded; None for all others."""
        rest, *names = fullname.removeprefix(self._package).split(".")
        if rest:  # not beneath the package, or with a longer name
            return None
        place = self.folder.joinpath(*names)
        if names and not names[0].startswith("_") and names[0] not in self._loaded:
            what = f"a module of an operator may not import {shown(place)}.py"
            raise ImportError(f"{what}. Code that modules share belongs in a module whose name begins with _")
        for file in (place / "__init__.py", place.with_suffix(".py")) if names else ():
            if file in self._sources:
                places = [str(place)] if file.stem == "__init__" else None
                loader = ReadSource(fullname, file, self._sources[file])
                return spec_from_file_location(
                    fullname, file, loader=loader, submodule_search_locations=places
                )
        if not names or any(place in one.parents for one in self._sources):
            spec = ModuleSpec(fullname, None, is_package=True)
            spec.submodule_search_locations = [str(place)]
            return spec
        # No other finder may look there.
        raise ModuleNotFoundError(f"No module named {place.name!r} in {shown(place.parent)}", name=fullname)

    def load(self, name: str) -> Any:
        """Return ``OPERATOR`` of the module of this name, or None; ``OperatorError`` if it cannot be imported."""
        self._loaded.add(name)
        try:
            module = import_module(f"{self._package}.{name}")
        except (Exception, SystemExit) as error:
            what = f"cannot be imported: {type(error).__name__}: {getattr(error, 'msg', error)}"
            raise OperatorError(self._place(error, name), what) from error
        return getattr(module, "OPERATOR", None)

    def _place(self, error: BaseException, name: str) -> str:
        """Return the file and the line, in this folder, where an error was raised."""
        frames = [(one.filename, one.lineno) for one in traceback.extract_tb(error.__traceback__)]
        if isinstance(error, SyntaxError):
            frames.append((error.filename or "", error.lineno))
        inside = [(Path(file), line) for file, line in frames if Path(file) in self._sources]
        path, line = inside[-1] if inside else (self.paths[name], 1)
        return f"{shown(path)}:{line}"


_found: dict[str, ProjectOperators] = {}


def project_operators(folder: str, sources: Mapping[str, bytes] | None = None) -> ProjectOperators:
    """Return the modules in a folder, as they were when the build began; as they are, for a cell that runs alone.

    Only the process that judges gives ``sources``: a cell's are in its context.
    """
    if folder not in _found:
        path, context = Path(folder), CellContext.load()
        sources = context.sources if sources is None and context.operators == folder else sources
        _found[folder] = ProjectOperators(path, operator_sources(path) if sources is None else sources)
        sys.meta_path.insert(0, _found[folder])
    return _found[folder]


def shown(path: Path) -> str:
    """Return a path for a message: relative to the working directory if it is below."""
    return str(path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path)
