"""The state of the git repository that a project is in.

``KBT_COMMIT`` names the commit of a tree that was exported without its repository, for example to a
machine without a network.
"""

from __future__ import annotations

import os
import subprocess
from functools import cached_property
from pathlib import Path


class Checkout:
    """The commit that is checked out around a folder, and whether anything differs from it."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def commit(self) -> str:
        """The commit's full name, read without starting git; ``KBT_COMMIT`` if that is set."""
        if named := os.environ.get("KBT_COMMIT"):
            return named
        git = next((one / ".git" for one in (self.root, *self.root.parents) if (one / ".git").exists()), None)
        try:
            return _head(git) if git else ""
        except (OSError, UnicodeDecodeError):
            return ""

    @cached_property
    def dirty(self) -> bool | None:
        """Whether there are changes that are not committed; None if it cannot be told, as for ``KBT_COMMIT``.

        This starts git, so it is asked for when a cell runs, and not before.
        """
        if not self.commit or os.environ.get("KBT_COMMIT"):
            return None
        command = ["git", "-C", str(self.root), "status", "--porcelain"]
        try:
            output = subprocess.run(command, capture_output=True, timeout=60, check=True).stdout
        except (OSError, subprocess.SubprocessError):
            return None
        return bool(output.strip())


def _head(git: Path) -> str:
    if git.is_file():  # a worktree or a submodule: the file names the real folder
        target = git.read_text(encoding="utf-8").partition(":")[2].strip()
        git = git.parent / target
    head = (git / "HEAD").read_text(encoding="utf-8").strip()
    if not head.startswith("ref:"):
        return head
    name = head.removeprefix("ref:").strip()
    shared = git / "commondir"
    common = git / shared.read_text(encoding="utf-8").strip() if shared.exists() else git
    for folder in (git, common):
        if (folder / name).is_file():
            return (folder / name).read_text(encoding="utf-8").strip()
    packed = common / "packed-refs"
    lines = packed.read_text(encoding="utf-8").splitlines() if packed.exists() else []
    return next((line.split()[0] for line in lines if line.endswith(f" {name}")), "")
