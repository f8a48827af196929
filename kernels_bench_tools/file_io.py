"""Reading regular files and structs, writing files atomically, trying folders, and digests of files."""

from __future__ import annotations

import errno
import fcntl
import glob
import hashlib
import os
import shutil
import stat
import tempfile
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from io import BufferedRandom
from pathlib import Path
from typing import TypeVar

import msgspec

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.own_folders import clear_file, opened
from kernels_bench_tools.text.foreign import parse_json

T = TypeVar("T")
_LONGEST = 2 << 30
_NEW = os.O_WRONLY | os.O_CREAT
_FLAGS = {"rb": os.O_RDONLY, "wb": _NEW | os.O_TRUNC, "ab": _NEW | os.O_APPEND}


_OF_PROGRAMS = {"node_modules", "__pycache__"}


def real_path(path: Path | str) -> Path:
    """Return the absolute path without links; unlike ``Path.resolve()``, no error for a loop of them."""
    return Path(os.path.realpath(path))


def walk_files(root: Path, is_skipped: Callable[[Path], bool]) -> Iterator[Path]:
    """Yield the files of a tree but hidden ones, those of virtual environments and packages, and what ``is_skipped``."""
    for parent, folders, names in os.walk(root):
        here = Path(parent)
        seen = [here / name for name in folders if name[0] != "." and name not in _OF_PROGRAMS]
        # os.path.exists is false in a folder that cannot be read, which os.walk skips.
        folders[:] = [
            folder.name
            for folder in seen
            if not os.path.exists(folder / "pyvenv.cfg") and not is_skipped(folder)  # noqa: PTH110
        ]
        yield from (here / name for name in names if name[0] != ".")


def read_file(path: Path | str) -> bytes:
    """Return the bytes of a file; raise an ``OSError`` for one that is not regular, such as a FIFO, or has more than 2 GiB."""
    with open_regular(path) as file:
        if (size := os.fstat(file.fileno()).st_size) > _LONGEST:
            raise OSError(errno.EACCES, "it is larger than 2 GiB", str(path))
        return file.read(size)  # no further: files of /proc have the size 0, and some have no end


def file_text(path: Path | str) -> str:
    return read_file(path).decode(errors="replace")


def copy_file(source: Path, target: Path) -> None:
    """Copy a regular file of any size in place of whatever is there."""
    with open_regular(source) as file, open_regular(target, "wb") as copy:
        shutil.copyfileobj(file, copy)


def read_struct(path: Path, kind: type[T]) -> T:
    """Return the struct in a JSON file."""
    return parse_json(read_file(path), kind)


def find_struct(path: Path, kind: type[T]) -> T | None:
    """Return the struct in a JSON file; None if there is no file, or it is damaged or of another version."""
    try:
        return read_struct(path, kind)
    except (OSError, msgspec.MsgspecError):
        return None


def write_struct(path: Path, value: msgspec.Struct, *, sync: bool = True, own: bool = False) -> None:
    """Write ``value`` to ``path`` as JSON, as :func:`update_file` does; if ``own``, in place of whatever a cell has put there."""
    if own:
        clear_file(path)
    update_file(path, msgspec.json.format(msgspec.json.encode(value), indent=1) + b"\n", sync=sync)


def update_file(path: Path, data: bytes, *, sync: bool = False) -> None:
    """Write a file atomically, and its folder, unless it has this content: then it keeps its time."""
    remove_unfinished(path)
    with suppress(OSError):
        if not path.is_symlink() and path.stat().st_size == len(data) and read_file(path) == data:
            return
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, data, sync=sync)


def write_atomically(path: Path, data: bytes, *, sync: bool = True) -> None:
    """Replace a file's content atomically, also in a power failure if ``sync``; the mode is kept, but it can be read.

    A link is replaced, not followed: a cloned repository may contain anything in place of a file.
    """
    target = path.absolute()
    remove_unfinished(target)
    # Not the whole name, to which nothing might be added.
    temporary = target.with_name(f".{target.name[:50]}.{uuid.uuid4().hex}")
    try:
        with temporary.open("wb") as file:
            with suppress(OSError):  # of a file system without locks
                fcntl.flock(file, fcntl.LOCK_EX)
            if not os.fstat(file.fileno()).st_nlink:  # removed before it was locked
                return write_atomically(path, data, sync=sync)
            file.write(data)
            if sync:
                file.flush()
                os.fsync(file.fileno())
            if target.exists() and not target.is_symlink():
                temporary.chmod(stat.S_IMODE(target.stat().st_mode) | stat.S_IRUSR)
            file.flush()
            temporary.replace(target)
        if sync:
            sync_path(target.parent)
    except BaseException as error:
        if isinstance(error, OSError):
            error.filename = str(path)  # not the temporary file
        with suppress(OSError):  # of a read-only file system, which would hide the first error
            temporary.unlink()
        raise


def remove_unfinished(target: Path) -> None:
    """Remove what killed calls of :func:`write_atomically` left; a file that is being written is locked."""
    for left in target.parent.glob(f".{glob.escape(target.name[:50])}.{'[0-9a-f]' * 32}"):
        with suppress(OSError):
            clear_file(left)
            with open_regular(left) as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                left.unlink()


def sync_path(path: str | Path) -> None:
    """Write a file, or the list of a folder, to the disk."""
    with opened(path, os.O_RDONLY) as descriptor:
        os.fsync(descriptor)


def check_writable(folder: Path) -> None:
    """Raise a ``ProjectError`` if no file can be written to ``folder``, or the folder cannot be made."""
    absolute = folder.absolute()
    nearest = next(path for path in (absolute, *absolute.parents) if os.path.lexists(path))
    try:
        with tempfile.TemporaryFile(dir=nearest) as file:
            file.write(b"\n")
            file.flush()
    except OSError as error:
        what = f"cannot be written ({error.strerror})"
        raise ProjectError(
            str(folder), what, "A writable folder", "Choose another, or free disk space"
        ) from None


def file_digest(path: Path | str) -> str:
    """Return the SHA-256 of a file's bytes, in hex."""
    with open_regular(path) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def open_regular(path: Path | str, mode: str = "rb") -> BufferedRandom:
    """Open a regular file and wait for nothing; anything else is an ``OSError``, or is cleared if the file is to be written."""
    refused = OSError(errno.EACCES, "it is not a regular file", str(path))
    if mode != "rb":
        clear_file(Path(path))
    elif not stat.S_ISREG(os.stat(path).st_mode):  # noqa: PTH116 - a Path costs as much as reading a small file
        raise refused  # opening a device may have an effect
    descriptor = os.open(path, _FLAGS[mode] | os.O_NONBLOCK | os.O_CLOEXEC, 0o666)
    file = os.fdopen(descriptor, mode)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        file.close()
        raise refused
    return file  # type: ignore[return-value]
