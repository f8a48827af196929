"""The folder of kbt's key, and processes that have no access to it, whatever they run.

A cell has the permissions of its user. With Landlock, Linux lets a thread give up access to files for good, for itself and for all that it starts; this
needs no root. A process without access to the key cannot debug ``kbt`` either, from whose memory it could read it. Linux before 6.2 and other systems
have no such thing.
"""

from __future__ import annotations

import ctypes
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from struct import pack
from typing import TypeVar

from kernels_bench_tools.file_io import real_path
from kernels_bench_tools.run.environment.variables import home_folder, shared_folders

T = TypeVar("T")
_FOLDER = re.compile(r".*_(DIR|HOME|CACHE)")
"""Variables that name a folder."""
_CREATE_RULES, _ADD_RULE, _RESTRICT = 444, 445, 446
"""Numbers of Linux's system calls, the same on all processors."""
_VERSION_FLAG, _VERSION = 1, 3
"""Earlier versions do not know truncating a file."""
_BELOW_PATH, _NO_NEW_PRIVILEGES = 1, 38
_OF_FILES = 1 << 1 | 1 << 2 | 1 << 14
"""Writing, reading and truncating a file."""
_OF_FOLDERS = 0b1111111111 << 4
"""Removing, making and moving what is in a folder; listing it, and running files, is left to all."""


def key_folder() -> Path:
    """Return the folder of the user in which the key is, without making it."""
    state = os.environ.get("XDG_STATE_HOME") or home_folder(os.environ) / ".local" / "state"
    return real_path(Path(state, "kbt"))


def confined(start: Callable[[], T], variables: Mapping[str, str]) -> T:
    """Return what ``start`` returns; processes that it starts can use all files but those in the folder of the key.

    In the folders above that one they can use what there is, and make nothing: folders that ``variables`` name are made.
    """
    with ThreadPoolExecutor(1, initializer=_confine, initargs=(variables,)) as pool:
        return pool.submit(start).result()


def can_confine() -> bool:
    """Return whether processes can be kept from the folder of the key, which is there."""
    folder = key_folder()
    # Where temporary files are next to the folder, nothing would run.
    if sys.platform != "linux" or not folder.is_dir() or real_path(tempfile.gettempdir()) in folder.parents:
        return False
    version = ctypes.CDLL(None).syscall(_CREATE_RULES, None, ctypes.c_size_t(0), _VERSION_FLAG)
    return int(version) >= _VERSION


def _confine(variables: Mapping[str, str]) -> None:
    if not can_confine():
        return
    folder, call = key_folder(), ctypes.CDLL(None).syscall
    named = {**shared_folders(os.environ), **variables}.items()
    for path in (Path(value) for name, value in named if _FOLDER.fullmatch(name)):
        if path.is_absolute() and next(filter(Path.exists, path.parents)) in folder.parents:
            with suppress(OSError):
                path.mkdir(parents=True, exist_ok=True)
    handled = _OF_FILES | _OF_FOLDERS
    rules = call(_CREATE_RULES, pack("Q", handled), ctypes.c_size_t(8), 0)
    try:
        for entry in _others(folder):
            with suppress(OSError):  # it has just been removed
                file = os.open(entry, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)
                allowed = handled if entry.is_dir(follow_symlinks=False) else _OF_FILES
                call(_ADD_RULE, rules, _BELOW_PATH, pack("=Qi", allowed, file), 0)
                os.close(file)
        ctypes.CDLL(None).prctl(_NO_NEW_PRIVILEGES, 1, 0, 0, 0)
        call(_RESTRICT, rules, 0)
    finally:
        os.close(rules)


def _others(folder: Path) -> Iterator[os.DirEntry[str]]:
    """Yield what is in the folders above ``folder`` and does not lead to it. Links have no rights: their targets do."""
    for below in (folder, *folder.parents[:-1]):
        with suppress(OSError), os.scandir(below.parent) as entries:
            yield from (entry for entry in entries if entry.name != below.name and not entry.is_symlink())
