"""The folder that the site is written to: only what changed is written, only what we wrote is removed."""

from __future__ import annotations

import filecmp
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.publish.paths import stays_inside

MANIFEST = ".kbt-site.json"
_KEPT = {MANIFEST, ".gitignore"}


class Manifest(msgspec.Struct, kw_only=True):
    """Which files of a folder a build wrote."""

    format: int = 1
    files: list[str]


class Changes(msgspec.Struct, kw_only=True):
    """What writing did to the folder, as site paths."""

    written: list[str] = msgspec.field(default_factory=list)
    unchanged: list[str] = msgspec.field(default_factory=list)
    removed: list[str] = msgspec.field(default_factory=list)


class OutputFolder:
    """A folder that holds a site and nothing else that we would touch.

    Raises:
        ProjectError: It is no folder, or holds files but no site.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        self._ours = self._read()

    def write(self, files: Mapping[str, bytes | Path]) -> Changes:
        """Make the folder hold these files, given as bytes or as the file to copy.

        Raises:
            ProjectError: One of them would replace a file that no build wrote.
        """
        for path in files:
            if (self.root / path).exists() and path not in self._ours:
                raise ProjectError(
                    str(self.root / path),
                    "is in the way of a page and was not written by kbt",
                    remedy="Move it away or choose another output folder",
                )
        # Written before the files, so that a build cut short does not leave strangers behind.
        self._write_manifest(self._ours | files.keys())
        changes = Changes(removed=sorted(self._ours - files.keys()))
        self._remove(changes.removed)
        for path in sorted(files):
            changed = _put(self.root / path, files[path])
            (changes.written if changed else changes.unchanged).append(path)
        self._write_manifest(files.keys())
        self._ours = set(files)
        return changes

    def clear(self) -> int:
        """Remove every file that builds wrote, and return how many there were."""
        removed = [path for path in sorted(self._ours) if (self.root / path).is_file()]
        self._remove(self._ours)
        (self.root / MANIFEST).unlink(missing_ok=True)
        self._ours = set()
        return len(removed)

    def _read(self) -> set[str]:
        if self.root.exists() and not self.root.is_dir():
            raise ProjectError(str(self.root), "is not a folder", "A folder for the site")
        try:
            data = (self.root / MANIFEST).read_bytes()
        except FileNotFoundError:
            foreign = sorted({path.name for path in self.root.glob("*")} - _KEPT)
            if foreign:
                raise ProjectError(
                    str(self.root),
                    f"holds files that kbt did not write, such as {foreign[0]}",
                    "An empty folder or the site of an earlier build",
                    "Choose another output folder or empty this one",
                ) from None
            return set()
        try:
            manifest = msgspec.json.decode(data, type=Manifest)
        except msgspec.DecodeError as error:
            raise ProjectError(
                str(self.root / MANIFEST),
                f"is damaged ({error})",
                remedy=f"Remove {self.root} and build again",
            ) from error
        return {path for path in manifest.files if stays_inside(path)}

    def _write_manifest(self, files: Iterable[str]) -> None:
        data = msgspec.json.format(msgspec.json.encode(Manifest(files=sorted(files))), indent=1) + b"\n"
        _put(self.root / MANIFEST, data)

    def _remove(self, paths: Iterable[str]) -> None:
        folders: set[Path] = set()
        for path in paths:
            (self.root / path).unlink(missing_ok=True)
            folders.update((self.root / path).parents)
        for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
            inside = folder != self.root and folder.is_relative_to(self.root)
            if inside and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def _put(target: Path, content: bytes | Path) -> bool:
    """Make ``target`` hold ``content``, whole or not at all; return whether it did not already."""
    if target.is_file() and _same(target, content):
        return False
    target.parent.mkdir(parents=True, exist_ok=True)
    temporary = target.with_name(f".{target.name}.{os.getpid()}")
    if isinstance(content, Path):
        shutil.copyfile(content, temporary)
    else:
        temporary.write_bytes(content)
    temporary.replace(target)
    return True


def _same(target: Path, content: bytes | Path) -> bool:
    if isinstance(content, Path):
        return filecmp.cmp(content, target, shallow=False)
    return target.stat().st_size == len(content) and target.read_bytes() == content
