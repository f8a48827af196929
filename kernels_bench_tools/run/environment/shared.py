"""Environments that cells with equal headers share.

uv makes one environment for each script, which takes longer than a small cell. So cells with equal headers use the
environment of a script that consists of this header. Relative paths in a header count from the cell's script, so they
are made absolute first. A cell whose header may depend on its folder in another way has its own environment.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernels_bench_tools.file_io import update_file
from kernels_bench_tools.notebooks.header import read_header, uv_settings

_UNDERSTOOD = {"dependencies", "requires-python", "tool"}
# Settings of uv that never contain a path. A header with others is not shared.
_WITHOUT_PATHS = {"exclude-newer", "exclude-newer-package", "index-strategy", "prerelease", "resolution"}
_SOURCE_KEYS = {"branch", "editable", "git", "marker", "package", "path", "rev", "subdirectory", "tag", "url"}
CONFIGURATIONS = ("uv.toml", "pyproject.toml", ".python-version", ".python-versions")
"""Files that change what uv resolves, if they are in a folder between a cell and the project's root."""


def shared_script(code: str, script: Path, root: Path, folder: Path) -> Path:
    """Return the script whose environment the cell uses whose ``script`` is ``code``.

    A shared one is written to ``folder`` unless it is up to date.
    """
    header = None if _has_own_settings(script.parent, root) else _portable(code, script.parent)
    if header is None:
        return script
    path = folder / f"{hashlib.sha256(header.encode()).hexdigest()[:32]}.py"
    update_file(path, header.encode())
    return path


def _has_own_settings(folder: Path, root: Path) -> bool:
    inside = [one for one in (folder, *folder.parents) if one != root and one.is_relative_to(root)]
    return any((one / name).exists() for one in inside for name in CONFIGURATIONS)


def _portable(code: str, folder: Path) -> str | None:
    """Return a script with the header of ``code`` that is valid in any folder; None if that is not possible."""
    try:
        header = read_header(code) or {}
    except ValueError:
        return None
    settings = uv_settings(header)
    sources = settings.get("sources", {})
    if header.keys() - _UNDERSTOOD or settings.keys() - _WITHOUT_PATHS - {"sources"}:
        return None
    dependencies = header.get("dependencies", [])
    if not isinstance(sources, dict) or not all(_is_portable(one) for one in dependencies):
        return None
    try:
        settings = {**settings, "sources": {name: _absolute(one, folder) for name, one in sources.items()}}
        lines = [
            f"{key} = {_toml(header[key])}" for key in ("requires-python", "dependencies") if key in header
        ]
        lines += ["[tool.uv]", *(f"{key} = {_toml(value)}" for key, value in sorted(settings.items()))]
    except ValueError:
        return None
    return "# /// script\n" + "".join(f"# {line}\n" for line in lines) + "# ///\n"


def _is_portable(dependency: object) -> bool:
    return (
        isinstance(dependency, str)
        and "$" not in dependency
        and ("@" not in dependency or "://" in dependency)
    )


def _absolute(source: Any, folder: Path) -> Any:
    """Return an entry of ``tool.uv.sources`` with an absolute path."""
    if isinstance(source, list):
        return [_absolute(one, folder) for one in source]
    if not isinstance(source, dict) or source.keys() - _SOURCE_KEYS:
        raise ValueError("a source that may depend on the folder")
    if "git" in source and "://" not in str(source["git"]):
        raise ValueError("a local repository")
    if "path" not in source:
        return source
    return {**source, "path": os.path.normpath(folder / str(source["path"]))}


def _toml(value: Any) -> str:
    """Return a value as TOML in one line."""
    if isinstance(value, Mapping):
        return (
            "{" + ", ".join(f"{_toml(str(key))} = {_toml(one)}" for key, one in sorted(value.items())) + "}"
        )
    if isinstance(value, list):
        return f"[{', '.join(_toml(one) for one in value)}]"
    # Strings and booleans are written alike in JSON and TOML.
    if isinstance(value, bool) or (isinstance(value, str) and value.isprintable()):
        return json.dumps(value, ensure_ascii=False)
    raise ValueError(f"{value!r} is not supported")
