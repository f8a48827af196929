"""Projects: a folder of notebooks, with settings in ``[tool.kbt]`` of its ``pyproject.toml``."""

from __future__ import annotations

import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Annotated, Any

import msgspec

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import read_file, real_path, walk_files
from kernels_bench_tools.notebooks.harness import EXPECTED as HARNESSES
from kernels_bench_tools.notebooks.harness import Harness, read_harness
from kernels_bench_tools.own_folders import path_below
from kernels_bench_tools.records.notebook import IMPLEMENTATIONS, operator_of
from kernels_bench_tools.records.settings import OPERATORS, find_settings, is_root
from kernels_bench_tools.text.names import is_unicode, title_from_name
from kernels_bench_tools.text.numbers import size as readable_size
from kernels_bench_tools.text.tables import grouped
from kernels_bench_tools.text.words import did_you_mean

STATE_FOLDER = ".kbt"
DEFAULT_CACHE_SIZE = "10 GB"
LEAST_MEMORY = 16 * 2**20
"""Bytes that every Python process needs."""
_GLOB = Annotated[str, msgspec.Meta(min_length=1)]
_SETTINGS: dict[str, tuple[Any, str]] = {
    "title": (str, "A string"),
    "repository": (str, "A URL that begins with https:// or http://"),
    "harness": (str | dict[str, Any], HARNESSES),
    "notebooks": (list[_GLOB], "A list of globs below the project's root"),
    "raw_html": (bool, "true or false"),
    "cache_size": (str, "A string"),
    "memory_limit": (str | int, "A number of bytes, such as 16GB"),
    "artifact_limit": (str | int, "A number of bytes, such as 800MB"),
    "pass_env": (list[str], "A list of variable names"),
    "hub_builds": (_GLOB, "A folder below the project's root"),
    "operators": (_GLOB, "A folder below the project's root"),
}
_TARGET = "A path, OPERATOR/IMPLEMENTATION or OPERATOR"
_SIZES = ("cache_size", "memory_limit", "artifact_limit")
_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]?)(?:i?B)?", re.IGNORECASE)
_REPEATED = re.compile(r"(?<![^/])(?:\*\*/){2,}")
"""Means what one ``**/`` does, but ``Path.glob`` would take far longer."""
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}
# Documents have python fences, too, but without these.
_CELL = re.compile(r"^\s*```python\b.*\s(id|outputs|needs|deps)=", re.MULTILINE)
# Not notebooks unless the project's globs match them.
_DOCUMENTS = {"readme.md", "changelog.md", "contributing.md", "license.md", "docs"}


class CellPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell may use. It is not part of a cell's key: it decides whether a cell succeeds, not its results."""

    memory_limit: int = 0
    """Bytes that its processes may use together; 0 for 90 % of the machine's memory."""
    artifact_limit: int = 2**30
    """Bytes of outputs that are kept."""
    pass_env: tuple[str, ...] = ()
    """The user's variables that are passed to it although they may be credentials."""


def read_size(where: str, text: str) -> int:
    """Return a size in bytes; K, M, G and T are powers of 1024.

    >>> read_size("memory_limit", "1.5GB")
    1610612736
    """
    match = _SIZE.fullmatch(text.strip())
    size = float(match["number"]) * _UNITS[match["unit"].upper()] if match else 0
    if not 1 <= size < 2**63:
        raise ProjectError(where, f"{text!r} is not a size", "A number of bytes, such as 800MB or 16GB")
    return int(size)


def read_memory_limit(where: str, text: str) -> int:
    """Return a memory limit in bytes; one with which no process could start is an error."""
    limit = read_size(where, text)
    if limit < LEAST_MEMORY:
        what = f"{text!r} is {readable_size(limit)}, too little to start a cell"
        expected = f"At least {readable_size(LEAST_MEMORY)}"
        raise ProjectError(where, what, expected, "Write the unit, such as 16GB")
    return limit


def check_variable_names(where: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names; raise a ``ProjectError`` if one is not valid for a variable."""
    for name in names:
        if not _VARIABLE.fullmatch(name):
            raise ProjectError(where, f"{name!r} is not a variable name", "A name such as HF_TOKEN")
    return names


@dataclass(frozen=True)
class Project:
    root: Path
    title: str
    repository: str = ""
    """URL of the repository, without a trailing slash; empty if it has none."""
    patterns: tuple[str, ...] = ()
    """Globs of notebooks, from the root; empty for every Markdown file but README.md and the like."""
    raw_html: bool | None = None
    """Whether HTML and scripts in prose are kept on pages; else they are shown as text. None without the setting."""
    cache_size: int = read_size("cache_size", DEFAULT_CACHE_SIZE)
    """Maximum size of the cell cache in bytes. What the report shows is never removed."""
    policy: CellPolicy = CellPolicy()  # noqa: RUF009 - immutable
    """Limits of its cells."""
    harness: Harness = Harness()  # noqa: RUF009 - immutable
    """Where its cells get this package from."""
    operators: str = OPERATORS
    """Path of the folder with modules of its own operators, from the root; it need not exist."""
    variants: Mapping[str, bytes] = field(default_factory=dict)
    """Further notebooks that are not on the disk, by name, such as earlier versions of others."""

    def __post_init__(self) -> None:
        """Raise a ``ProjectError`` for a root that cannot be written into files, which are UTF-8."""
        if not is_unicode(str(self.root)):
            what = "its path is not UTF-8, or the locale is not"
            raise ProjectError(str(self.root), what, "", "Rename the folder, or set LC_ALL=C.UTF-8")

    @property
    def operators_folder(self) -> Path:
        return self.root / self.operators

    @property
    def state(self) -> Path:
        """The folder for caches and logs; it can be deleted whenever no build is running."""
        return self.root / STATE_FOLDER

    def relative(self, path: Path) -> str:
        """Return ``path`` relative to the root, with ``/``; a path outside is a ``ProjectError``."""
        inside = path if path.is_relative_to(self.root) else path.resolve()
        if not inside.is_relative_to(self.root):
            raise ProjectError(str(path), f"is outside the project {self.root}")
        return inside.relative_to(self.root).as_posix()

    def notebook_paths(self) -> list[Path]:
        """Return the notebooks, sorted; hidden folders, environments, output, links and other projects are skipped."""
        root = self.root
        files = walk_files(root, lambda folder: folder == root / "site" or is_root(folder))
        names = [
            file.relative_to(root).as_posix()
            for file in files
            if file.name.endswith(".md")
            and (not file.is_symlink() or (file.is_file() and file.resolve().is_relative_to(root)))
        ]
        if self.patterns:
            names = [name for name in names if any(matches(name, pattern) for pattern in self.patterns)]
        else:
            names = [name for name in names if name.partition("/")[0].lower() not in _DOCUMENTS]
        return [self.root / name for name in sorted([*names, *self.variants])]

    def find_notebooks(self, targets: Sequence[str]) -> list[Path]:
        """Return the notebooks that ``targets`` select, sorted; all without targets.

        Each is a path from the current folder or the root (a file, or a folder for all in it),
        ``OPERATOR/IMPLEMENTATION``, or the id of either. One that matches nothing is a ``ProjectError``.
        """
        known = self.notebook_paths()
        if not targets:
            return known
        selected = {path for target in targets for path in self._find(target, known)}
        return [path for path in known if path in selected]

    def _find(self, target: str, known: Sequence[Path]) -> list[Path]:
        if not target.strip():
            raise ProjectError("''", "is not a notebook", _TARGET, "Leave it out to select all")
        here = Path.cwd() / target
        for path in (here, self.root / target, real_path(here)):
            path = Path(os.path.normpath(path))
            inside = [notebook for notebook in known if path in {notebook, *notebook.parents}]
            if inside:
                return inside
            if path.is_file():
                break
        short = {
            self.relative(path).replace(f"/{IMPLEMENTATIONS}/", "/").removesuffix(".md"): path
            for path in known
            if path.parent.name == IMPLEMENTATIONS
        }
        if "/" in target.rstrip("/"):
            called = {os.path.relpath(folder / target, self.root) for folder in (self.root, Path.cwd())}
            names = [*(called & short.keys())]
        else:
            names = [name for name, path in short.items() if path.stem == target.rstrip("/")]
            if len(names) > 1:
                raise ProjectError(target, "is an implementation of several operators", " or ".join(names))
        if not names:
            raise self._not_found(target, known, list(short))
        return [short[name] for name in names]

    def _not_found(self, target: str, known: Sequence[Path], short: Sequence[str]) -> ProjectError:
        names = [self.relative(path) for path in known]
        folders = {name.split("/")[0] for name in names if "/" in name} | set(map(operator_of, names))
        siblings = [name for name in short if posixpath.dirname(name) == posixpath.dirname(target) != ""]
        stems = [posixpath.basename(name) for name in siblings or short]
        if siblings:  # the operator is right, so nothing else is suggested
            hint = did_you_mean(target, siblings, f"It has {', '.join(stems)}")
        else:
            hint = did_you_mean(target, [*names, *short, *stems, *folders], "`kbt list` shows them")
        if (Path.cwd() / target).exists() or (self.root / target).exists():
            what = "is not a notebook of this project, and contains none"
        else:
            what = "there is no such notebook"
        return ProjectError(target, what, _TARGET, hint)


def find_project(start: Path = Path()) -> Project:
    """Return the project that contains ``start``, a folder or a file, by default the current folder.

    Its root is the nearest parent folder whose ``pyproject.toml`` has ``[tool.kbt]``, else the nearest with
    ``.git``, else ``start`` itself; without settings one of its notebooks must have a cell for uvnote or ``kbt``.
    Invalid settings are a ``ProjectError``, and so is a folder that is no project.
    """
    start = start.resolve()
    folder = start if start.is_dir() else start.parent
    if root_and_settings := find_settings(folder):
        return _project(*root_and_settings)
    project = _project(repository_of(folder) or folder, {})
    if not any(_CELL.search(_text(path)) for path in project.notebook_paths()):
        projects = [path.parent for path in project.root.glob("*/pyproject.toml") if is_root(path.parent)]
        remedy = (
            f"Run the command in {min(projects).name}, which is one" if projects else "`kbt init` creates one"
        )
        raise ProjectError(str(project.root), "is not a project", "[tool.kbt] in pyproject.toml", remedy)
    return project


def find_project_of(targets: Iterable[str]) -> Project:
    """Return the project of the notebooks and folders that ``targets`` name; of the current folder without any.

    Each may end with ``:CELL``, or be ``OPERATOR/IMPLEMENTATION``. Paths in several projects are a ``ProjectError``.
    """
    here = Path.cwd().resolve()
    roots: dict[Path, str] = {}
    for target in targets:
        named = [real_path(path) for path in (target, target.rpartition(":")[0] or target)]
        nearest = next(path for path in (*named, *named[1].parents) if path.exists())
        if nearest in named or not here.is_relative_to(nearest):
            folder = nearest if nearest.is_dir() else nearest.parent
            root_and_settings = find_settings(folder)
            root = root_and_settings[0] if root_and_settings else repository_of(folder)
            roots.setdefault(root or (here if folder.is_relative_to(here) else folder), target)
    if len(roots) > 1:
        (first_root, first), (second_root, second), *_ = roots.items()
        what = f"is in the project {second_root}, but {first} is in {first_root}"
        raise ProjectError(second, what, "Notebooks of one project", "Run one command for each")
    return find_project(next(iter(roots), here))


def repository_of(folder: Path) -> Path | None:
    """Return the nearest folder from this one up that is a Git repository; None if there is none."""
    return next((root for root in (folder, *folder.parents) if (root / ".git").exists()), None)


def operators(project: Project) -> dict[str, list[Path]]:
    """Return the implementations of each operator, by its id: the notebooks in ``<operator>/impls/``."""
    paths = (path for path in project.notebook_paths() if path.parent.name == IMPLEMENTATIONS)
    by_operator = grouped((operator_of(project.relative(path)), path) for path in paths)
    by_operator.pop("", None)
    return by_operator


def is_pattern(name: str) -> bool:
    return any(character in name for character in "*?[")


def matches(name: str, pattern: str) -> bool:
    """Return whether a path matches a glob, in which ``**`` matches any number of folders.

    >>> matches("index.md", "**/*.md"), matches("a/b.md", "*.md")
    (True, False)
    """
    # By how many parts of the pattern match the names so far: to try each way to share them out could take for ever.
    parts = pattern.split("/")
    matched = [{*parts[:at]} <= {"**"} for at in range(len(parts) + 1)]
    for folder in name.split("/"):
        before, matched = matched, [False]
        for at, part in enumerate(parts):
            skips = part == "**" and (matched[at] or before[at + 1])
            matched.append(skips or (before[at] and fnmatchcase(folder, part)))
    return matched[-1]


def join_path(folder: str, name: str) -> str | None:
    r"""Return ``name``, relative to ``folder``, as a path from the root; None if it is invalid or leaves the root.

    >>> join_path("a/results", "../impls/*.md"), join_path("a", "../../x"), join_path("a", "x\0y")
    ('a/impls/*.md', None, None)
    """
    if name.startswith("/") or "\0" in name:
        return None
    joined = _REPEATED.sub("**/", posixpath.normpath(posixpath.join(folder, name)))
    return None if joined == ".." or joined.startswith("../") else joined


def _project(root: Path, settings: dict[str, Any]) -> Project:
    where = f"{root / 'pyproject.toml'}: [tool.kbt]"
    for key, value in settings.items():
        if key not in _SETTINGS:
            known = f"One of {', '.join(_SETTINGS)}"
            raise ProjectError(where, f"has an unknown key {key!r}", known, did_you_mean(key, _SETTINGS))
        kind, expected = _SETTINGS[key]
        try:
            msgspec.convert(value, kind)
        except msgspec.ValidationError:
            raise ProjectError(where, f"{key} is invalid", expected) from None
    sizes = {"cache_size": DEFAULT_CACHE_SIZE} | {key: settings[key] for key in _SIZES if key in settings}
    limits = {key: read_size(f"{where} {key}", str(size)) for key, size in sizes.items()}
    if "memory_limit" in settings:
        read_memory_limit(f"{where} memory_limit", str(settings["memory_limit"]))
    variables = check_variable_names(f"{where} pass_env", tuple(settings.get("pass_env", ())))
    modules = path_below(root, settings.get("operators", OPERATORS), where=f"{where} operators", linked=True)
    patterns = [join_path("", pattern) for pattern in settings.get("notebooks", ())]
    if None in patterns:
        raise ProjectError(where, "notebooks is invalid", _SETTINGS["notebooks"][1])
    repository = settings.get("repository", "").rstrip("/")
    if repository and not repository.startswith(("https://", "http://")):
        raise ProjectError(where, "repository is invalid", _SETTINGS["repository"][1])
    return Project(
        root=root,
        title=settings.get("title") or title_from_name(root.name),
        repository=repository,
        patterns=tuple(filter(None, patterns)),
        raw_html=settings.get("raw_html"),
        cache_size=limits.pop("cache_size"),
        policy=CellPolicy(**limits, pass_env=variables),
        harness=read_harness(where, settings["harness"]) if "harness" in settings else Harness(),
        operators=modules.relative_to(root).as_posix(),
    )


def _text(path: Path) -> str:
    try:
        return read_file(path).decode(errors="replace")
    except OSError:
        return ""
