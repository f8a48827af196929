"""Makes what travels to workers out of a build's cells."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kernels_bench_tools.cluster.payload import Job, Links, Recipe, Source
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import file_digest
from kernels_bench_tools.notebooks.graph import Node
from kernels_bench_tools.notebooks.header import path_sources, read_header
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.run.cache.store import Entry
from kernels_bench_tools.run.environment.base import PACKAGE_FOLDER, CellEnvironment
from kernels_bench_tools.run.executor import Errand

SOURCES_LIMIT = 256 * 2**20
"""Bytes of one path source that may travel; more is a folder that was not meant."""

_LOCK = "kernels.lock"
_LOCK_VARIABLE = "KBT_KERNELS_LOCK"
_FORWARDED = ("USE_HUB_KERNELS", "UVNOTE_PLATFORM")
"""Variables of the build that are part of a result's key, so that a worker's own must not stand in."""
_SETTINGS = ("pyproject.toml", "uv.toml", ".python-version", ".python-versions")
_NOT_SOURCE = {"__pycache__", "node_modules", "site", "build", "dist"}
_PACKAGE_PARTS = ("pyproject.toml", "README.md", "LICENSE", PACKAGE_FOLDER.name, "templates")


@dataclass
class Packer:
    """Makes jobs, and knows where on this machine each content is."""

    project: Project
    environment: CellEnvironment
    build: str
    where: dict[str, Path] = field(default_factory=dict)
    """Digest to a file that holds it."""
    _sources: dict[Path, dict[str, Source]] = field(default_factory=dict)

    def recipe(self, node: Node) -> Recipe:
        """Return what a cell's environment is made of."""
        script = node.notebook.script_path(node.cell)
        sources: dict[str, Source] = {}
        if self.environment.name == "uv":
            sources |= self._settings(node)
            for _, written in sorted(path_sources(read_header(node.cell.code)).items()):
                sources |= self._source(Path(os.path.normpath(script.parent / written)))
        return Recipe(
            build=self.build,
            environment=self.environment.name,
            script=self.environment.script(node.cell),
            file=script.name,
            notebook=node.notebook.folder,
            root=_rootless(self.project.root),
            sources=sources,
        )

    def job(self, errand: Errand, session: str) -> Job:
        """Return a process of a cell as it travels."""
        node, task = errand.node, errand.task
        needed = {name: errand.results[name] for name in node.needs}
        for entry in needed.values():
            self._know_artifacts(entry)
        lock = self._lock(node)
        return Job(
            recipe=self.recipe(node),
            name=task.name,
            cell=task.cell,
            context=task.context,
            device=task.device,
            policy=task.policy,
            needs=errand.needs,
            links=Links(node.local, node.foreign, node.whole),
            needed={name: (entry.key, entry.result) for name, entry in needed.items()},
            files={self.project.relative(path): self._know(path) for path in node.files},
            lock=self._know(lock) if lock else "",
            variables={name: os.environ[name] for name in _FORWARDED if name in os.environ},
            session=session,
        )

    def content(self, digest: str) -> bytes:
        """Return the bytes of a digest."""
        return self.where[digest].read_bytes()

    def _know(self, path: Path) -> str:
        digest = file_digest(path)
        self.where[digest] = path
        return digest

    def _know_artifacts(self, entry: Entry) -> None:
        for name, digest in entry.result.artifacts.items():
            self.where[digest] = entry.artifacts / name

    def _source(self, source: Path) -> dict[str, Source]:
        if source not in self._sources:
            found, size = {}, 0
            for path in sorted(_source_files(source)):
                size += path.stat().st_size
                if size > SOURCES_LIMIT:
                    what = f"holds more than {SOURCES_LIMIT // 2**20} MiB, too much to send to a worker"
                    raise ProjectError(str(source), what, "A package's folder", "Remove what is not source")
                found[_rootless(path)] = Source(self._know(path), os.access(path, os.X_OK))
            self._sources[source] = found
        return self._sources[source]

    def _settings(self, node: Node) -> dict[str, Source]:
        """Return the files of the project in which uv finds settings for a script."""
        inside = [one for one in node.notebook.path.parents if one.is_relative_to(self.project.root)]
        paths = [one / name for one in inside for name in _SETTINGS if (one / name).is_file()]
        return {_rootless(path): Source(self._know(path), executable=False) for path in paths}

    def _lock(self, node: Node) -> Path | None:
        if named := os.environ.get(_LOCK_VARIABLE):
            return Path(named) if Path(named).is_file() else None
        inside = [one for one in node.notebook.path.parents if one.is_relative_to(self.project.root)]
        return next((one / _LOCK for one in inside if (one / _LOCK).is_file()), None)


def _rootless(path: Path) -> str:
    return path.relative_to(path.anchor).as_posix()


def _source_files(source: Path) -> Iterator[Path]:
    """Yield the files of a path source: of this package's own checkout those that it is built from."""
    if source.is_file():
        yield source
        return
    own = (source / PACKAGE_FOLDER.name / "__init__.py").is_file()
    for start in [source / part for part in _PACKAGE_PARTS] if own else [source]:
        if start.is_file():
            yield start
        for folder, folders, files in os.walk(start):
            here = Path(folder)
            folders[:] = [name for name in folders if _holds_source(here / name)]
            yield from (here / name for name in files if not name.startswith(".") and (here / name).is_file())


def _holds_source(folder: Path) -> bool:
    # In this package, `site` and `build` would be names of modules' folders; elsewhere they are output.
    hidden = folder.name.startswith(".") or folder.name.endswith(".egg-info")
    return not hidden and folder.name not in _NOT_SOURCE and not (folder / "pyvenv.cfg").exists()
