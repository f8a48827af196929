"""A project's ``[tool.kbt]``, as far as cells read it too, and the files of its own operators."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import read_file
from kernels_bench_tools.own_folders import path_below
from kernels_bench_tools.own_process import PACKAGE_FOLDER
from kernels_bench_tools.text.foreign import parse_toml

OPERATORS = "operators"
"""Folder of a project's own operators, unless ``[tool.kbt]`` names another."""


def find_settings(start: Path) -> tuple[Path, dict[str, Any]] | None:
    """Return the nearest folder from ``start`` up whose ``pyproject.toml`` has ``[tool.kbt]``, and that table."""
    for folder in (start, *start.parents):
        settings = _read_settings(folder / "pyproject.toml")
        if settings is not None:
            return folder, settings
    return None


def operators_folder(start: Path) -> Path | None:
    """Return the folder of the operators of the project that has this folder; None if there is no project."""
    project = find_settings(start)
    return path_below(project[0], project[1].get("operators", OPERATORS), linked=True) if project else None


def is_root(folder: Path) -> bool:
    try:
        return _read_settings(folder / "pyproject.toml") is not None
    except ProjectError:  # of something else
        return False


def _read_settings(path: Path) -> dict[str, Any] | None:
    """Return ``[tool.kbt]`` of a ``pyproject.toml``, or None if there is none."""
    try:
        data = parse_toml(read_file(path))
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise ProjectError(
            str(path), f"cannot be read: {getattr(error, 'strerror', error)}", "A TOML file"
        ) from error
    tables = data.get("tool", {})
    settings = tables.get("kbt") if isinstance(tables, dict) else None
    if settings is not None and not isinstance(settings, dict):
        raise ProjectError(f"{path}: [tool.kbt]", "is not a table")
    return settings


def operator_modules(folder: Path) -> dict[str, Path]:
    """Return the modules of the operators in a folder by name; of this package's, also those in folders of a family."""
    of_package = folder.parts[-2:] == (PACKAGE_FOLDER.name, OPERATORS)
    files = (path for path in folder.glob("**/*.py" if of_package else "*.py") if path.is_file())
    paths = sorted(files, key=lambda path: path.name)
    return {path.stem: path for path in paths if path.stem.isidentifier() and not path.name.startswith("_")}


def operator_sources(folder: Path) -> dict[str, bytes]:
    """Return the Python files of a project's operators that can be read, by their paths in the folder."""
    sources = {}
    for path in (*operator_modules(folder).values(), *shared_files(folder)):
        with suppress(OSError):  # which `kbt check` names
            if path.suffix == ".py":
                sources[path.relative_to(folder).as_posix()] = read_file(path)
    return sources


def shared_files(folder: Path) -> list[Path]:
    """Return what the modules of that folder may share: the files and folders whose names begin with ``_``."""
    paths = (path for entry in folder.glob("_*") for path in (entry, *entry.rglob("*")))
    return sorted(
        path for path in paths if path.is_file() and "__pycache__" not in path.relative_to(folder).parts
    )
