"""Entries of the cell cache: the files of one result, sealed by a list of their digests.

``<key>/`` holds ``result.json``, ``stdout.txt``, ``stderr.txt``, ``environment.txt``, ``artifacts/`` and, written
last, ``digests.txt``: a line for every other file, as ``sha256sum --check`` reads it. An entry that differs from
its list in a single bit is damaged, and counts as absent.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kernels_bench_tools.file_io import read_struct
from kernels_bench_tools.run.cache.checksums import (
    DIGESTS,
    DamagedEntryError,
    as_list,
    check_files,
    digest_files,
    sync_tree,
)
from kernels_bench_tools.schema.record import Status

FORMAT = 2
"""Version of the entries; others count as absent."""

_RESULT = "result.json"
LOGS = ("stdout.txt", "stderr.txt", "environment.txt")
_WORTH_SYNCING_SECONDS = 0.1
"""A result that took longer is on the disk, and not only on its way there, before it is an entry. Syncing an entry
takes 2 ms, hundreds of trivial cells would feel it, and a trivial one that a power cut spoils just runs again."""


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
    parts: dict[str, str] = msgspec.field(default_factory=dict)
    """Each ingredient of its key to a digest of it; tells what changed since."""


class _Format(msgspec.Struct):
    format: int


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

    def begin(self) -> None:
        """Make the folder, with empty logs."""
        self.artifacts.mkdir(parents=True)
        for log in LOGS:
            (self.folder / log).touch()

    def seal(self, result: StoredResult) -> bool:
        """Write the result, with the digests of its artifacts, and then the list of all digests.

        Returns:
            Whether all of it is on the disk now, because running the cell again would take long.
        """
        digests = dict(digest_files(self.folder))
        inside = f"{self.artifacts.name}/"
        result.artifacts = {n.removeprefix(inside): d for n, d in digests.items() if n.startswith(inside)}
        data = msgspec.json.format(msgspec.json.encode(result), indent=1) + b"\n"
        (self.folder / _RESULT).write_bytes(data)
        digests[_RESULT] = hashlib.sha256(data).hexdigest()
        (self.folder / DIGESTS).write_bytes(as_list(digests))
        if result.seconds < _WORTH_SYNCING_SECONDS:
            return False
        sync_tree(self.folder)
        return True


def read_entry(folder: Path) -> Entry | None:
    """Return the entry in ``folder``; None if there is none, or one of another version.

    Raises:
        DamagedEntryError: It is there, and not as it was sealed.
    """
    if not folder.is_dir():
        return None
    try:
        listed = (folder / DIGESTS).read_bytes()
    except FileNotFoundError:
        if _is_of_another_format(folder):
            return None
        raise DamagedEntryError(f"{DIGESTS} is missing") from None
    except OSError as error:
        raise DamagedEntryError(f"{DIGESTS} cannot be read ({error.strerror})") from None
    check_files(folder, listed)
    try:
        result = read_struct(folder / _RESULT, StoredResult)
    except msgspec.MsgspecError as error:
        if _is_of_another_format(folder):
            return None
        raise DamagedEntryError(f"{_RESULT} is not a result ({error})") from None
    return Entry(folder, result) if result.format == FORMAT else None


def _is_of_another_format(folder: Path) -> bool:
    try:
        return read_struct(folder / _RESULT, _Format).format != FORMAT
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return False
