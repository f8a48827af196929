"""The folder that the site is written to: only what changed is written, only what we wrote is removed."""

from __future__ import annotations

import filecmp
import os
import shutil
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path

import msgspec

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.report.paths import stays_inside
from kernels_bench_tools.report.products import Product, make_products

Content = bytes | Path | Product
MANIFEST = ".kbt-site.json"
UNFINISHED = ".kbt-unfinished"
"""Folder for files that are being written. What a build that was killed, or a full disk, left there is known by it."""
_KEPT = {MANIFEST, UNFINISHED, ".gitignore"}


class Entry(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What is known of a file that took work to make."""

    key: str
    size: int
    dead: list[str] = msgspec.field(default_factory=list)
    """Links of its prose that lead nowhere."""


class Manifest(msgspec.Struct, kw_only=True):
    """Which files of a folder a build wrote."""

    format: int = 1
    files: list[str]
    made: dict[str, Entry] = msgspec.field(default_factory=dict)
    """Those of ``files`` that need not be made again while their keys stay the same."""


class Changes(msgspec.Struct, kw_only=True):
    """What writing did to the folder, as site paths."""

    written: list[str] = msgspec.field(default_factory=list)
    unchanged: list[str] = msgspec.field(default_factory=list)
    removed: list[str] = msgspec.field(default_factory=list)
    dead: list[str] = msgspec.field(default_factory=list)
    """Links of all pages' prose that lead nowhere, also of pages that were not made again."""


class OutputFolder:
    """A folder that holds a site and nothing else that we would touch.

    Raises:
        ProjectError: It is no folder, or holds files but no site.
    """

    def __init__(self, root: Path) -> None:
        self.root = root
        manifest = self._read()
        self._ours = {path for path in manifest.files if stays_inside(path)}
        self._made = manifest.made

    def write(self, files: Mapping[str, Content], dead: set[str]) -> Changes:
        """Make the folder hold these files, given as bytes, as the file to copy or as a product to make.

        A product is not made again while its file is there, its key is the same and all of its links lead somewhere: a
        link may lead out of the site, to what no key knows.

        Args:
            files: By site path.
            dead: Making a product adds the links that lead nowhere to this set.

        Raises:
            ProjectError: One of them would replace a file that no build wrote.
        """
        for path in files.keys() - self._ours:
            if (self.root / path).exists():
                raise ProjectError(
                    str(self.root / path),
                    "is in the way of a page and was not written by kbt",
                    remedy="Move it away or choose another output folder",
                )
        shutil.rmtree(self.root / UNFINISHED, ignore_errors=True)
        try:
            return self._write(files, dead)
        finally:
            shutil.rmtree(self.root / UNFINISHED, ignore_errors=True)

    def _write(self, files: Mapping[str, Content], dead: set[str]) -> Changes:
        # Written before the files, so that a build cut short does not leave strangers behind.
        self._write_manifest(self._ours | files.keys(), self._made)
        changes = Changes(removed=sorted(self._ours - files.keys()))
        self._remove(changes.removed)
        products = {path: content for path, content in files.items() if isinstance(content, Product)}
        entries = {path: entry for path in products if (entry := self._still_good(path, products[path]))}
        due = {path: product for path, product in products.items() if path not in entries}
        changes.unchanged += entries
        for path in files.keys() - products.keys():
            self._note(changes, path, _put(self.root, path, _plain(files[path])))
        for made in make_products(due, lambda path, data: _put(self.root, path, data), dead):
            self._note(changes, made.path, made.changed)
            entries[made.path] = Entry(key=due[made.path].key, size=made.size, dead=made.dead)
        changes.written.sort()
        changes.unchanged.sort()
        changes.dead = sorted({link for entry in entries.values() for link in entry.dead})
        self._write_manifest(files.keys(), entries)
        self._ours, self._made = set(files), entries
        return changes

    def _still_good(self, path: str, product: Product) -> Entry | None:
        entry = self._made.get(path)
        if entry is None or entry.key != product.key or entry.dead or path not in self._ours:
            return None
        found = _stat(self.root / path)
        return entry if found is not None and found.st_size == entry.size else None

    @staticmethod
    def _note(changes: Changes, path: str, changed: bool) -> None:
        (changes.written if changed else changes.unchanged).append(path)

    def clear(self) -> int:
        """Remove every file that builds wrote, and return how many there were."""
        removed = [path for path in sorted(self._ours) if (self.root / path).is_file()]
        self._remove(self._ours)
        (self.root / MANIFEST).unlink(missing_ok=True)
        self._ours, self._made = set(), {}
        return len(removed)

    def _read(self) -> Manifest:
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
            return Manifest(files=[])
        try:
            return msgspec.json.decode(data, type=Manifest)
        except msgspec.DecodeError as error:
            raise ProjectError(
                str(self.root / MANIFEST),
                f"is damaged ({error})",
                remedy=f"Remove {self.root} and build again",
            ) from error

    def _write_manifest(self, files: Iterable[str], made: Mapping[str, Entry]) -> None:
        manifest = Manifest(files=sorted(files), made=dict(sorted(made.items())))
        data = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
        _put(self.root, MANIFEST, data)

    def _remove(self, paths: Iterable[str]) -> None:
        folders: set[Path] = set()
        for path in paths:
            (self.root / path).unlink(missing_ok=True)
            folders.update((self.root / path).parents)
        for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
            inside = folder != self.root and folder.is_relative_to(self.root)
            if inside and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def _put(root: Path, path: str, content: bytes | Path) -> bool:
    """Make a file of the site hold ``content``, whole or not at all; return whether it did not already."""
    target = root / path
    found = _stat(target)
    if found is not None and _same(target, found, content):
        return False
    temporary = root / UNFINISHED / str(os.getpid())
    try:
        _fill(temporary, content)
    except FileNotFoundError:
        temporary.parent.mkdir(parents=True, exist_ok=True)
        _fill(temporary, content)
    try:
        temporary.replace(target)
    except FileNotFoundError:  # the folder is not there yet, as it is for one file in four
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary.replace(target)
    return True


def _fill(temporary: Path, content: bytes | Path) -> None:
    if isinstance(content, Path):
        shutil.copyfile(content, temporary)
        # So that the next build sees from afar that it is the same file.
        times = content.stat()
        os.utime(temporary, ns=(times.st_atime_ns, times.st_mtime_ns))
    else:
        temporary.write_bytes(content)


def _plain(content: Content) -> bytes | Path:
    assert not isinstance(content, Product)
    return content


def _stat(target: Path) -> os.stat_result | None:
    """Return what is known of a file; None if there is none. Asked of thousands of files, so only once of each."""
    try:
        found = os.stat(target)  # noqa: PTH116 - half of what Path.stat costs
    except OSError:
        return None
    return found if stat.S_ISREG(found.st_mode) else None


def _same(target: Path, theirs: os.stat_result, content: bytes | Path) -> bool:
    if isinstance(content, Path):
        ours = content.stat()
        if ours.st_size != theirs.st_size:
            return False
        return ours.st_mtime_ns == theirs.st_mtime_ns or filecmp.cmp(content, target, shallow=False)
    return theirs.st_size == len(content) and target.read_bytes() == content
