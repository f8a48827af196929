"""Seals: the list of the digests of all files in a folder, by which any change of one is noticed."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from pathlib import Path

from kernels_bench_tools.file_io import file_digest

DIGESTS = "digests.txt"
_NOTHING = hashlib.sha256(b"").hexdigest()


class DamagedEntryError(Exception):
    """An entry differs from the list of its digests; the message says in what."""


def folder_size(folder: Path) -> int:
    """Return the bytes of the files in a folder."""
    return sum(entry.stat(follow_symlinks=False).st_size for _, entry in _files(folder))


def sync_folder(folder: str | Path) -> None:
    """Let the disk have what a folder lists."""
    number = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)


def check_files(folder: Path, listed: bytes) -> None:
    """Compare a folder with the list of its digests.

    Raises:
        DamagedEntryError: They differ.
    """
    try:
        found = dict(digest_files(folder))
    except OSError as error:
        raise DamagedEntryError(f"a file of it cannot be read ({error.strerror})") from None
    if not (folder / "artifacts").is_dir():
        raise DamagedEntryError("artifacts is missing")
    if as_list(found) == listed:
        return
    expected = _parse(listed)
    changed = sorted(name for name in found.keys() | expected.keys() if found.get(name) != expected.get(name))
    if not changed:
        raise DamagedEntryError(f"{DIGESTS} is not as it was written")
    first = changed[0]
    what = "is missing" if first not in found else "was added" if first not in expected else "was changed"
    raise DamagedEntryError(f"{first} {what}")


def as_list(digests: dict[str, str]) -> bytes:
    """Return the list of digests by name, as it is written."""
    lines = (f"{digest}  {name}\n" for name, digest in sorted(digests.items()))
    return os.fsencode("".join(lines))


def _parse(listed: bytes) -> dict[str, str]:
    lines = (line.partition("  ") for line in os.fsdecode(listed).split("\n") if line)
    return {name: digest for digest, _, name in lines}


def digest_files(folder: Path) -> Iterator[tuple[str, str]]:
    """Yield name and digest of every file but the list of digests, in the order of the names."""
    for name, entry in sorted(_files(folder), key=lambda pair: pair[0]):
        if name == DIGESTS:
            continue
        if not entry.is_file(follow_symlinks=False):
            yield name, "not a file"
        elif entry.stat(follow_symlinks=False).st_size:
            yield name, file_digest(entry.path)
        else:  # most logs are empty, and thousands of them are read in a build
            yield name, _NOTHING


def _files(folder: Path) -> Iterator[tuple[str, os.DirEntry[str]]]:
    waiting = [(str(folder), "")]
    while waiting:
        path, prefix = waiting.pop()
        with os.scandir(path) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    waiting.append((entry.path, f"{prefix}{entry.name}/"))
                else:
                    yield f"{prefix}{entry.name}", entry


def sync_tree(folder: Path) -> None:
    """Let the disk have all that is in a folder."""
    for here, _, names in os.walk(folder):
        for name in names:
            sync_folder(os.path.join(here, name))  # noqa: PTH118 - a file is synced like a folder
        sync_folder(here)
