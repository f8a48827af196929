"""The cell cache: what cells left behind, by the content of everything that led to it.

An entry of ``.kbt/cache/`` appears whole or not at all, whenever a build is killed. Failures are kept so that
their logs can be shown, and are never served: whatever did not end well runs again.
"""

from __future__ import annotations

import os
import shutil
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import read_struct, write_struct
from kernels_bench_tools.notebooks.graph import CellName
from kernels_bench_tools.run.cache.checksums import DamagedEntryError, sync_folder
from kernels_bench_tools.run.cache.entry import FORMAT, Draft, Entry, StoredResult, read_entry
from kernels_bench_tools.run.environment.base import ignore_folder

__all__ = [
    "FORMAT",
    "CellCache",
    "Draft",
    "Entry",
    "StoredResult",
    "process_key",
]

_DRAFT_PREFIX = ".draft-"
_REPLACED_SUFFIX = ".replaced"
_PROCESS = "-process-"
_RESUMABLE_SECONDS = 24 * 3600
"""Processes that ended longer ago are not joined with new ones."""


class _LastResults(msgspec.Struct, kw_only=True):
    """The key under which each cell's last result is."""

    keys: dict[str, str] = msgspec.field(default_factory=dict)


def _nobody(_: str) -> None:
    """Tell nobody."""


class CellCache:
    """The entries of one project. Only the build that holds the project's lock may change them.

    Args:
        state: The project's state folder.
        note: Told, in one line, of an entry that is damaged.
    """

    def __init__(self, state: Path, note: Callable[[str], None] = _nobody) -> None:
        self.state = state
        self.folder = state / "cache"
        self.damaged: dict[str, str] = {}
        """Keys of entries that were found damaged, each with what is wrong."""
        self.grew = False
        """Whether an entry was added."""
        self._note = note
        self._last_path = state / "last.json"
        self._last = _read_last(self._last_path)
        self._known: dict[str, Entry] = {}

    def find(self, key: str, cell: CellName | None = None) -> Entry | None:
        """Return the entry of this key, or None if there is none or it is damaged.

        Args:
            key: The content address.
            cell: Whose result it should be, to name it if it is damaged.
        """
        if key in self._known:
            return self._known[key]
        if key in self.damaged:
            return None
        try:
            entry = read_entry(self.folder / key)
        except DamagedEntryError as error:
            self.damaged[key] = str(error)
            name = cell or self.owner(key) or f"entry {key[:12]}"
            self._note(f"{name}: its stored result is damaged ({error}) and counts as none")
            return None
        if entry is not None:
            self._known[key] = entry
        return entry

    def last(self, cell: CellName) -> Entry | None:
        """Return the last result of a cell, however it ended."""
        key = self.last_key(cell)
        return self.find(key, cell) if key else None

    def last_key(self, cell: CellName) -> str:
        """Return the key of a cell's last result; empty if it has none."""
        return self._last.keys.get(str(cell), "")

    def shown(self) -> set[str]:
        """Return the keys of all cells' last results: what the report shows."""
        return set(self._last.keys.values())

    def owner(self, key: str) -> str:
        """Return the cell whose last result a key is; empty if it is of none."""
        return next((name for name, last in self._last.keys.items() if last == key), "")

    def remember(self, cell: CellName, entry: Entry) -> None:
        """Make ``entry`` the last result of a cell, and the most recently used one."""
        self._last.keys[str(cell)] = entry.key
        # The folder's own time: no file of an entry ever changes.
        os.utime(entry.folder)

    def forget_all_but(self, cells: Iterable[CellName]) -> None:
        """Forget the last results of cells that are no more."""
        names = {str(cell) for cell in cells}
        self._last.keys = {name: key for name, key in self._last.keys.items() if name in names}

    def save_last(self) -> None:
        """Write which results are the last ones, if that changed."""
        self._last.keys = dict(sorted(self._last.keys.items()))
        if _read_last(self._last_path) != self._last:
            write_struct(self._last_path, self._last)

    def draft(self) -> Draft:
        """Return an empty entry to be filled.

        Raises:
            ProjectError: The disk is full, or may not be written.
        """
        with self._writing():
            ignore_folder(self.state)
            draft = Draft(self._unused_path())
            draft.begin()
            return draft

    def discard(self, draft: Draft) -> None:
        """Forget an entry that was not finished."""
        shutil.rmtree(draft.folder, ignore_errors=True)

    def commit(self, draft: Draft, key: str, result: StoredResult) -> Entry:
        """Make a filled draft the entry of ``key``, in the place of what was there.

        Raises:
            ProjectError: The disk is full, or may not be written.
        """
        final = self.folder / key
        with self._writing():
            synced = draft.seal(result)
            self._put(draft.folder, final)
            if synced:
                sync_folder(self.folder)
        self.grew = True
        self.damaged.pop(key, None)
        entry = Entry(final, result)
        self._known[key] = entry
        return entry

    def sweep(self) -> None:
        """Remove what builds that were killed left unfinished, and old processes of sessions never resumed."""
        for folder in list(self.folder.iterdir()) if self.folder.is_dir() else ():
            name = folder.name
            if name.startswith(_DRAFT_PREFIX):
                shutil.rmtree(folder, ignore_errors=True)
            elif name.endswith(_REPLACED_SUFFIX):
                self._put_back(folder)
            elif _PROCESS in name and time.time() - folder.stat().st_mtime > _RESUMABLE_SECONDS:
                self.drop(name)

    def drop_processes(self, key: str) -> None:
        """Remove the processes of a cell whose own entry has what they left."""
        for folder in self.folder.glob(f"{key}{_PROCESS}*"):
            self.drop(folder.name)

    def drop(self, key: str) -> None:
        """Remove an entry, whole at once: half of one would look damaged."""
        self._known.pop(key, None)
        unused = self._unused_path()
        try:
            (self.folder / key).rename(unused)
        except FileNotFoundError:
            return
        shutil.rmtree(unused, ignore_errors=True)

    def entries(self) -> list[Path]:
        """Return the folders of all entries, those of single processes included, in the order of their names."""
        found = self.folder.iterdir() if self.folder.is_dir() else ()
        return sorted(path for path in found if _is_entry(path))

    def _unused_path(self) -> Path:
        return self.folder / f"{_DRAFT_PREFIX}{uuid.uuid4().hex}"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            remedy = "Make room, or `kbt cache prune`. What was finished is kept"
            raise ProjectError(
                str(self.folder), f"cannot be written ({error.strerror})", "", remedy
            ) from error

    @staticmethod
    def _put(folder: Path, final: Path) -> None:
        """Put a folder in the place of another; if a build is killed between the two, ``sweep`` undoes it."""
        if not final.exists():
            folder.rename(final)
            return
        replaced = final.with_name(f"{final.name}{_REPLACED_SUFFIX}")
        shutil.rmtree(replaced, ignore_errors=True)
        final.rename(replaced)
        folder.rename(final)
        shutil.rmtree(replaced, ignore_errors=True)

    def _put_back(self, replaced: Path) -> None:
        """Undo half of a replacement: what should have come in its place never did."""
        original = replaced.with_name(replaced.name.removesuffix(_REPLACED_SUFFIX))
        if original.exists():
            shutil.rmtree(replaced, ignore_errors=True)
        else:
            replaced.rename(original)


def process_key(key: str, process: int) -> str:
    """Return the key of one process of a cell that several measure."""
    return f"{key}{_PROCESS}{process}"


def is_process(key: str) -> bool:
    """Return whether a key is that of one process of a cell, kept for a session that was interrupted."""
    return _PROCESS in key


def _is_entry(path: Path) -> bool:
    return path.is_dir() and not path.name.startswith(".") and not path.name.endswith(_REPLACED_SUFFIX)


def _read_last(path: Path) -> _LastResults:
    try:
        return read_struct(path, _LastResults)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return _LastResults()
