"""The files of an environment: whether they are those of its packages, and whether a cell changed them.

The states of files (size, times and inode) are compared before and after each process of a cell. A file whose state
differs is right if it is as its package's ``RECORD`` says: uv links files from its cache, and each link that it makes
changes the state of the file in all environments. Bytecode, which Python writes when a cell imports something, is
compiled again from its source if it is not the same, by a process without any code of the environment.
"""

from __future__ import annotations

import base64
import csv
import io
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from subprocess import TimeoutExpired
from typing import NamedTuple

import msgspec

from kernels_bench_tools.file_io import file_digest, find_struct, read_file, write_struct
from kernels_bench_tools.own_process import isolated_command, run_program

State = tuple[int, int, int, int]
"""Size, time of the last modification, time of the last change of the inode (nobody can set it), and inode."""

_STARTUP = re.compile(r"(^|.*/)((site|user)customize(\.py|/.*)|[^/]*\.(pth|pyc|pyo|egg-link))")
"""Files in ``site-packages`` that Python executes or reads at its start, or instead of a source."""
_BYTECODE = re.compile(
    r"(?P<folder>.*)/__pycache__/(?P<source>[^/]*)\.(?P<tag>[a-z]+-\d+)(?:\.opt-(?P<level>[12]))?\.pyc"
)
"""Bytecode where Python looks for it."""
_OTHER_BYTECODE = re.compile(r".*\.pyc(\.\d+)?")
"""Bytecode that Python does not import, such as pytest's, and files that are being written."""
_MISSING: State = (0, 0, 0, 0)
_DIGESTS: dict[State, str] = {}
"""Digests by state: environments have most files in common, as links to the same inodes."""
_AT_ONCE = 400
"""How many files one thread or process looks at."""

_COMPILE = """
import importlib.util, marshal, os, py_compile, sys
for line in sys.stdin.read().splitlines():
    path, source, tag, level = line.split("\\0")
    if tag != sys.implementation.cache_tag:  # not imported here
        continue
    try:
        about = os.stat(source)
        times = (int(about.st_mtime).to_bytes(8, "little")[:4], about.st_size.to_bytes(8, "little")[:4])
        with open(path, "rb") as file, open(source, "rb") as text:
            head, code = file.read(16), compile(text.read(), source, "exec", 0, True, int(level))
            if head == b"".join((importlib.util.MAGIC_NUMBER, bytes(4), *times)) and marshal.loads(file.read()) == code:
                continue
    except Exception:
        pass
    try:
        os.remove(path)
        mode = py_compile.PycInvalidationMode.TIMESTAMP
        py_compile.compile(source, path, doraise=True, optimize=int(level), invalidation_mode=mode)
    except Exception:
        pass
"""


class _Manifest(msgspec.Struct):
    python: str
    states: dict[str, State]


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
        self._ended: int | None = 0
        """As in :meth:`change`, when the files were last looked at."""
        self._lock = threading.Lock()

    @classmethod
    def restored(cls, manifest: Path, sources: Iterable[Path]) -> Installed | None:
        """Return the environment with the states of the last build; None if there are none."""
        known = find_struct(manifest, _Manifest)
        if known is None:
            return None
        files = cls(known.python, Path(known.python).parents[1], sources, manifest)
        files._states = known.states
        return files if (files.folder / "pyvenv.cfg").is_file() else None

    def accept(self) -> None:
        """Take the files as they are for those of the environment."""
        self._take(self._now())

    def adopt(self, other: Installed) -> None:
        """Take the states of the same environment after it was made again."""
        self._states, self._ended = other._states, None

    def change(self, ended: int | None = None) -> str:
        """Return the first file that changed since the states were taken, and how; empty if none did.

        New bytecode is compiled again, and a file with the digest in its ``RECORD`` is accepted. ``ended`` is how many
        processes the build has run, None while one runs: where none has since, the files are not looked at again.
        """
        with self._lock:
            if ended is not None and ended == self._ended:
                return ""
            try:
                now = self._now()
            except OSError as error:
                return f"{error.filename} cannot be read ({error.strerror})"
            before, self._ended = self._states, None
            if now == before:
                self._ended = ended
                return ""
            differ = sorted({path for path, _ in now.items() ^ before.items()})
            files = [path for path in differ if not _BYTECODE.fullmatch(path)]
            for path in files:
                if path not in now or path not in before:
                    return f"{self._name(path)} was {'removed' if path in before else 'added'}"
            # The digests are right: a RECORD has none for itself, so one that differs is a change.
            listed = self._listed() if files else {}
            if altered := _altered({path: now[path] for path in files}, listed):
                return f"{self._name(altered)} changed"
            self._take(self._with_own_bytecode(now, differ))
            self._ended = ended
            return ""

    def flaw(self) -> tuple[str, str]:
        """Take the files of a new environment; return the first that no package put there, with how, and its package.

        That is a file that differs from its package's ``RECORD``, and one that none lists if Python would execute it
        without an import. The package is empty if it is not known, and both are if there is no such file.
        """
        now, listed = self._now(), self._listed()
        for path in sorted(now.keys() - listed.keys()):
            inside = path.partition("/site-packages/")[2]
            if inside and _STARTUP.fullmatch(inside) and not _BYTECODE.fullmatch(path):
                return f"{self._name(path)} is not listed in any RECORD", ""
        states = {path: now.get(path, _MISSING) for path, entry in listed.items() if entry.digest}
        if altered := _altered(states, listed):
            return f"{self._name(altered)} differs from its RECORD", listed[altered].package
        self._take(self._with_own_bytecode(now, now))
        return "", ""

    def _take(self, states: dict[str, State]) -> None:
        """Take these states, and keep them for the next build."""
        if self._manifest and self._states != states:
            with suppress(UnicodeEncodeError):  # a file's name: the states are taken again by each build
                write_struct(self._manifest, _Manifest(self.python, states), sync=False)
        self._states = states

    def _listed(self) -> dict[str, _Listed]:
        listed = {}
        for pattern in ("*.dist-info/RECORD", "lib/python*/site-packages/*.dist-info/RECORD"):
            for record in self.folder.glob(pattern):
                packages, package = record.parents[1], record.parent.name.partition("-")[0]
                # What comes after a line that is no CSV is in no RECORD.
                with suppress(csv.Error):
                    text = read_file(record).decode(errors="surrogateescape")
                    for path, *more in filter(None, csv.reader(io.StringIO(text, newline=""))):
                        digest = more[0] if more and more[0].startswith("sha256=") else ""
                        listed[os.path.normpath(f"{packages}/{path}")] = _Listed(digest, package)
        return listed

    def _name(self, path: str) -> str:
        return path.removeprefix(f"{self.folder}/")

    def _now(self) -> dict[str, State]:
        """Return path and state of each file that a cell imports, or may."""
        states = dict(_file_states(self.folder, sources=False))
        for source in self._sources:
            states |= _file_states(source, sources=True)
        return states

    def _with_own_bytecode(self, states: dict[str, State], paths: Iterable[str]) -> dict[str, State]:
        """Return the states after the bytecode among ``paths`` was compiled again; without its source it is removed."""
        matches = {path: match for path in paths if path in states and (match := _BYTECODE.fullmatch(path))}
        lines = [
            f"{path}\0{match['folder']}/{match['source']}.py\0{match['tag']}\0{match['level'] or 0}"
            for path, match in matches.items()
        ]
        command = isolated_command(_COMPILE, self.python)

        def compile_again(portion: Sequence[str]) -> None:
            with suppress(TimeoutExpired):  # some bytecode makes the interpreter hang, or crash
                # In a session of its own, without the terminal's Ctrl-C, which says nothing of bytecode.
                given = "\n".join(portion)
                if not run_program(command, input=given, timeout=600, start_new_session=True).returncode:
                    return
            for line in portion:
                Path(line.partition("\0")[0]).unlink(missing_ok=True)

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(compile_again, _portions(lines)))
        return {path: state for path, state in states.items() if path not in matches} | {
            path: _state(os.lstat(path)) for path in matches if os.path.lexists(path)
        }


def site_packages(python: str) -> Path | None:
    """Return the folder of packages of an environment."""
    return next(Path(python).parents[1].glob("lib/python*/site-packages"), None)


def find_packages(python: str) -> Path | None:
    """Return the folder of packages of an environment; None if it has no torch, so that nothing can be judged."""
    site = site_packages(python)
    return site if site and any(site.glob("torch-*.dist-info")) else None


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
                elif bytecode and _OTHER_BYTECODE.fullmatch(name) and not _BYTECODE.fullmatch(entry.path):
                    continue
                elif (bytecode or not sources) and name != ".lock":
                    yield f"{inside}/{name}", _state(entry.stat(follow_symlinks=False))


def _state(about: os.stat_result) -> State:
    return about.st_size, about.st_mtime_ns, about.st_ctime_ns, about.st_ino


def _portions(items: Sequence[str]) -> list[Sequence[str]]:
    return [items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE)]


def _altered(states: Mapping[str, State], listed: Mapping[str, _Listed]) -> str:
    """Return the first of these files whose content has not the listed digest; empty if all have."""

    def first(portion: Sequence[str]) -> str:
        return next((path for path in portion if not _has_digest(path, states[path], listed)), "")

    with ThreadPoolExecutor() as pool:  # in portions: most files are small
        return next(filter(None, pool.map(first, _portions(list(states)))), "")


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
