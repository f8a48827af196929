"""The cell cache: results of cells, stored under a key made from everything that led to them.

An entry, ``.kbt/cache/<key>/``, holds ``result.json``, ``stdout.txt``, ``stderr.txt``, ``environment.txt``,
``artifacts/`` and, written last, ``digests.txt``, which ``sha256sum --check`` can read. Its last line authenticates the others and
the name of the entry, with a key that cells do not have, see :mod:`..process.confined`. An entry that differs from its list is
damaged. Entries appear atomically. Failures are stored so that their logs can be shown, but a failed cell runs again.
Only folders whose name is a key, or that of an unfinished entry, are moved or removed.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import os
import re
import secrets
import time
import uuid
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import msgspec

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import (
    file_digest,
    find_struct,
    open_regular,
    read_file,
    read_struct,
    sync_path,
    write_atomically,
    write_struct,
)
from kernels_bench_tools.notebooks.graph import CellName
from kernels_bench_tools.own_folders import clear_file, make_folder, opened, remove_tree
from kernels_bench_tools.records.outcome import Outcome
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.run.environment.base import ignore_folder
from kernels_bench_tools.run.environment.variables import COMPILED, user_cache
from kernels_bench_tools.run.process.confined import key_folder

FORMAT = 3
"""Version of the entries. Entries of other versions are ignored."""

_DIGESTS = "digests.txt"
RESULT = "result.json"
LOGS = STDOUT, STDERR, ENVIRONMENT_LOG = ("stdout.txt", "stderr.txt", "environment.txt")
_EMPTY_DIGEST = hashlib.sha256(b"").hexdigest()
_SECRET_BYTES = 32
_SYNC_SECONDS = 0.1
"""Results that took longer are synced to the disk, which takes 2 ms; others can run again after a power cut."""


class DamagedEntryError(Exception):
    """An entry differs from the list of its digests; the message names the first difference."""


class StoredResult(msgspec.Struct, kw_only=True):
    """How a cell ended. It does not depend on where the project is."""

    format: int = FORMAT
    cell: str
    """Its name, for people who read the file."""
    status: Status
    reason: str = ""
    """Why it failed, in one line."""
    seconds: float = 0.0
    exit_code: int | None = None
    """None if no process was started, or none ended."""
    transient: bool = False
    """Whether it failed for a reason outside of the cell, such as a full disk: the next build runs it again."""
    outcome: Outcome | None = None
    """How its workloads ended, for a cell that measures."""
    artifacts: dict[str, str] = msgspec.field(default_factory=dict)
    """Name to SHA-256, sorted."""
    parts: dict[str, str] = msgspec.field(default_factory=dict)
    """The digests that make up its key, to find out what changed since."""


@dataclass(frozen=True)
class _EntryFolder:
    folder: Path

    @property
    def artifacts(self) -> Path:
        return self.folder / "artifacts"

    @property
    def stdout(self) -> Path:
        return self.folder / STDOUT

    @property
    def stderr(self) -> Path:
        return self.folder / STDERR

    @property
    def environment_log(self) -> Path:
        return self.folder / ENVIRONMENT_LOG


@dataclass(frozen=True)
class Entry(_EntryFolder):
    """A result, in the cache or in a draft."""

    result: StoredResult

    @property
    def key(self) -> str:
        return self.folder.name

    @property
    def exists(self) -> bool:
        """Whether no cell of this build has removed it."""
        return os.path.isdir(self.folder)  # noqa: PTH112 - much faster

    def changed_artifact(self) -> str:
        """Return the first artifact that is not as it was stored; empty if all are. A missing one is an ``OSError``."""
        stored = self.result.artifacts.items()
        return next((name for name, digest in stored if file_digest(self.artifacts / name) != digest), "")

    @property
    def failed(self) -> bool:
        """Whether the cell, or one of its workloads, is wrong or failed."""
        of_workloads = self.result.outcome.reasons if self.result.outcome else {}
        return any(status.failed for status in (self.result.status, *of_workloads))

    def is_final(self, *, retry_failed: bool) -> bool:
        """Whether the cell need not run again; with ``retry_failed``, one that failed has to."""
        return not self.result.transient and not (retry_failed and self.failed)


@dataclass(frozen=True)
class Draft(_EntryFolder):
    root: Path
    """The project's folder."""

    def make(self) -> None:
        """Make the folders and logs unless they are there: a cell may remove or replace them."""
        make_folder(self.artifacts, self.root, replace=True)
        for name in LOGS:
            open_regular(self.folder / name, "ab").close()

    def finish(self, result: StoredResult, key: str) -> bool:
        """Write the result and the list of digests, as the entry of ``key``; return whether the entry has been synced to the disk."""
        self.make()
        clear_file(self.folder / RESULT)
        clear_file(self.folder / _DIGESTS)
        digests = dict(_digests(self.folder))
        prefix = f"{self.artifacts.name}/"
        result.artifacts = {n.removeprefix(prefix): d for n, d in digests.items() if n.startswith(prefix)}
        data = msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n"
        write_atomically(self.folder / RESULT, data, sync=False)
        digests[RESULT] = hashlib.sha256(data).hexdigest()
        write_atomically(self.folder / _DIGESTS, _as_list(digests, key, _secret()), sync=False)
        if result.seconds < _SYNC_SECONDS:
            return False
        for folder, _, names in os.walk(self.folder):
            for path in filter(Path.is_file, (Path(folder, name) for name in names)):
                sync_path(path)
            sync_path(folder)
        return True


def read_entry(folder: Path) -> Entry | None:
    """Return the entry in ``folder``; None if there is none, or one of another version.

    One that differs from what was written is a ``DamagedEntryError``.
    """
    if not folder.is_dir():
        return None
    try:
        _check_files(folder, read_file(folder / _DIGESTS))
        result = read_struct(folder / RESULT, StoredResult)
        return Entry(folder, result) if result.format == FORMAT else None
    except FileNotFoundError:
        flaw = f"{_DIGESTS} is missing"
    except OSError as error:
        flaw = f"{_DIGESTS} cannot be read ({error.strerror})"
    except msgspec.MsgspecError as error:
        flaw = f"{RESULT} is not a result ({error})"
    with suppress(OSError, ValueError, LookupError, TypeError, RecursionError):
        if msgspec.json.decode(read_file(folder / RESULT))["format"] != FORMAT:
            return None
    raise DamagedEntryError(flaw)


def folder_size(folder: Path) -> int:
    return sum(entry.stat(follow_symlinks=False).st_size for _, entry in _files(folder))


def _check_files(folder: Path, listed: bytes) -> None:
    """Raise a ``DamagedEntryError`` if the files in a folder differ from the list of their digests."""
    try:
        digests = dict(_digests(folder))
    except OSError as error:
        raise DamagedEntryError(f"a file of it cannot be read ({error.strerror})") from None
    if not (folder / "artifacts").is_dir():
        raise DamagedEntryError("artifacts is missing")
    if _as_list(digests, folder.name, _secret()) == listed:
        return
    lines = (line.partition("  ") for line in os.fsdecode(listed).split("\n") if line and line[0] != "#")
    expected = {name: digest for digest, _, name in lines}
    first = min((name for name, _ in digests.items() ^ expected.items()), default="")
    if not first:
        raise DamagedEntryError(f"{_DIGESTS} was changed, or written without the key of this user")
    what = "is missing" if first not in digests else "was added" if first not in expected else "was changed"
    raise DamagedEntryError(f"{first} {what}")


def _as_list(digests: dict[str, str], key: str, secret: bytes) -> bytes:
    lines = os.fsencode("".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items())))
    return lines + b"# %s\n" % hmac.new(secret, f"{key}\n".encode() + lines, "sha256").hexdigest().encode()


def _secret(*, make: bool = False) -> bytes:
    """Return the user's key, which is made before the first entry; without one, no entry is right."""
    path = key_folder() / "key"
    with suppress(FileNotFoundError):
        return _read_secret(path)
    if not make:
        return secrets.token_bytes(_SECRET_BYTES)
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        with opened(path.parent, os.O_RDONLY) as folder:
            with suppress(OSError):  # of a file system without locks
                fcntl.flock(folder, fcntl.LOCK_EX)
            if not path.exists():
                write_atomically(path, secrets.token_bytes(_SECRET_BYTES))
        return _read_secret(path)
    except OSError as error:
        what, remedy = f"cannot be written ({error.strerror})", "Set XDG_STATE_HOME to a folder that can"
        raise ProjectError(str(path), what, "", remedy) from None


@cache
def _read_secret(path: Path) -> bytes:
    return read_file(path)


def _digests(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield name and digest of every file but the list of digests, sorted by name."""
    for name, entry in sorted(_files(folder), key=lambda pair: pair[0]):
        if name == _DIGESTS:
            continue
        if not entry.is_file(follow_symlinks=False):
            yield name, "not a file"
        elif entry.stat(follow_symlinks=False).st_size:
            yield name, file_digest(entry.path)
        else:  # not read, since most logs are empty
            yield name, _EMPTY_DIGEST


def _files(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    pending = [(str(folder), "")]
    while pending:
        path, prefix = pending.pop()
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    pending.append((entry.path, f"{prefix}{entry.name}/"))
                else:
                    yield f"{prefix}{entry.name}", entry


_PROCESS, _DRAFT_PREFIX, _REPLACED_SUFFIX = "-process-", ".draft-", ".replaced"
_KEY = re.compile(rf"[0-9a-f]{{64}}({_PROCESS}\d+)?")
_DRAFT, _REPLACED = re.compile(r"\.draft-[0-9a-f]{32}"), re.compile(rf"{_KEY.pattern}\.[0-9a-f.]*replaced")
"""Names of folders in the cache; others are not ours, and are never removed. One that was replaced
has a new name each time, since what cannot be removed, such as files of another user, stays. A single process of a cell has an entry in case
its session is interrupted."""
_RESUMABLE_SECONDS = 24 * 3600
"""Age up to which the processes of an interrupted session are used by the next one."""
_COMPILED_SECONDS = 14 * 24 * 3600
"""How long the compiled kernels of a cell are kept after it ran."""


class _LastResults(msgspec.Struct):
    keys: dict[str, str] = msgspec.field(default_factory=dict)
    """The key of each cell's last result."""


@dataclass(frozen=True)
class StoredEntry:
    key: str
    size: int
    """Bytes of its files."""
    used: float
    """When a build last used it, in seconds since 1970."""
    shown: bool
    """Whether it is the last result of a cell, which the report shows."""


class CellCache:
    """The entries of one project. Only the build that holds the project's lock may change them.

    ``state`` is the project's state folder; ``note`` is called with a message for each damaged entry.
    """

    def __init__(self, state: Path, note: Callable[[str], object] = lambda _: None) -> None:
        self.state = state
        self.folder = state / "cache"
        self.damaged: dict[str, str] = {}
        """Key to what is wrong, for entries that were found to be damaged."""
        self.grew = False
        """Whether an entry was added."""
        self._note = note
        self._number = 0
        """The inode of the folder of entries."""
        self._last_path = state / "last.json"
        self._last = find_struct(self._last_path, _LastResults) or _LastResults()
        self._known: dict[str, Entry] = {}
        self._lists: dict[str, bytes] = {}
        """The list of digests of each entry when the build began, or as it was written: where cells can read the key, it shows
        what they have forged."""

    def find(self, key: str, cell: CellName | None = None) -> Entry | None:
        """Return the entry of this key; None if there is none, or, with a message about ``cell``, it is damaged."""
        if key in self._known and self._known[key].exists:
            return self._known[key]
        if key in self.damaged:
            return None
        try:
            entry = read_entry(self.folder / key)
        except DamagedEntryError as error:
            self.damaged[key] = str(error)
            owners = (name for name, last in self._last.keys.items() if last == key)
            name = cell or next(owners, f"entry {key[:12]}")
            self._note(f"{name}: its stored result is damaged ({error}) and is ignored")
            return None
        if entry is not None:
            self._known[key] = entry
        return entry

    def last(self, cell: CellName) -> Entry | None:
        key = self.last_key(cell)
        entry = self.find(key, cell) if key else None
        # Cells can write the list of last results.
        return entry if entry and entry.result.cell == str(cell) else None

    def last_key(self, cell: CellName) -> str:
        """Return the key of a cell's last result; empty if it has none."""
        key = self._last.keys.get(str(cell), "")
        return key if _KEY.fullmatch(key) else ""

    def remember(self, cell: CellName, entry: Entry) -> None:
        """Make ``entry`` the last result of a cell, and the most recently used entry."""
        self._last.keys[str(cell)] = entry.key
        # The modification time of the folder is the time of the last use: files of an entry never change.
        with suppress(OSError):  # a cell has removed it, or it is another user's
            os.utime(entry.folder)

    def forget_all_but(self, cells: Iterable[CellName]) -> None:
        names = {str(cell) for cell in cells}
        self._last.keys = {name: key for name, key in self._last.keys.items() if name in names}

    def save_last(self) -> None:
        self._last.keys = dict(sorted(self._last.keys.items()))
        write_struct(self._last_path, self._last, own=True)

    def draft(self) -> Draft:
        """Return an empty entry; a full or read-only disk is a ``ProjectError``."""
        with self._writing():
            draft = Draft(self._unused_path(), self.state.parent)
            draft.make()
            ignore_folder(self.state)
            _secret(make=True)  # before a cell runs
            self._number = self._number or self.folder.stat().st_ino
            return draft

    def discard_drafts(self) -> None:
        for name in self._names(_DRAFT):
            self._remove(name)

    def discard(self, draft: Draft) -> None:
        self._remove(draft.folder.name)

    def commit(self, draft: Draft, key: str, result: StoredResult) -> Entry:
        """Finish a draft, and make it the entry of ``key``; a full or read-only disk is a ``ProjectError``."""
        final, replaced = self.folder / key, self.folder / f"{key}.{uuid.uuid4().hex}{_REPLACED_SUFFIX}"
        with self._writing():
            draft.make()
            if self._number != (number := self.folder.stat().st_ino):
                self._number = number
                what = f"{self.folder} was removed while the build was running. The next build reruns cells whose results are lost"
                self._note(f"{result.cell}: {what}")
            synced = draft.finish(result, key)
            if os.path.lexists(final):  # `sweep` undoes this if the build is killed before the next step
                final.rename(replaced)
            draft.folder.rename(final)
            self._remove(replaced.name)
            if synced:
                sync_path(self.folder)
        self.grew = True
        self.damaged.pop(key, None)
        entry = Entry(final, result)
        self._known[key], self._lists[key] = entry, self._list(key)
        return entry

    def sweep(self) -> None:
        """Remove what killed builds left unfinished, and old processes of sessions that were never resumed."""
        make_folder(self.folder, self.state.parent)  # kbt removes old results there: a link is an error
        self.discard_drafts()
        compiled = user_cache() / COMPILED
        for folder in list(compiled.iterdir()) if compiled.is_dir() else ():
            if _KEY.fullmatch(folder.name) and time.time() - folder.lstat().st_mtime > _COMPILED_SECONDS:
                remove_tree(folder, compiled)
        for name in self._names(_REPLACED):
            original = self.folder / name.partition(".")[0]
            if not os.path.lexists(original):  # killed before the new entry was in its place
                (self.folder / name).rename(original)
            self._remove(name)
        for name in self._names(_KEY):
            if _PROCESS in name and time.time() - (self.folder / name).lstat().st_mtime > _RESUMABLE_SECONDS:
                self.drop(name)
        self._lists = {name: self._list(name) for name in self._names(_KEY)}

    def _list(self, key: str) -> bytes:
        try:
            return read_file(self.folder / key / _DIGESTS)
        except OSError:
            return b""

    def drop_changed(self) -> dict[str, str]:
        """Remove the entries that cells of this build have changed; return by key what was wrong with them."""
        changed = {}
        for key in [*self._lists]:
            try:
                if self._list(key) != self._lists[key]:
                    raise DamagedEntryError(f"{_DIGESTS} was changed")
                if key in self._known:
                    read_entry(self.folder / key)
            except DamagedEntryError as error:
                changed[key] = str(error)
                self.drop(key)
        return changed

    def drop_processes(self, key: str) -> None:
        for name in self._names(_KEY):
            if name.startswith(f"{key}{_PROCESS}"):
                self.drop(name)

    def drop(self, key: str) -> None:
        """Remove an entry atomically."""
        self._known.pop(key, None)
        self._lists.pop(key, None)
        unused = self._unused_path()
        with suppress(FileNotFoundError):
            (self.folder / key).rename(unused)
        self._remove(unused.name)

    def entries(self) -> list[StoredEntry]:
        """Return all entries, those of single processes included, the least recently used first."""
        shown = set(self._last.keys.values())
        paths = [self.folder / name for name in self._names(_KEY)]
        entries = [
            StoredEntry(path.name, folder_size(path), path.stat().st_mtime, path.name in shown)
            for path in paths
            if path.is_dir() and not path.is_symlink()
        ]
        return sorted(entries, key=lambda entry: (entry.used, entry.key))

    def prune(self, limit: int) -> list[StoredEntry]:
        """Remove the least recently used entries until the total size is at most ``limit`` bytes; return them.

        Entries that the report shows, and processes of a session that can be resumed, count but are not removed.
        """
        entries = self.entries()
        excess = sum(entry.size for entry in entries) - limit
        removed = []
        for entry in entries:
            if excess <= 0:
                break
            if not entry.shown and _PROCESS not in entry.key:
                self.drop(entry.key)
                removed.append(entry)
                excess -= entry.size
        return removed

    def _names(self, kind: re.Pattern[str]) -> list[str]:
        paths = self.folder.iterdir() if self.folder.is_dir() else ()
        return [path.name for path in paths if kind.fullmatch(path.name)]

    def _remove(self, name: str) -> None:
        remove_tree(self.folder / name, self.state.parent)

    def _unused_path(self) -> Path:
        return self.folder / f"{_DRAFT_PREFIX}{uuid.uuid4().hex}"

    @contextmanager
    def _writing(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            what = f"cannot be written ({error.strerror})"
            remedy = "Free disk space, or run `kbt clean --unused`"
            raise ProjectError(str(self.folder), what, "", remedy) from error


def process_key(key: str, process: int) -> str:
    return f"{key}{_PROCESS}{process}"
