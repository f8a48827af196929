"""The files of an environment: whether they are those of its packages, and whether a cell changed them.

The states of files (size, times and inode) are compared before and after each process of a cell. A file whose state
differs is right if it is as its package's ``RECORD`` says: uv links files from its cache, and each link that it makes
changes the state of the file in all environments. Bytecode is the exception, since Python writes it when a cell imports
something: new bytecode is compared with what its source compiles to, in a process without any code of the environment.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import os
import re
import struct
import subprocess
import threading
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgspec

from kernels_bench_tools.file_io import file_digest, find_struct, write_struct
from kernels_bench_tools.own_process import isolated_command
from kernels_bench_tools.run.environment.variables import user_cache

State = tuple[int, int, int, int]
"""Size, time of the last modification, time of the last change of the inode (nobody can set it), and inode."""

_STARTUP = re.compile(r"(^|.*/)((site|user)customize(\.py|/.*)|[^/]*\.(pth|pyc|pyo|egg-link))")
"""Files in ``site-packages`` that Python executes or reads at its start, or instead of a source."""
_BYTECODE = re.compile(r"(?P<source>.*)\.(?P<tag>[a-z]+-\d+)(?:\.opt-(?P<level>[12]))?\.pyc")
_OTHER_BYTECODE = re.compile(r".*\.pyc(\.\d+)?")
"""Bytecode that Python does not import, such as pytest's, and files that are being written."""
_HASH_BASED = 1  # flag of bytecode that is used whatever the time of its source is
_HEADER = struct.Struct("<4sIII")
_ANY_FOLDER = b"\0environment"
_COMPARED = "bytecode.json"
"""File in the user's cache with what was compared: compiling what a torch environment imports takes seconds."""
_MOST_COMPARED = 50_000
_MISSING: State = (0, 0, 0, 0)
_DIGESTS: dict[State, str] = {}
"""Digests by state: environments have most files in common, as links to the same inodes."""
_AT_ONCE = 400
"""How much bytecode one process compares."""

_COMPARE = """
import importlib.util, marshal, sys
for line in sys.stdin.read().splitlines():
    path, source, level = line.split("\\0")
    try:
        with open(path, "rb") as file:
            head, found = file.read(16), file.read()
        with open(source, "rb") as file:
            made = compile(file.read(), source, "exec", dont_inherit=True, optimize=int(level))
        code = made if head[:4] != importlib.util.MAGIC_NUMBER else marshal.loads(found)
        same = code == made or marshal.dumps(code) == marshal.dumps(made)  # nan is not equal to itself
    except Exception:
        same = False
    if not same:
        print(path)
"""


class _Manifest(msgspec.Struct):
    """The files of an environment when they were last compared."""

    python: str
    states: dict[str, State]


class _Compared(msgspec.Struct):
    """Digests of bytecode that was compared with its source."""

    marks: set[str]


class _Listed(NamedTuple):
    digest: str
    """As in a ``RECORD``; empty where that has none."""
    package: str


class Installed:
    """The files of one environment, and the bytecode of the local packages that its cells import; thread-safe.

    ``manifest`` is where the states are kept for the next build; None for an environment that is not made by uv.
    """

    def __init__(
        self, python: str, folder: Path, sources: Iterable[Path] = (), manifest: Path | None = None
    ) -> None:
        self.python = python
        self.folder = folder
        self._sources = tuple(sources)
        self._manifest = manifest
        self._states: dict[str, State] = {}
        self._lock = threading.Lock()
        self._compared = _compared()

    @classmethod
    def restored(cls, manifest: Path, sources: Iterable[Path]) -> Installed | None:
        """Return the environment with the states of the last build; None if there are none."""
        known = find_struct(manifest, _Manifest)
        if known is None:
            return None
        files = cls(known.python, Path(known.python).parents[1], sources, manifest)
        files._states = known.states
        return files if files.folder.is_dir() else None

    def accept(self) -> None:
        """Take the files as they are for those of the environment."""
        self._take(dict(self._found()))

    def adopt(self, other: Installed) -> None:
        """Take the states of the same environment after it was made again."""
        self._states = other._states

    def change(self) -> str:
        """Return the first file that changed since the states were taken, and how; empty if none did.

        New bytecode that is that of its source is accepted, and so is a file with the digest in its ``RECORD``.
        """
        with self._lock:
            try:
                found = dict(self._found())
            except OSError as error:
                return f"{error.filename} cannot be read ({error.strerror})"
            states = self._states
            if found == states:
                return ""
            differ = sorted(
                path for path in found.keys() | states.keys() if found.get(path) != states.get(path)
            )
            bytecode = [path for path in differ if _is_cached(path)]
            files = [path for path in differ if not _is_cached(path)]
            for path in files:
                if path not in found or path not in states:
                    return f"{self._name(path)} was {'removed' if path in states else 'added'}"
            # The digests are right: a RECORD has none for itself, so one that differs is a change.
            listed = self._listed() if files else {}
            if altered := _altered({path: found[path] for path in files}, listed):
                return f"{self._name(altered)} changed"
            if wrong := self._remove_wrong_bytecode([path for path in bytecode if path in found]):
                return f"{self._name(wrong[0])} got bytecode that is not its source's"
            self._take(found)
            return ""

    def flaw(self) -> tuple[str, str]:
        """Take the files of a new environment; return the first that no package put there, with how, and its package.

        That is a file that differs from its package's ``RECORD``, and one that none lists if Python would execute it
        without an import. The package is empty if it is not known, and both are if there is no such file.
        """
        found, listed = dict(self._found()), self._listed()
        for path in sorted(found.keys() - listed.keys()):
            inside = path.partition("/site-packages/")[2]
            if inside and _STARTUP.fullmatch(inside) and not _is_cached(path):
                return f"{self._name(path)} is in no RECORD", ""
        states = {path: found.get(path, _MISSING) for path, one in listed.items() if one.digest}
        if altered := _altered(states, listed):
            return f"{self._name(altered)} is not as its RECORD says", listed[altered].package
        self._remove_wrong_bytecode([path for path in found if _is_cached(path)])
        self._take(found)
        return "", ""

    def _take(self, found: dict[str, State]) -> None:
        """Take these states, and keep them for the next build."""
        # Bytecode older than its source is not used now, and is looked at again.
        known = self._states
        self._states = {
            path: state
            for path, state in found.items()
            if known.get(path) == state or not _is_cached(path) or _comparison(path)
        }
        if self._manifest and self._states != known:
            write_struct(self._manifest, _Manifest(self.python, self._states), sync=False)

    def _listed(self) -> dict[str, _Listed]:
        """Return what the ``RECORD`` files of the environment list."""
        listed = {}
        for pattern in ("*.dist-info/RECORD", "lib/python*/site-packages/*.dist-info/RECORD"):
            for record in self.folder.glob(pattern):
                packages, package = record.parents[1], record.parent.name.partition("-")[0]
                with record.open(encoding="utf-8", newline="") as file:
                    for path, *more in filter(None, csv.reader(file)):
                        digest = more[0] if more and more[0].startswith("sha256=") else ""
                        listed[os.path.normpath(f"{packages}/{path}")] = _Listed(digest, package)
        return listed

    def _name(self, path: str) -> str:
        return path.removeprefix(f"{self.folder}/")

    def _found(self) -> Iterator[tuple[str, State]]:
        """Yield path and state of each file that a cell imports, or may."""
        yield from _file_states(self.folder, sources=False)
        for source in self._sources:
            yield from _file_states(source, sources=True)

    def _remove_wrong_bytecode(self, paths: list[str]) -> list[str]:
        """Remove those of these files that Python would use though their source compiles to something else."""
        marks = {line: self._mark(line) for line in map(_comparison, paths) if line}
        lines = [line for line, mark in marks.items() if mark not in self._compared]
        portions = [lines[start : start + _AT_ONCE] for start in range(0, len(lines), _AT_ONCE)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            wrong = [path for found in pool.map(self._compare, portions) for path in found]
        for path in wrong:
            Path(path).unlink(missing_ok=True)
        right = {marks[line] for line in lines if line.partition("\0")[0] not in wrong}
        if right:
            self._compared.update(right)
            newest = right if len(self._compared) > _MOST_COMPARED else set(self._compared)
            write_struct(user_cache() / _COMPARED, _Compared(newest), sync=False)
        return wrong

    def _mark(self, line: str) -> str:
        """Return a digest of bytecode and source that is the same in any environment."""
        path, source, level = line.split("\0")
        with open(path, "rb") as bytecode, open(source, "rb") as text:  # noqa: PTH123 - thousands of files
            body = bytecode.read().replace(os.fsencode(self.folder), _ANY_FOLDER)
            digest = hashlib.sha256(body[:4] + body[_HEADER.size :])
            digest.update(hashlib.sha256(text.read()).digest() + level.encode())
            return digest.hexdigest()

    def _compare(self, lines: list[str]) -> list[str]:
        command = isolated_command(_COMPARE, self.python)
        done = subprocess.run(command, input="\n".join(lines), capture_output=True, text=True, check=False)
        if done.returncode:
            return [line.partition("\0")[0] for line in lines]
        return done.stdout.splitlines()


def _file_states(folder: Path, *, sources: bool) -> Iterator[tuple[str, State]]:
    """Yield path and state of each file in an environment, or of the bytecode of ``sources``."""
    pending = [str(folder)]
    while pending:
        inside = pending.pop()
        bytecode = inside.endswith("/__pycache__")
        with os.scandir(inside) as entries:
            # Tens of thousands before and after each process: as little as possible for each.
            for entry in entries:
                name = entry.name
                if entry.is_dir(follow_symlinks=False):
                    if not (sources and name[0] == "."):
                        pending.append(f"{inside}/{name}")
                elif bytecode and _OTHER_BYTECODE.fullmatch(name) and not _BYTECODE.fullmatch(name):
                    continue
                elif (bytecode or not sources) and name != ".lock":
                    one = entry.stat(follow_symlinks=False)
                    yield f"{inside}/{name}", (one.st_size, one.st_mtime_ns, one.st_ctime_ns, one.st_ino)


def _is_cached(path: str) -> bool:
    """Return whether this is bytecode where Python looks for it."""
    folder, _, name = path.rpartition("/")
    return name.endswith(".pyc") and folder.endswith("/__pycache__") and bool(_BYTECODE.fullmatch(name))


def _comparison(path: str) -> str:
    """Return bytecode, source and level of optimization for ``_COMPARE``; empty if Python would not use the file."""
    folder, _, name = path.rpartition("/")
    match = _BYTECODE.fullmatch(name)
    assert match is not None
    source = f"{folder.removesuffix('/__pycache__')}/{match['source']}.py"
    try:
        with open(path, "rb", buffering=0) as file:  # noqa: PTH123 - thousands of files
            _, flags, seconds, size = _HEADER.unpack(file.read(_HEADER.size))
        found = os.stat(source)  # noqa: PTH116
    except (OSError, struct.error):  # without its source it is not imported from here; Python makes it again
        return ""
    stale = (int(found.st_mtime) & 0xFFFFFFFF, found.st_size & 0xFFFFFFFF) != (seconds, size)
    return "" if not flags & _HASH_BASED and stale else f"{path}\0{source}\0{match['level'] or 0}"


@cache
def _compared() -> set[str]:
    """Return the marks that earlier builds kept, read once: a cell may write to the file."""
    known = find_struct(user_cache() / _COMPARED, _Compared)
    return known.marks if known else set()


def _altered(states: Mapping[str, State], listed: Mapping[str, _Listed]) -> str:
    """Return the first of these files whose content has not the listed digest; empty if all have."""
    paths = list(states)
    with ThreadPoolExecutor() as pool:  # in portions: most files are small
        portions = [paths[start : start + _AT_ONCE] for start in range(0, len(paths), _AT_ONCE)]
        found = pool.map(lambda some: [_has_digest(path, states[path], listed) for path in some], portions)
        right = [one for some in found for one in some]
    return next((path for path, same in zip(paths, right, strict=True) if not same), "")


def _has_digest(path: str, state: State, listed: Mapping[str, _Listed]) -> bool:
    expected = listed[path].digest if path in listed else ""
    # A link to a file elsewhere could get another content without another state.
    if not expected or os.path.islink(path):  # noqa: PTH114 - thousands of files
        return False
    if state not in _DIGESTS:
        try:
            digest = base64.urlsafe_b64encode(bytes.fromhex(file_digest(path)))
        except OSError:
            return False
        _DIGESTS[state] = f"sha256={digest.decode().rstrip('=')}"
    return _DIGESTS[state] == expected
