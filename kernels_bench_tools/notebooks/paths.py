"""Paths and globs within a project, relative to its root and with ``/``."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from fnmatch import fnmatchcase

GLOB_CHARACTERS = "*?["


def is_pattern(name: str) -> bool:
    """Return whether ``name`` is a glob."""
    return any(character in name for character in GLOB_CHARACTERS)


def matches(name: str, pattern: str) -> bool:
    """Return whether a path matches a glob, in which ``**`` matches any number of folders.

    >>> matches("index.md", "**/*.md"), matches("a/b.md", "*.md")
    (True, False)
    """
    return _matches(name.split("/"), pattern.split("/"))


def _matches(names: Sequence[str], patterns: Sequence[str]) -> bool:
    if not patterns:
        return not names
    if patterns[0] == "**":
        return any(_matches(names[skip:], patterns[1:]) for skip in range(len(names) + 1))
    return bool(names) and fnmatchcase(names[0], patterns[0]) and _matches(names[1:], patterns[1:])


def join(folder: str, name: str) -> str | None:
    r"""Return ``name``, relative to ``folder``, as a path from the root; None if it is invalid or leaves the root.

    >>> join("a/results", "../impls/*.md"), join("a", "../../x"), join("a", "x\0y")
    ('a/impls/*.md', None, None)
    """
    if name.startswith("/") or "\0" in name:
        return None
    joined = posixpath.normpath(posixpath.join(folder, name))
    return None if joined == ".." or joined.startswith("../") else joined
