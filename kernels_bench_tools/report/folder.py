"""The output folder: only changed files are written, only files that a build wrote are removed."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

import msgspec

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import (
    check_writable,
    copy_file,
    file_digest,
    find_struct,
    read_file,
    real_path,
    sync_path,
)
from kernels_bench_tools.own_folders import make_folder, not_a_folder, remove_tree
from kernels_bench_tools.records.summary import Report
from kernels_bench_tools.report.paths import FRONT, REPORT, stays_inside


@dataclass(frozen=True)
class RenderedFile:
    key: str
    """Digest of everything that it is made from."""
    render: Callable[[], bytes]


Content = bytes | Path | RenderedFile
"""A file's bytes, the file to copy, or how to render it."""
MANIFEST = ".kbt-site.json"
UNFINISHED = ".kbt-unfinished"
"""Folder for files that are being written; what a killed build left in it is removed by the next one."""
_IGNORED = ".gitignore"
"""Made before the site; a killed build may leave it unfinished, under another name."""
_KEPT = {MANIFEST, UNFINISHED, _IGNORED}


class ManifestEntry(msgspec.Struct, kw_only=True, omit_defaults=True):
    key: str
    content: str = ""
    """Digest of its bytes."""
    dead: list[str] = msgspec.field(default_factory=list)
    """Links in its prose whose target does not exist."""


class Manifest(msgspec.Struct, kw_only=True):
    """Which files of the folder a build wrote."""

    format: int = 1
    files: list[str]
    made: dict[str, ManifestEntry] = msgspec.field(default_factory=dict)
    """Those of ``files`` that are not rendered again while their key stays the same."""


class Published(msgspec.Struct, kw_only=True):
    """The result of publishing; lists are of site paths."""

    index: Path
    """The front page's file."""
    written: list[str] = msgspec.field(default_factory=list)
    removed: list[str] = msgspec.field(default_factory=list)
    dead_links: list[str] = msgspec.field(default_factory=list)
    """``folder: url`` of each link in prose whose target does not exist, also on pages that were not rendered again."""


class OutputFolder:
    """A folder that holds a site.

    Which of its files no build wrote is read once, before cells run: what is there later in place of a page is replaced.

    Raises:
        ProjectError: It is not a folder, holds files but no site, or has a link in place of one. If the user ``named`` it, it may be a link.
    """

    def __init__(self, root: Path, *, named: bool = True) -> None:
        if not named and root.is_symlink():
            raise not_a_folder(root)
        self.root = root
        self._real = real_path(root)
        manifest = self._read()
        self._ours = {path for path in manifest.files if stays_inside(path)} if manifest else set[str]()
        self._rendered = manifest.made if manifest else {}
        # Without a manifest, which of its files are ours is not known: those that builds write now are replaced.
        others = (path for path in _files(root) if path.partition("/")[0] not in _KEPT) if manifest else ()
        self._foreign = {*others} - self._ours
        for folder in _folders(self._ours):
            if (root / folder).is_symlink():  # files elsewhere would be replaced or removed
                raise not_a_folder(root / folder)

    def write(self, files: Mapping[str, Content], dead_links: set[str]) -> Published:
        """Make the folder hold exactly these files, and those that no build wrote.

        A file is not rendered again while it is there, its key is the same and it has no dead links: these depend on
        files that are not part of any key. Rendering adds to ``dead_links``.

        Raises:
            ProjectError: One of them would replace a file that no build wrote.
        """
        self.clear_way()
        for folder in _folders([*files, *self._ours]):
            path = self.root / folder
            if os.path.lexists(path) and not (_is_folder(path) and os.access(path, os.W_OK | os.X_OK)):
                self._check(folder in self._foreign, path)
                make_folder(path, self.root, replace=True)
        for name in [*files, MANIFEST]:
            path = self.root / name
            self._check(name in self._foreign, path)
            if _is_folder(path):
                self._check(any(path.startswith(f"{name}/") for path in self._foreign), path)
                remove_tree(path, self.root)
        remove_tree(self.root / UNFINISHED, self.root)
        (self.root / UNFINISHED).mkdir()
        try:
            return self._write(files, dead_links)
        finally:
            remove_tree(self.root / UNFINISHED, self.root)

    def _write(self, files: Mapping[str, Content], dead_links: set[str]) -> Published:
        # Written before the files, so that the next build may remove what an interrupted one wrote.
        self._write_manifest(self._ours | files.keys(), self._rendered)
        result = Published(index=self.root / FRONT, removed=sorted(self._ours - files.keys()))
        self._remove(result.removed)
        entries: dict[str, ManifestEntry] = {}
        for path, content in files.items():
            if isinstance(content, RenderedFile):
                if entry := self._valid_entry(path, content):
                    entries[path] = entry
                    continue
                dead_links.clear()
                data = content.render()
                entries[path] = ManifestEntry(
                    key=content.key, content=sha256(data).hexdigest(), dead=sorted(dead_links)
                )
                content = data
            if _write_file(self.root, path, content):
                result.written.append(path)
        result.written.sort()
        result.dead_links = sorted({link for entry in entries.values() for link in entry.dead})
        self._write_manifest(files.keys(), entries)
        self._ours, self._rendered = set(files), entries
        return result

    def _valid_entry(self, path: str, file: RenderedFile) -> ManifestEntry | None:
        entry = self._rendered.get(path)
        if entry is None or entry.key != file.key or entry.dead or path not in self._ours:
            return None
        # After a power failure a page may have its size, and zeros in place of its text.
        with suppress(OSError):
            return entry if file_digest(self.root / path) == entry.content else None
        return None

    def check(self) -> None:
        """Raise a ``ProjectError`` if the folder cannot be written."""
        check_writable(self.root)

    def clear(self) -> int:
        """Remove every file that builds wrote, and return how many there were."""
        removed = [path for path in sorted(self._ours) if (self.root / path).is_file()]
        self._remove(self._ours)
        (self.root / MANIFEST).unlink(missing_ok=True)
        self._ours, self._rendered = set(), {}
        return len(removed)

    def clear_way(self) -> None:
        """Make the folder; a link or file that a cell has put in its place is removed."""
        if real_path(self.root) != self._real or not self.root.is_symlink():
            self.root.parent.mkdir(parents=True, exist_ok=True)
            make_folder(self.root, self.root.parent, replace=True)

    def _check(self, foreign: bool, path: Path) -> None:
        """Raise a ``ProjectError`` if what is in place of a page or its folder was there before cells ran."""
        if foreign:
            raise ProjectError(
                str(path),
                "is in the way of a page and was not written by kbt",
                remedy="Move it away or choose another output folder",
            )

    def _read(self) -> Manifest | None:
        """Return the manifest; None if there is none, or it is damaged."""
        if self.root.exists() and not self.root.is_dir():
            raise ProjectError(str(self.root), "is not a folder", "A folder for the site")
        manifest = find_struct(self.root / MANIFEST, Manifest)
        if manifest is None and not any(os.path.lexists(self.root / name) for name in (MANIFEST, UNFINISHED)):
            # Empty folders are nobody's: the files of a site may have been deleted without them.
            there = (path for path in self.root.glob("*") if not _is_folder(path) or any(_files(path)))
            names = {path.name for path in there} - _KEPT
            foreign = sorted(name for name in names if not name.startswith(f".{_IGNORED}."))
            if foreign and find_struct(self.root / REPORT, Report) is None:
                raise ProjectError(
                    str(self.root),
                    f"holds files that kbt did not write, such as {foreign[0]}",
                    "An empty folder or the site of an earlier build",
                    "Choose another output folder or empty this one",
                )
        return manifest

    def _write_manifest(self, files: Iterable[str], rendered: Mapping[str, ManifestEntry]) -> None:
        manifest = Manifest(files=sorted(files), made=dict(sorted(rendered.items())))
        data = msgspec.json.format(msgspec.json.encode(manifest), indent=1) + b"\n"
        _write_file(self.root, MANIFEST, data)

    def _remove(self, paths: Iterable[str]) -> None:
        folders: set[Path] = set()
        for path in paths:
            with suppress(IsADirectoryError):  # which a cell has put there
                (self.root / path).unlink(missing_ok=True)
            folders.update((self.root / path).parents)
        for folder in sorted(folders, key=lambda folder: len(folder.parts), reverse=True):
            inside = folder != self.root and folder.is_relative_to(self.root)
            if inside and folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def _folders(paths: Iterable[str]) -> list[str]:
    """Return the folders in these paths, sorted."""
    folders = set[str]()
    for path in paths:
        while (path := path.rpartition("/")[0]) and path not in folders:
            folders.add(path)
    return sorted(folders)


def _files(root: Path) -> Iterator[str]:
    """Yield the files and links in a folder."""
    for folder, folders, names in os.walk(root):
        links = [name for name in folders if os.path.islink(f"{folder}/{name}")]  # noqa: PTH114
        yield from (os.path.relpath(f"{folder}/{name}", root) for name in [*names, *links])


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _write_file(root: Path, path: str, content: bytes | Path) -> bool:
    """Write a file of the site atomically; return whether it changed."""
    target = root / path
    with suppress(OSError):  # none, or not a regular file
        if isinstance(content, bytes):
            same = read_file(target) == content
        else:
            same = file_digest(target) == file_digest(content)
        if same:
            return False
    temporary = root / UNFINISHED / "file"
    if isinstance(content, Path):
        copy_file(content, temporary)
    else:
        temporary.write_bytes(content)
    if path == MANIFEST:  # without it, the next build could not tell which files are ours
        sync_path(temporary)
    make_folder(target.parent, root)
    temporary.replace(target)
    if path == MANIFEST:
        sync_path(root)
    return True
