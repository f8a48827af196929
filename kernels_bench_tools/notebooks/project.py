"""A project: a folder of notebooks, with its settings in ``[tool.kbt]`` of its ``pyproject.toml``."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.notebooks.paths import matches
from kernels_bench_tools.run.limits import POLICY_SETTINGS, CellPolicy, read_policy, read_size
from kernels_bench_tools.text import did_you_mean, title_from_name

STATE_FOLDER = ".kbt"
DEFAULT_CACHE_SIZE = "10 GB"
_SETTINGS = ("title", "repository", "notebooks", "raw_html", "cache_size", *POLICY_SETTINGS)
_SKIPPED_FOLDERS = {"node_modules", "__pycache__"}
# Without patterns of its own, a project's pages about itself hold examples, not cells.
_ABOUT = {"readme.md", "changelog.md", "contributing.md", "license.md"}
_NOT_NOTEBOOKS_AT_ROOT = {"site"}


@dataclass(frozen=True)
class Project:
    """A folder of notebooks."""

    root: Path
    title: str
    repository: str = ""
    """URL of the repository, without a trailing slash; empty if it has none."""
    patterns: tuple[str, ...] = ()
    """Globs from the root of what is a notebook; empty for all but a project's pages about itself."""
    raw_html: bool = False
    """Whether HTML and scripts in prose reach the page; else they are shown as text."""
    cache_size: int = read_size("cache_size", DEFAULT_CACHE_SIZE)
    """Bytes that the results of cells may take; what the report shows is kept in any case."""
    policy: CellPolicy = CellPolicy()  # noqa: RUF009 - it cannot be changed
    """What its cells may use."""

    @property
    def state(self) -> Path:
        """The folder for everything that builds keep: it may be deleted at any time between them."""
        return self.root / STATE_FOLDER

    def relative(self, path: Path) -> str:
        """Return ``path`` as seen from the root, with ``/``.

        Raises:
            ProjectError: It is outside the project.
        """
        try:
            return path.relative_to(self.root).as_posix()
        except ValueError:
            pass
        try:
            return path.resolve().relative_to(self.root).as_posix()
        except ValueError:
            raise ProjectError(str(path), f"is outside the project {self.root}") from None

    def notebook_paths(self) -> list[Path]:
        """Return the notebooks in the order of their names.

        Never in hidden folders, environments, ``node_modules``, ``site`` or folders that are links.
        """
        names = (name for name in _markdown_files(self.root) if self._is_notebook(name))
        return [self.root / name for name in sorted(names)]

    def find_notebooks(self, targets: Sequence[str]) -> list[Path]:
        """Return the notebooks that ``targets`` name, sorted and once each; all of them for no targets.

        Args:
            targets: Each a path from the current folder or the root (a file, or a folder for all in it),
                an ``operator/implementation``, or an operator's name.

        Raises:
            ProjectError: A target names no notebook; the nearest name is offered.
        """
        known = self.notebook_paths()
        if not targets:
            return known
        found = {path for target in targets for path in self._find(target, known)}
        return [path for path in known if path in found]

    def _is_notebook(self, name: str) -> bool:
        if self.patterns:
            return any(matches(name, pattern) for pattern in self.patterns)
        first = name.partition("/")[0].lower()
        return first not in _ABOUT and first != "docs"

    def _find(self, target: str, known: Sequence[Path]) -> list[Path]:
        for path in (Path.cwd() / target, self.root / target):
            path = Path(os.path.normpath(path))
            found = [one for one in known if one == path or path in one.parents]
            if found or path.is_file():
                break
        if not found:
            operator, _, implementation = target.strip("/").rpartition("/")
            short = self.root / operator / "impls" / f"{implementation}.md"
            found = [one for one in known if one == short and operator]
        if not found:
            raise self._not_found(target, known)
        return found

    def _not_found(self, target: str, known: Sequence[Path]) -> ProjectError:
        names = [self.relative(path) for path in known]
        short = [name.replace("/impls/", "/").removesuffix(".md") for name in names if "/impls/" in name]
        folders = {name.split("/")[0] for name in names if "/" in name}
        exists = (Path.cwd() / target).exists() or (self.root / target).exists()
        what = (
            "is not, and does not hold, a notebook of this project" if exists else "there is no such notebook"
        )
        return ProjectError(
            target or "''",
            what,
            "A path, OPERATOR/IMPLEMENTATION or OPERATOR",
            did_you_mean(target, [*names, *short, *folders], "`kbt list` shows them"),
        )


def find_project(start: Path) -> Project:
    """Return the project that ``start``, a folder or a file in one, belongs to.

    It is the nearest folder upwards whose ``pyproject.toml`` has ``[tool.kbt]``, else the nearest with
    ``.git``, else ``start`` itself.

    Raises:
        ProjectError: A ``pyproject.toml`` on the way cannot be read, or its settings are wrong.
    """
    start = start.resolve()
    folder = start.parent if start.is_file() else start
    for root in (folder, *folder.parents):
        settings = _settings(root / "pyproject.toml")
        if settings is not None:
            return _project(root, settings)
    root = next((root for root in (folder, *folder.parents) if (root / ".git").exists()), folder)
    return _project(root, {})


def operators(project: Project) -> dict[str, list[Path]]:
    """Return each operator's implementations: the notebooks in ``<operator>/impls/``."""
    found: dict[str, list[Path]] = {}
    for path in project.notebook_paths():
        if path.parent.name == "impls" and path.parent.parent != project.root:
            found.setdefault(path.parent.parent.name, []).append(path)
    return found


def _settings(path: Path) -> dict[str, Any] | None:
    """Return ``[tool.kbt]`` of a ``pyproject.toml``, or None if either does not exist."""
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise ProjectError(str(path), f"cannot be read: {error}", "A TOML file") from error
    settings = data.get("tool", {}).get("kbt")
    if settings is not None and not isinstance(settings, dict):
        raise ProjectError(f"{path}: [tool.kbt]", "is not a table")
    return settings


def _project(root: Path, settings: dict[str, Any]) -> Project:
    where = f"{root / 'pyproject.toml'}: [tool.kbt]"
    for key, value in settings.items():
        if key not in _SETTINGS:
            known = f"One of {', '.join(_SETTINGS)}"
            raise ProjectError(where, f"has an unknown key {key!r}", known, did_you_mean(key, _SETTINGS, ""))
        if key in POLICY_SETTINGS:  # they are checked where they are read
            continue
        if key == "notebooks":
            right, expected = _is_list_of_globs(value), "A list of globs"
        elif key == "raw_html":
            right, expected = isinstance(value, bool), "true or false"
        else:
            right, expected = isinstance(value, str), "A string"
        if not right:
            raise ProjectError(where, f"{key} is wrong", expected)
    return Project(
        root=root,
        title=settings.get("title") or title_from_name(root.name),
        repository=settings.get("repository", "").rstrip("/"),
        patterns=tuple(settings.get("notebooks", ())),
        raw_html=settings.get("raw_html", False),
        cache_size=read_size(f"{where} cache_size", settings.get("cache_size", DEFAULT_CACHE_SIZE)),
        policy=read_policy(where, settings),
    )


def _is_list_of_globs(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(one, str) and one for one in value)


def _markdown_files(root: Path) -> Iterator[str]:
    for folder, folders, files in os.walk(root):
        here = Path(folder)
        folders[:] = [name for name in folders if _is_searched(here / name, root)]
        for name in files:
            path = here / name
            if name.endswith(".md") and not name.startswith(".") and _stays_inside(path, root):
                yield path.relative_to(root).as_posix()


def _is_searched(folder: Path, root: Path) -> bool:
    # os.walk lists links to folders but does not enter them.
    if folder.name.startswith(".") or folder.name in _SKIPPED_FOLDERS:
        return False
    if folder.parent == root and folder.name in _NOT_NOTEBOOKS_AT_ROOT:
        return False
    return not (folder / "pyvenv.cfg").exists()


def _stays_inside(path: Path, root: Path) -> bool:
    return not path.is_symlink() or (path.is_file() and path.resolve().is_relative_to(root))
