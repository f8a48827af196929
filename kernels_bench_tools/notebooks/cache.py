"""The cell cache: what cells left behind, by the content of everything that led to it.

``.kbt/cache/<key>/`` holds ``result.json``, ``stdout.txt``, ``stderr.txt``, ``environment.txt`` and
``artifacts/``. An entry appears whole or not at all. Failures are kept so that their logs can be shown,
and are never served: whatever did not end well runs again.
"""

from __future__ import annotations

import hashlib
import shutil
import time
import uuid
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kernels_bench_tools.notebooks.environments import ignore_folder
from kernels_bench_tools.notebooks.graph import CellName
from kernels_bench_tools.records import Status
from kernels_bench_tools.runs import read_struct, write_struct

FORMAT = 1
"""Version of the entries; others count as absent."""

_DRAFT_PREFIX = ".draft-"
_PROCESS = "-process-"
_RESUMABLE_SECONDS = 24 * 3600
"""Processes that ended longer ago are not joined with new ones."""


class StoredResult(msgspec.Struct, kw_only=True):
    """How a cell ended; nothing in it depends on where the project is."""

    format: int = FORMAT
    cell: str
    """Its name, for those who look into the cache by hand."""
    status: Status
    reason: str = ""
    """Why it did not end well, in one line."""
    seconds: float = 0.0
    exit_code: int | None = None
    """None if no process was started for it, or none ended."""
    started: bool = True
    """Whether its environment or the cell itself was tried at all."""
    artifacts: dict[str, str] = msgspec.field(default_factory=dict)
    """Name to SHA-256, in the order of the names."""


class _LastResults(msgspec.Struct, kw_only=True):
    """The key under which each cell's last result is."""

    keys: dict[str, str] = msgspec.field(default_factory=dict)


@dataclass(frozen=True)
class Entry:
    """A result in the cache."""

    folder: Path
    result: StoredResult

    @property
    def artifacts(self) -> Path:
        """The folder of the artifacts."""
        return self.folder / "artifacts"

    @property
    def key(self) -> str:
        """The content address."""
        return self.folder.name

    @property
    def is_final(self) -> bool:
        """Whether running the cell again would be in vain: it ended well, or was not tried."""
        return self.result.status is Status.OK or not self.result.started


@dataclass(frozen=True)
class Draft:
    """An entry being made."""

    folder: Path

    @property
    def artifacts(self) -> Path:
        """The folder for the artifacts."""
        return self.folder / "artifacts"

    @property
    def stdout(self) -> Path:
        """The file for what the cell prints."""
        return self.folder / "stdout.txt"

    @property
    def stderr(self) -> Path:
        """The file for what the cell prints to its standard error."""
        return self.folder / "stderr.txt"

    @property
    def environment_log(self) -> Path:
        """The file for what making its environment prints."""
        return self.folder / "environment.txt"


class CellCache:
    """The entries of one project. Only the build that holds the project's lock may change them."""

    def __init__(self, state: Path) -> None:
        self.state = state
        self.folder = state / "cache"
        self._last_path = state / "last.json"
        self._last = _read_last(self._last_path)
        self._known: dict[str, Entry] = {}

    def find(self, key: str) -> Entry | None:
        """Return the entry of this key, or None if there is none or it is damaged."""
        if key not in self._known:
            entry = _read_entry(self.folder / key)
            if entry is None:
                return None
            self._known[key] = entry
        return self._known[key]

    def last(self, cell: CellName) -> Entry | None:
        """Return the last result of a cell, however it ended."""
        key = self._last.keys.get(str(cell))
        return self.find(key) if key else None

    def remember(self, cell: CellName, entry: Entry) -> None:
        """Make ``entry`` the last result of a cell."""
        self._last.keys[str(cell)] = entry.key

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
        """Return an empty entry to be filled."""
        ignore_folder(self.state)
        draft = Draft(self._unused_path())
        draft.artifacts.mkdir(parents=True)
        for log in (draft.stdout, draft.stderr, draft.environment_log):
            log.touch()
        return draft

    def discard(self, draft: Draft) -> None:
        """Forget an entry that was not finished."""
        shutil.rmtree(draft.folder, ignore_errors=True)

    def commit(self, draft: Draft, key: str, result: StoredResult) -> Entry:
        """Make a filled draft the entry of ``key``, in the place of what was there."""
        result.artifacts = dict(_digests(draft.artifacts))
        write_struct(draft.folder / "result.json", result)
        final = self.folder / key
        replaced = self._unused_path()
        if final.exists():
            final.rename(replaced)
        draft.folder.rename(final)
        shutil.rmtree(replaced, ignore_errors=True)
        entry = Entry(final, result)
        self._known[key] = entry
        return entry

    def sweep(self) -> None:
        """Remove what builds that were killed left unfinished, and old processes of sessions never resumed."""
        for folder in self.folder.glob(f"{_DRAFT_PREFIX}*"):
            shutil.rmtree(folder, ignore_errors=True)
        for folder in self.folder.glob(f"*{_PROCESS}*"):
            if time.time() - folder.stat().st_mtime > _RESUMABLE_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)

    def drop_processes(self, key: str) -> None:
        """Remove the processes of a cell whose own entry has what they left."""
        for folder in self.folder.glob(f"{key}{_PROCESS}*"):
            self._known.pop(folder.name, None)
            shutil.rmtree(folder, ignore_errors=True)

    def prune(self) -> int:
        """Remove every entry that is no cell's last result; return how many there were."""
        kept = set(self._last.keys.values())
        unused = [path for path in self._entries() if path.name not in kept]
        for path in unused:
            shutil.rmtree(path, ignore_errors=True)
            self._known.pop(path.name, None)
        return len(unused)

    def _unused_path(self) -> Path:
        return self.folder / f"{_DRAFT_PREFIX}{uuid.uuid4().hex}"

    def _entries(self) -> Iterable[Path]:
        return sorted(self.folder.iterdir()) if self.folder.is_dir() else []


def process_key(key: str, process: int) -> str:
    """Return the key of one process of a cell that several measure."""
    return f"{key}{_PROCESS}{process}"


def file_digest(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _digests(folder: Path) -> Iterator[tuple[str, str]]:
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        yield path.relative_to(folder).as_posix(), file_digest(path)


def _read_entry(folder: Path) -> Entry | None:
    try:
        result = read_struct(folder / "result.json", StoredResult)
        intact = result.format == FORMAT and dict(_digests(folder / "artifacts")) == result.artifacts
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return None
    logs = all((folder / f"{log}.txt").is_file() for log in ("stdout", "stderr", "environment"))
    return Entry(folder, result) if intact and logs else None


def _read_last(path: Path) -> _LastResults:
    try:
        return read_struct(path, _LastResults)
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return _LastResults()
