"""Entries of the cell cache: the files of one result, protected by a list of their digests.

``<key>/`` holds ``result.json``, ``stdout.txt``, ``stderr.txt``, ``environment.txt``, ``artifacts/`` and, written
last, ``digests.txt``, which ``sha256sum --check`` can read. An entry that differs from its list is damaged.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kernels_bench_tools.file_io import file_digest, read_file, read_struct, sync_path
from kernels_bench_tools.records.outcome import Outcome
from kernels_bench_tools.records.record import Status

FORMAT = 2
"""Version of the entries. Entries of other versions are ignored."""

_DIGESTS = "digests.txt"
RESULT = "result.json"
LOGS = STDOUT, STDERR, ENVIRONMENT_LOG = ("stdout.txt", "stderr.txt", "environment.txt")
_EMPTY_DIGEST = hashlib.sha256(b"").hexdigest()
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
    def failed(self) -> bool:
        """Whether the cell, or one of its workloads, is wrong or failed."""
        found = self.result.outcome.reasons if self.result.outcome else {}
        return any(status.failed for status in (self.result.status, *found))

    def is_final(self, *, retry_failed: bool) -> bool:
        """Whether the cell need not run again; with ``retry_failed``, one that failed has to."""
        return not self.result.transient and not (retry_failed and self.failed)


class Draft(_EntryFolder):
    def finish(self, result: StoredResult) -> bool:
        """Write the result and the list of digests; return whether the entry has been synced to the disk."""
        digests = dict(_digests(self.folder))
        prefix = f"{self.artifacts.name}/"
        result.artifacts = {n.removeprefix(prefix): d for n, d in digests.items() if n.startswith(prefix)}
        data = msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n"
        (self.folder / RESULT).write_bytes(data)
        digests[RESULT] = hashlib.sha256(data).hexdigest()
        (self.folder / _DIGESTS).write_bytes(_as_list(digests))
        if result.seconds < _SYNC_SECONDS:
            return False
        for folder, _, names in os.walk(self.folder):
            for name in names:
                sync_path(Path(folder, name))
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
        found = dict(_digests(folder))
    except OSError as error:
        raise DamagedEntryError(f"a file of it cannot be read ({error.strerror})") from None
    if not (folder / "artifacts").is_dir():
        raise DamagedEntryError("artifacts is missing")
    if _as_list(found) == listed:
        return
    lines = (line.partition("  ") for line in os.fsdecode(listed).split("\n") if line)
    expected = {name: digest for digest, _, name in lines}
    changed = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    if not changed:
        raise DamagedEntryError(f"{_DIGESTS} is not as it was written")
    first = changed[0]
    what = "is missing" if first not in found else "was added" if first not in expected else "was changed"
    raise DamagedEntryError(f"{first} {what}")


def _as_list(digests: dict[str, str]) -> bytes:
    return os.fsencode("".join(f"{digest}  {name}\n" for name, digest in sorted(digests.items())))


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
