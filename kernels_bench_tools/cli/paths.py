"""Paths as the command prints them."""

from __future__ import annotations

from pathlib import Path


def shown(path: Path) -> str:
    """Return ``path`` from the current folder where it is in it, else whole."""
    path = path.resolve()
    return str(path.relative_to(Path.cwd())) if path.is_relative_to(Path.cwd()) else str(path)
