"""Which cells can share an environment: those whose headers ask for the same, wherever their scripts lie.

An environment belongs to a script, and making one takes uv longer than a small cell takes to run. So cells
with equal headers share the environment of one script that has this header and nothing else. Relative paths in
a header count from the cell's own script, so they are made absolute first; what else may be relative is not
guessed at: such a cell keeps an environment to itself.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernels_bench_tools.file_io import write_atomically
from kernels_bench_tools.notebooks.header import read_header, uv_settings

_UNDERSTOOD = {"dependencies", "requires-python", "tool"}
# Settings of uv that cannot name a file; a header with any other one is not shared.
_WITHOUT_PATHS = {"exclude-newer", "exclude-newer-package", "index-strategy", "prerelease", "resolution"}
_SOURCE_KEYS = {"branch", "editable", "git", "marker", "package", "path", "rev", "subdirectory", "tag", "url"}
# Between a cell and the project's root, these would make uv answer differently from what it answers at the root.
_CONFIGURATIONS = ("uv.toml", "pyproject.toml", ".python-version", ".python-versions")


def shared_script(code: str, script: Path, root: Path, folder: Path) -> Path:
    """Return the script whose environment a cell runs in; it is written unless it is there already.

    Args:
        code: The cell's script, with its header.
        script: Where that is.
        root: Folder of the project, up to which uv's own settings are looked for.
        folder: Where scripts are that stand for all cells with the same header.
    """
    header = None if _has_own_settings(script.parent, root) else _portable(code, script.parent)
    if header is None:
        return script
    path = folder / f"{hashlib.sha256(header.encode()).hexdigest()[:32]}.py"
    if not path.is_file() or path.read_text(encoding="utf-8") != header:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, header.encode(), sync=False)
    return path


def installed_packages(python: str) -> frozenset[str]:
    """Return what is installed in an environment of uv's, as uv itself would see it.

    Args:
        python: The environment's interpreter.
    """
    folders = (Path(python).parent.parent / "lib").glob("python*/site-packages")
    names = (name for folder in folders for name in os.listdir(folder))  # noqa: PTH208 - before each cell
    return frozenset(name for name in names if name.endswith((".dist-info", ".egg-info", ".pth")))


def _has_own_settings(folder: Path, root: Path) -> bool:
    inside = [one for one in (folder, *folder.parents) if one != root and one.is_relative_to(root)]
    return any((one / name).exists() for one in inside for name in _CONFIGURATIONS)


def _portable(code: str, folder: Path) -> str | None:
    """Return a script with the header of ``code`` that means the same in any folder; None if none does."""
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
    """Return whether a dependency names no file by a path that counts from somewhere."""
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
        raise ValueError("a source that may mean something else in another folder")
    if "git" in source and "://" not in str(source["git"]):
        raise ValueError("a repository on the disk")
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
    # A JSON string is a TOML string, and so are JSON's true and false.
    if isinstance(value, bool) or (isinstance(value, str) and value.isprintable()):
        return json.dumps(value, ensure_ascii=False)
    raise ValueError(f"{value!r} is nothing that a header of ours holds")
