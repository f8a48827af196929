"""A worker's store of what was sent to it: files by their content, and trees of sources around scripts."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import uuid
from collections.abc import Mapping
from pathlib import Path

from kernels_bench_tools.cluster.payload import Recipe

STORE_LIMIT = 4 * 2**30
"""Bytes that the store may hold between builds; what was used last stays."""


class Depot:
    """Files by digest, and trees by the digest of what is in them; safe to share between threads."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._files = folder / "files"
        self._trees = folder / "trees"
        self._lock = threading.Lock()
        self._files.mkdir(parents=True, exist_ok=True)
        self._trees.mkdir(exist_ok=True)

    def stored(self) -> set[str]:
        """Return the digests of everything that is here."""
        return {path.name for path in self._files.iterdir() if not path.name.startswith(".")}

    def missing(self, digests: set[str]) -> set[str]:
        """Return those of ``digests`` that are not here; the others count as used now."""
        gone = set()
        for digest in digests:
            try:
                os.utime(self._files / digest)
            except FileNotFoundError:
                gone.add(digest)
        return gone

    def store(self, contents: Mapping[str, bytes]) -> None:
        """Keep contents, each under its own digest, whatever name it came with."""
        for data in contents.values():
            path = self._files / hashlib.sha256(data).hexdigest()
            if not path.exists():
                temporary = self._files / f".{uuid.uuid4().hex}"
                temporary.write_bytes(data)
                temporary.replace(path)

    def place(self, digest: str, path: Path) -> None:
        """Put a copy of a content at ``path``; a copy, since a cell may write into what it is given."""
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(self._files / digest, path)

    def tree(self, recipe: Recipe) -> Path:
        """Return a folder that holds a recipe's sources at the paths that they have on the client."""
        tree = self._trees / recipe.tree
        with self._lock:
            if not tree.is_dir():
                temporary = self._trees / f".{uuid.uuid4().hex}"
                (temporary / recipe.root).mkdir(parents=True)
                for name, source in recipe.sources.items():
                    self.place(source.digest, temporary / name)
                    (temporary / name).chmod(0o755 if source.executable else 0o644)
                temporary.rename(tree)
        return tree

    def script(self, recipe: Recipe) -> Path:
        """Return where a recipe's script is: in a folder of its own content, two below its notebook's."""
        name = hashlib.sha256(recipe.script.encode()).hexdigest()[:16]
        path = self.tree(recipe) / recipe.root / recipe.notebook / ".kbt" / name / recipe.file
        with self._lock:
            if not path.exists():
                path.parent.mkdir(parents=True, exist_ok=True)
                temporary = path.with_name(f".{uuid.uuid4().hex}")
                temporary.write_text(recipe.script, encoding="utf-8")
                temporary.replace(path)
        return path

    def prune(self, limit: int = STORE_LIMIT) -> None:
        """Forget what was used longest ago, as far as the store exceeds ``limit`` bytes."""
        files = [(path, path.stat()) for path in self._files.iterdir()]
        total = sum(stat.st_size for _, stat in files)
        for path, stat in sorted(files, key=lambda one: one[1].st_mtime):
            if total <= limit:
                return
            path.unlink(missing_ok=True)
            total -= stat.st_size
