"""Folders that kbt makes and removes, and paths that others name.

A repository may contain a link in place of one, or of a file: it is never followed.
Nothing else in this package removes a folder with its content.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path, PurePosixPath

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.text.names import is_file_name

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_MODE = 0o700
_LONGEST_NAME, _LONGEST_PATH = 255, 1000


def path_below(folder: Path, text: str, ending: str = "", *, where: str = "", linked: bool = False) -> Path:
    """Return what text from elsewhere names in ``folder``, with our ending; a ``ProjectError`` if it leads out, unless a link may."""
    names = PurePosixPath(text).parts
    fits = names and all(map(is_file_name, names)) and len(text.encode()) <= _LONGEST_PATH
    path = folder.joinpath(*names[:-1], f"{names[-1]}{ending}") if fits else folder
    inside = linked or Path(os.path.realpath(path)).is_relative_to(os.path.realpath(folder))
    if not fits or not inside or len(os.fsencode(path.name)) > _LONGEST_NAME:
        what = f"{text[:_LONGEST_NAME]!r} cannot be a path in {folder}"
        expected = "Printable names of at most 200 bytes that begin with no dot, and no link out of it"
        raise ProjectError(where or str(folder), what, expected, "Rename it")
    return path


def make_folder(path: Path, below: Path | None = None, *, replace: bool = False) -> None:
    """Make ``path`` and its parents as far as ``below``; a ``ProjectError`` if one of them is a link or a file.

    With ``replace`` it is removed instead (not its target), and permissions are given back: while a build runs, only
    cells put something there. Without ``below`` links are followed: the user has named the path.
    """
    if below is None:
        path.mkdir(parents=True, exist_ok=True)
    current = below = below or path
    for part in _parts(path, below):
        current /= part
        with suppress(FileExistsError):
            current.mkdir()
        mode = current.lstat().st_mode
        if stat.S_ISDIR(mode):
            if replace and mode & _MODE != _MODE:
                current.chmod(stat.S_IMODE(mode) | _MODE)
        elif replace:
            remove_tree(current, below)
            current.mkdir()
        else:
            raise not_a_folder(current)


def output_folder(named: Path | None, default: Path) -> Path:
    """Make the folder that the user has named, or the default one, which must not be a link; return it."""
    make_folder(below := named or default.parent)
    make_folder(named or default, below)
    return named or default


def not_a_folder(path: Path) -> ProjectError:
    what = "is a symbolic link" if path.is_symlink() else "is not a folder"
    return ProjectError(str(path), what, "A folder that kbt makes", "Move it away")


def _parts(path: Path, below: Path) -> tuple[str, ...]:
    parts = path.relative_to(below).parts if path.is_relative_to(below) else ("..",)
    if ".." in parts:
        raise ProjectError(str(path), f"is not in {below}", "A path without '..'")
    return parts


def clear_file(path: Path) -> None:
    """Remove what is in place of a file that kbt opens to write it, such as a link or socket; give permissions back."""
    with suppress(FileNotFoundError):
        if not stat.S_ISREG(path.lstat().st_mode):
            remove_tree(path, path.parent, strict=True)
        elif not os.access(path, os.R_OK | os.W_OK):
            path.chmod(0o600)


def remove_tree(path: Path, below: Path, *, strict: bool = False) -> None:
    """Remove what is at ``path``, if anything: a folder with its content, a file, or a link but not its target.

    Nothing is removed if a folder from ``below`` to ``path`` is a link. What cannot be removed stays; with ``strict`` the
    first reason is raised, an ``OSError``.
    """
    *parents, name = _parts(path, below)
    errors: list[OSError] = []
    try:
        with ExitStack() as stack:
            parent = stack.enter_context(opened(below, _FOLDER))
            for folder in parents:
                parent = stack.enter_context(opened(folder, _FOLDER | os.O_NOFOLLOW, parent))
            _remove(name, parent, errors)
    except FileNotFoundError:
        return
    except OSError as error:
        errors.append(error)
    if errors and strict:
        errors[0].filename = str(path)  # not a name in it
        raise errors[0]


@contextmanager
def opened(path: str | Path, flags: int, folder: int | None = None) -> Iterator[int]:
    """Open a file or folder, relative to an open ``folder`` if that is given, and close it at the end."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, dir_fd=folder)  # a FIFO would block
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextmanager
def temporary_folder(parent: Path) -> Iterator[Path]:
    """Make a folder for temporary files, and remove it at the end as far as that is possible.

    ``parent`` is the folder of a reaper, which removes what a killed process leaves.
    """
    path = Path(tempfile.mkdtemp(dir=parent)).resolve()
    try:
        yield path
    finally:
        remove_tree(path, path.parent)


def _remove(name: str, parent: int, errors: list[OSError]) -> None:
    """Remove a file, link or folder. Inner folders are moved up first, so that no depth is too much."""
    if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
        os.unlink(name, dir_fd=parent)
        return
    _allow(name, parent)
    with opened(name, _FOLDER | os.O_NOFOLLOW, parent) as top:
        pending = _empty(top, top, errors)
        while pending:
            inner = pending.pop()
            try:
                with opened(inner, _FOLDER | os.O_NOFOLLOW, top) as folder:
                    pending += _empty(folder, top, errors)
                os.rmdir(inner, dir_fd=top)
            except OSError as error:
                errors.append(error)
    os.rmdir(name, dir_fd=parent)


def _empty(folder: int, top: int, errors: list[OSError]) -> list[str]:
    """Remove the files of a folder, and move its folders into ``top``; return their names there."""
    moved = []
    with os.scandir(folder) as entries:
        listed = list(entries)
    for entry in listed:
        name = entry.name
        try:
            if not entry.is_dir(follow_symlinks=False):
                os.unlink(name, dir_fd=folder)
                continue
            _allow(name, folder)
            if folder != top:
                name = f".removed-{os.urandom(16).hex()}"
                os.rename(entry.name, name, src_dir_fd=folder, dst_dir_fd=top)
            moved.append(name)
        except OSError as error:
            errors.append(error)
    return moved


def _allow(name: str, parent: int) -> None:
    """Give a folder back the permissions without which it can be neither read, emptied nor moved."""
    mode = os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode
    if mode & _MODE == _MODE or not hasattr(os, "O_PATH"):
        return
    # A chmod by name would follow a link that has just been put there.
    with (
        opened(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW, parent) as folder,
        suppress(OSError),  # of another user
    ):
        os.chmod(f"/proc/self/fd/{folder}", _MODE)  # noqa: PTH101
