"""What has been edited since the last build began, and which cells of a running build that outdates."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from pathlib import Path

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.notebooks.graph import CellName
from kernels_bench_tools.notebooks.project import Project, find_project
from kernels_bench_tools.run.cache.invalidation import Ingredients, digest_ingredients, outdated_cells
from kernels_bench_tools.run.process.waiting import LOOK_SECONDS


class Edits:
    """Hears of edits in one thread, and is asked about them in others.

    Args:
        root: The project's folder.
        environment: ``"uv"`` or ``"current"``.
        on_edit: Told what was edited while a build was running.
    """

    def __init__(self, root: Path, environment: str, on_edit: Callable[[list[str]], None]) -> None:
        self._root = root
        self._environment = environment
        self._on_edit = on_edit
        self._changed = threading.Condition()
        self._pending: set[str] = set()
        self._building = False
        self._before: Ingredients | None = None
        self._outdated: frozenset[CellName] = frozenset()
        self._failure: Exception | None = None

    def begin(self) -> Project:
        """Return the project for a build that takes in all edits up to now.

        Raises:
            ProjectError: Its settings are wrong.
        """
        with self._changed:
            self._pending.clear()
            self._outdated = frozenset()
            self._before = None
            project = find_project(self._root)
            self._building = True
            self._before = self._ingredients()
            return project

    def end(self) -> frozenset[CellName]:
        """Note that the build has ended; return the cells that edits have outdated while it ran."""
        with self._changed:
            self._building = False
            return self._outdated

    def is_outdated(self, cell: CellName) -> bool:
        """Return whether a cell of the running build has been edited, or anything that leads to it."""
        return cell in self._outdated

    def wait(self) -> list[str]:
        """Wait for edits that no build has taken in; return their paths.

        Raises:
            Exception: What :meth:`fail` was given.
        """
        with self._changed:
            while not self._changed.wait_for(lambda: self._pending or self._failure, LOOK_SECONDS):
                pass
            if self._failure is not None:
                raise self._failure
            return sorted(self._pending)

    def note(self, paths: Iterable[str]) -> None:
        """Hear of edits."""
        with self._changed:
            self._pending.update(paths)
            if self._building:
                self._outdated |= outdated_cells(self._before, self._ingredients())
                self._on_edit(sorted(self._pending))
            self._changed.notify_all()

    def fail(self, error: Exception) -> None:
        """Hear that there will be no more edits to hear of."""
        with self._changed:
            self._failure = error
            self._changed.notify_all()

    def _ingredients(self) -> Ingredients | None:
        try:
            return digest_ingredients(find_project(self._root), self._environment)
        except (KbtError, OSError):  # what is wrong is the next build's to say
            return None
