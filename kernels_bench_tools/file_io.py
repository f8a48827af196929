"""Reading structs, writing files atomically, and digests of files."""

from __future__ import annotations

import hashlib
import os
import stat
import uuid
from pathlib import Path
from typing import TypeVar

import msgspec

T = TypeVar("T", bound=msgspec.Struct)


def read_struct(path: Path, kind: type[T]) -> T:
    """Return the struct in a JSON file."""
    return msgspec.json.decode(path.read_bytes(), type=kind)


def write_struct(path: Path, value: msgspec.Struct, *, sync: bool = True) -> None:
    """Write ``value`` to ``path`` as JSON, atomically; create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n", sync=sync)


def write_atomically(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Replace a file's content atomically, also in a power failure if ``sync``; links are followed, the mode is kept."""
    target = path.resolve()
    temporary = target.with_name(f".{target.name}.{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
        if target.exists():
            temporary.chmod(stat.S_IMODE(target.stat().st_mode))
        temporary.replace(target)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def file_digest(path: Path | str) -> str:
    """Return the SHA-256 of a file's bytes, in hex."""
    with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - a Path costs as much as reading a small file
        return hashlib.file_digest(file, "sha256").hexdigest()
