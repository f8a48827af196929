"""The files of an environment: whether they are those of its packages, and whether a cell changed them.

After uv has made an environment, its files are compared with the digests in the packages' ``RECORD``. From then on
their states (size, times and inode) are compared, before and after each process of a cell. Bytecode is the exception,
since Python writes it when a cell imports something: new bytecode is compared with what its source compiles to, in a
process without any code of the environment.
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
import uuid
from collections.abc import Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import msgspec

from kernels_bench_tools.file_io import file_digest, read_struct, write_struct

State = tuple[int, int, int, int]
"""Size, time of the last modification, time of the last change of the inode (nobody can set it), and inode."""

_STARTUP = re.compile(r"(^|.*/)((site|user)customize(\.py|/.*)|[^/]*\.(pth|pyc|pyo|egg-link))")
"""Files in ``site-packages`` that Python executes or reads at its start, or instead of a source."""
_BYTECODE = re.compile(r"(?P<source>.*)\.(?P<tag>[a-z]+-\d+)(?:\.opt-(?P<level>[12]))?\.pyc")
_OTHER_BYTECODE = re.compile(r".*\.pyc(\.\d+)?")
"""Bytecode that Python does not import, such as pytest's, and files that are being written."""
_HASH_BASED = 1  # flag of bytecode that is used whatever the time of its source is
_HEADER = struct.Struct("<4sIII")
_ANY_FOLDER = uuid.uuid4().bytes
_COMPARED: set[bytes] = set()
"""What this process has compared: most environments have the same torch, which takes seconds to compile."""
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

    @classmethod
    def restored(cls, manifest: Path, sources: Iterable[Path]) -> Installed | None:
        """Return the environment with the states of the last build; None if there are none."""
        try:
            known = read_struct(manifest, _Manifest)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None
        files = cls(known.python, Path(known.python).parents[1], sources, manifest)
        files._states = known.states
        return files if files.folder.is_dir() else None

    def accept(self) -> None:
        """Take the files as they are for those of the environment."""
        self._states = {
            path: state for path, state in self._found() if not _is_cached(path) or _comparison(path)
        }

    def adopt(self, other: Installed) -> None:
        """Take the states of the same environment after it was made again."""
        self._states = other._states

    def keep(self) -> None:
        """Write the states for the next build."""
        if self._manifest:
            write_struct(self._manifest, _Manifest(self.python, self._states), sync=False)

    def change(self) -> str:
        """Return the first file that changed since the states were taken, and how; empty if none did.

        New bytecode that is that of its source is accepted.
        """
        with self._lock:
            try:
                found = dict(self._found())
            except OSError as error:
                return f"{error.filename} cannot be read ({error.strerror})"
            if found == self._states:
                return ""
            states, fresh = self._states, []
            for path in sorted(found.keys() | states.keys()):
                if found.get(path) == states.get(path):
                    continue
                if _is_cached(path):
                    fresh += [path] * (path in found)
                else:
                    how = (
                        "was removed"
                        if path not in found
                        else "was added"
                        if path not in states
                        else "changed"
                    )
                    return f"{self._name(path)} {how}"
            if wrong := self._remove_wrong_bytecode(fresh):
                return f"{self._name(wrong[0])} got bytecode that is not its source's"
            # Bytecode older than its source is not used now, and is looked at again.
            used = {path for path in fresh if _comparison(path)}
            self._states = {path: state for path, state in found.items() if path not in fresh or path in used}
            if used:
                self.keep()
            return ""

    def flaw(self) -> str:
        """Return the first file that is not as its package's ``RECORD`` says, and how; empty if there is none.

        A file that no ``RECORD`` lists is one if Python would execute it without an import.
        """
        listed: dict[str, str] = {}
        for record in self.folder.glob("lib/python*/site-packages/*.dist-info/RECORD"):
            packages = record.parents[1]
            with record.open(encoding="utf-8", newline="") as file:
                for row in csv.reader(file):
                    listed[os.path.normpath(packages / row[0])] = row[1] if len(row) > 1 else ""
        for path in sorted({path for path, _ in self._found()} - listed.keys()):
            inside = path.partition("/site-packages/")[2]
            if inside and _STARTUP.fullmatch(inside) and not _is_cached(path):
                return f"{self._name(path)} is in no RECORD"
        digests = {path: digest for path, digest in listed.items() if digest.startswith("sha256=")}
        with ThreadPoolExecutor() as pool:
            for path, same in zip(digests, pool.map(_has_digest, digests.items()), strict=True):
                if not same:
                    return f"{self._name(path)} is not as its RECORD says"
        self._remove_wrong_bytecode([path for path, _ in self._found() if _is_cached(path)])
        return ""

    def linked(self) -> bool:
        """Return whether a file of a package is also one of uv's cache: a cell could change it for all projects."""
        return any(
            os.stat(path, follow_symlinks=False).st_nlink > 1  # noqa: PTH116 - thousands of files
            for path, _ in self._found()
        )

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
        lines = [line for line, mark in marks.items() if mark not in _COMPARED]
        portions = [lines[start : start + _AT_ONCE] for start in range(0, len(lines), _AT_ONCE)]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            wrong = [path for found in pool.map(self._compare, portions) for path in found]
        for path in wrong:
            Path(path).unlink(missing_ok=True)
        _COMPARED.update(marks[line] for line in lines if line.partition("\0")[0] not in wrong)
        return wrong

    def _mark(self, line: str) -> bytes:
        """Return a digest of bytecode and source that is the same in any environment."""
        path, source, level = line.split("\0")
        with open(path, "rb") as bytecode, open(source, "rb") as text:  # noqa: PTH123 - thousands of files
            body = bytecode.read().replace(os.fsencode(self.folder), _ANY_FOLDER)
            return hashlib.sha256(
                body[_HEADER.size :] + hashlib.sha256(text.read()).digest() + level.encode()
            ).digest()

    def _compare(self, lines: list[str]) -> list[str]:
        # -I and -S: without the environment's .pth files, sitecustomize and variables.
        command = [self.python, "-I", "-S", "-B", "-W", "ignore", "-c", _COMPARE]
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
            for (
                entry
            ) in entries:  # tens of thousands before and after each process: as little as possible for each
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


def _has_digest(pair: tuple[str, str]) -> bool:
    path, digest = pair
    try:
        found = base64.urlsafe_b64encode(bytes.fromhex(file_digest(path))).decode().rstrip("=")
    except OSError:
        return False
    return digest == f"sha256={found}"
