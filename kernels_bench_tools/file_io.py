"""Writing files atomically, and their digests."""

from __future__ import annotations

import hashlib
import os
import stat
import uuid
from pathlib import Path


def write_atomically(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Replace the content of ``path``: a reader, or a power cut, sees the old content or the new.

    Args:
        path: The file; its folder must exist. Links are followed, and the mode of an existing file is kept.
        data: The new content.
        sync: Whether to wait until the data is on the disk; not needed for files that do not outlive the process.
    """
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
