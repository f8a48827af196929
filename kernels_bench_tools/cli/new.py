"""``kbt init`` and ``kbt new``: create a project, an implementation or an operator from working examples."""

from __future__ import annotations

import json
import keyword
import os
import re
import shlex
import tomllib
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import typer

import kernels_bench_tools
from kernels_bench_tools.cli.output import note
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import (
    check_writable,
    read_file,
    real_path,
    remove_unfinished,
    update_file,
    write_atomically,
)
from kernels_bench_tools.notebooks.document import Notebook, read_notebook, survey_notebook
from kernels_bench_tools.notebooks.harness import Harness
from kernels_bench_tools.notebooks.header import PACKAGE
from kernels_bench_tools.notebooks.project import Project, find_project, operators, repository_of
from kernels_bench_tools.notebooks.upgrade import today, with_date, with_harness
from kernels_bench_tools.own_folders import make_folder
from kernels_bench_tools.records.notebook import IMPLEMENTATIONS, RESULTS
from kernels_bench_tools.records.settings import OPERATORS, is_root, operator_modules
from kernels_bench_tools.text.foreign import parse_toml
from kernels_bench_tools.text.names import title_from_name
from kernels_bench_tools.text.words import did_you_mean

_PACKAGE = Path(kernels_bench_tools.__file__).parent
_STARTERS = Path(__file__).parent / "starters"
"""Files with placeholders such as ``@NAME@``."""

new = typer.Typer(no_args_is_help=True, help="Create an implementation or an operator.")

_NAME = re.compile(r"[a-z][a-z0-9_]{0,99}")
_A_NAME = "A name of at most 100 lower-case letters, digits and underscores that starts with a letter"
_BASELINE = re.compile(r"^baseline: true$", re.MULTILINE)


@new.command("implementation")
def new_implementation(
    name: Annotated[str, typer.Argument()], origin: Annotated[str, typer.Option("--from")] = ""
) -> None:
    """Create a notebook for a new implementation.

    It is a working copy of the operator's baseline. An operator with several functions has a baseline for each: select one
    with `--from`. No other file has to be edited. For a built-in operator that the project does not have, its folder is
    created first, with its baseline.

    Args:
        name (OPERATOR/NAME): Such as layer_norm/my_kernel.
        origin (IMPLEMENTATION): Implementation of the operator to copy. [default: its baseline]
    """
    project = find_project()
    operator, _, stem = name.rpartition("/")
    if not operator or not _NAME.fullmatch(stem):
        remedy = f"For example: kbt new implementation {operator or 'layer_norm'}/my_kernel"
        raise ProjectError(name, "is not OPERATOR/NAME", _A_NAME, remedy)
    if operator in built_in_operators() and operator not in operators(project):
        created = _new_files(project, _built_in_texts(operator))
        _refuse_others(project.root, created, "Move them away, or choose another operator")
        _write(created, project.root)
        print(*map(project.relative, created), sep="\n")
        print(f"{operator} is built in; its folder was created")
        if project.root / operator / IMPLEMENTATIONS / f"{stem}.md" in created:
            print(f"try it: kbt run {operator}/{stem}")
            return
    known = operators(project)
    if operator not in known:
        names = [*known, *(built_in for built_in in built_in_operators() if built_in not in known)]
        what, expected = "is neither an operator of this project nor built in", f"One of {', '.join(names)}"
        hint = did_you_mean(operator, names, "`kbt new operator NAME` creates one")
        raise ProjectError(operator, what, expected, hint)
    notebooks = {path.stem: survey_notebook(project, path) for path in known[operator]}
    if origin and origin not in notebooks:
        what, expected = f"is not an implementation of {operator}", f"One of {', '.join(notebooks)}"
        raise ProjectError(f"--from {origin}", what, expected, did_you_mean(origin, notebooks))
    baselines = [name for name, notebook in notebooks.items() if notebook.front.baseline]
    copied, *others = [origin] if origin else baselines or list(notebooks)[:1]
    start = read_notebook(project, notebooks[copied].path)
    path = start.path.parent / f"{stem}.md"
    if path.exists():
        raise ProjectError(project.relative(path), "already exists", "", "Edit it, or choose another name")
    _write(_new_files(project, {project.relative(path): _copy(start, stem)}), project.root)
    print(project.relative(path))
    if others:
        print(f"copied from {copied}; use --from to copy {' or '.join(others)} instead")
    print(f"edit it, then: kbt run {operator}/{stem}")


@new.command("operator")
def new_operator(name: Annotated[str, typer.Argument()]) -> None:
    """Create a module and a folder for a new operator.

    The module, `operators/NAME.py` (or in the folder set by `operators` in `[tool.kbt]`), defines the reference, the inputs
    and the tolerances. The folder, `NAME/`, has a description, a baseline and the combine notebook. Both run as they are:
    the operator computes y = 2x until you replace the formula in the module and in the baseline.

    Args:
        name (NAME): Such as softmax.
    """
    project = find_project()
    module = f"{project.operators}/{name}.py"
    reserved = {"docs", "site", "node_modules", project.operators.partition("/")[0]}
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name in reserved:
        what = "is not a valid operator name" if not _NAME.fullmatch(name) else "is reserved"
        raise ProjectError(name or "''", what, _A_NAME, "For example: kbt new operator softmax")
    if name in built_in_operators():
        remedy = f"To use it: kbt new implementation {name}/my_kernel"
        raise ProjectError(name, "is a built-in operator", "A new name", remedy)
    values = {"name": name, "title": title_from_name(name), "today": today(), "module": module}
    starters = {
        module: "operator.py",
        f"{name}/index.md": "index.md",
        f"{name}/{IMPLEMENTATIONS}/torch_{name}.md": "baseline.md",
        f"{name}/{RESULTS}/combined_results.md": "combined_results.md",
    }
    files = _new_files(project, {path: _filled(starter, **values) for path, starter in starters.items()})
    places = [project.root / path for path in (name, f"{project.operators}/{name}", module)]
    for file in files:
        remove_unfinished(file)
    present = [file for place in places for file in (place, *place.rglob("*")) if file.is_file()]
    # A killed command has written a part.
    if len(present) == len(files) or {*present} - files.keys() or _others(files):
        first = project.relative(present[0]) if present else name
        raise ProjectError(first, "already exists", "", "Choose another name")
    _write(files, project.root)
    print(*map(project.relative, files), sep="\n")
    print(f"edit the formula in the module and in the baseline, then: kbt run {name}/torch_{name}")


def _copy(notebook: Notebook, stem: str) -> str:
    """Return the text of a new implementation's notebook, with the last cell of another one."""
    cell, requires = notebook.cells[-1], notebook.front.requires
    return _filled(
        "implementation.md",
        title=title_from_name(stem),
        family=stem.replace("_", "-"),
        requires=f"requires: [{', '.join(requires)}]\n" if requires else "",
        origin=notebook.implementation,
        name=stem,
        operator=notebook.operator,
        cell=cell.id,
        outputs=",".join(cell.outputs),
        code=with_date(cell.code.rstrip("\n"), today()),
    )


def built_in_operators() -> list[str]:
    """Return the names of the operators that are part of this package and whose folders it has."""
    return [name for name in operator_modules(_PACKAGE / OPERATORS) if _built_in_folder(name).is_dir()]


def _built_in_folder(name: str) -> Path:
    shipped = _STARTERS / name
    return shipped if shipped.is_dir() else _PACKAGE.parent / name  # in a checkout


def _built_in_texts(name: str) -> dict[str, str]:
    """Return the files of a built-in operator's folder, with its baselines: path in a project to text."""
    source = _built_in_folder(name)
    texts = {
        f"{name}/{path.relative_to(source).as_posix()}": path.read_text(encoding="utf-8")
        for pattern in ("index.md", f"{IMPLEMENTATIONS}/*.md", f"{RESULTS}/*.md")
        for path in sorted(source.glob(pattern))
    }
    return {
        path: with_date(text, today())
        for path, text in texts.items()
        if f"/{IMPLEMENTATIONS}/" not in path or _BASELINE.search(text)
    }


def _new_files(project: Project, texts: Mapping[str, str]) -> dict[Path, bytes]:
    """Return the files that are written for these texts, by their paths in the project: with its harness in headers."""
    paths = {project.root / name: text for name, text in texts.items()}
    return {path: with_harness(project, path, text).encode() for path, text in paths.items()}


def _others(files: Mapping[Path, bytes]) -> list[Path]:
    """Return what is where these files would be written and is not the same, as a killed command leaves it."""
    there = {path: data for path, data in files.items() if os.path.lexists(path)}
    return [
        path
        for path, data in there.items()
        if path.is_symlink() or not path.is_file() or read_file(path) != data
    ]


def _refuse_others(root: Path, files: Mapping[Path, bytes], remedy: str) -> None:
    if existing := [os.path.relpath(path, root) for path in _others(files)]:
        what = f"already {'exist' if len(existing) > 1 else 'exists'}, so nothing was created"
        raise ProjectError(", ".join(existing), what, "", remedy)


def _write(files: Mapping[Path, bytes], below: Path) -> None:
    for path, data in files.items():
        make_folder(path.parent, below)
        update_file(path, data, sync=True)


def _filled(starter: str, **values: str) -> str:
    """Return the text of a starter with these values in the place of ``@NAME@`` and the like."""
    text = (_STARTERS / f"{starter}.txt").read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name.upper()}@", value)
    return text


_OWN = "softmax"
"""The first operator: its module becomes part of the project."""
_NOTEBOOKS = ["index.md", "*/index.md", "**/impls/*.md", "**/results/*.md", "suites/*.md"]
_IGNORED = ("__pycache__/", ".venv/", ".kbt/", "/site/", "/hub-builds/")
_REPOSITORY = "https://github.com/kernels-bench-tools/kernels-bench-tools"
_WORKFLOW = ".github/workflows/benchmarks.yml"


def init(path: Annotated[Path, typer.Argument()] = Path()) -> None:
    """Create a project.

    It has an operator with a baseline and a kernel of your own, the combine notebook, a front page, and a workflow that
    publishes the report. An existing pyproject.toml or .gitignore is extended; no file is overwritten.

    Args:
        path (PATH): Folder of the project. [default: the current one]
    """
    root = real_path(path)
    nearest = next(folder for folder in (root, *root.parents) if os.path.lexists(folder))
    if not nearest.is_dir():
        raise ProjectError(str(nearest), "is not a folder", "A folder for the project")
    project = Project(
        root=root, title=title_from_name(root.name), patterns=tuple(_NOTEBOOKS), harness=_own_source(root)
    )
    settings = _settings(project)
    known = {line.strip() for line in _read(root / ".gitignore").splitlines()}
    ignored = "".join(f"{line}\n" for line in _IGNORED if line not in known and line.strip("/") not in known)
    files = _new_files(project, _texts(project))
    _refuse_others(root, files, "Choose another folder: `kbt init PATH`")
    repository = repository_of(root) or root
    workflow = repository / _WORKFLOW
    if not os.path.lexists(workflow):
        files[workflow] = _workflow(project, repository).encode()
    for file in files:
        check_writable(file.parent)
    make_folder(root)
    _write(files, repository)
    # The settings, which make it a project, last: until then the same command continues one that was killed.
    extended = {root / "pyproject.toml": settings, root / ".gitignore": ignored}
    for file, more in reversed(extended.items()):
        write_atomically(file, _appended(_read(file), more).encode())
    for file in (*extended, *files):
        print(os.path.relpath(file, root))
    print("\nNext:")
    if root != Path.cwd():
        print(f"  cd {shlex.quote(os.path.relpath(root))}")
    run = f"kbt run {_OWN}/my_{_OWN}"
    for command, purpose in (
        (run, "measure it beside the baseline"),
        ("kbt build", "write the report: site/index.html"),
        ("kbt record", "copy its records, to be committed"),
    ):
        print(f"  {command:<{len(run)}}  # {purpose}")
    if "path" in project.harness.source:
        note(f"cells install {PACKAGE} from {project.harness.source['path']}, like this command")
        if Path(project.harness.source["path"]).is_absolute():
            note("other machines do not have that folder")
        note(f"to install it from PyPI: kbt upgrade --harness {PACKAGE}, or from Git: --harness URL@COMMIT")
    if workflow not in files:
        note(f"{os.path.relpath(workflow, root)} already exists and was kept; it does not build this project")
    elif _REPOSITORY in _elsewhere(project.harness):
        note(f"the workflow installs {PACKAGE} from {_REPOSITORY}; see HARNESS in it for releases")
    for path in project.notebook_paths():
        if path not in files:
            name = project.relative(path)
            note(f"{name} matches `notebooks` in pyproject.toml, so it becomes a page and its cells run")


def _own_source(root: Path) -> Harness:
    """Return where this command was installed from, so that cells measure with the same package."""
    try:
        text = distribution(PACKAGE).read_text("direct_url.json")
    except PackageNotFoundError:
        text = None
    if not text:
        return Harness()  # from an index
    about: dict[str, Any] = json.loads(text)
    url = str(about["url"])
    if "vcs_info" in about:
        return Harness(source={"git": url, "rev": about["vcs_info"]["commit_id"]})
    if not url.startswith("file:"):
        return Harness(source={"url": url})
    path = Path(url2pathname(urlsplit(url).path)).resolve()
    inside = path.is_relative_to(root)
    return Harness(source={"path": (Path(os.path.relpath(path, root)) if inside else path).as_posix()})


def _settings(project: Project) -> str:
    """Return ``[tool.kbt]`` of the new project; that there is one, or no room for it, is a ``ProjectError``."""
    path = project.root / "pyproject.toml"
    if is_root(project.root):
        remedy = "`kbt new operator` and `kbt new implementation` add to it"
        raise ProjectError(str(path), "already has [tool.kbt]: this is a project", "", remedy)
    settings = f"""[tool.kbt]
title = {json.dumps(project.title, ensure_ascii=False)}
# Which Markdown files are notebooks. Others contain examples, not cells.
notebooks = {json.dumps(_NOTEBOOKS)}
# Where cells get the harness from. `kbt upgrade --harness` changes all notebooks with it.
harness = {project.harness.setting()}
"""
    text, after = _read(path), {}
    try:
        parse_toml(text)
    except ValueError as error:
        raise ProjectError(str(path), f"cannot be read: {error}", "A TOML file") from None
    with suppress(tomllib.TOMLDecodeError):
        after = tomllib.loads(_appended(text, settings))
    if not isinstance(after.get("tool"), dict):
        raise ProjectError(str(path), "[tool.kbt] cannot be added", "A TOML file that can have this table")
    return settings


def _texts(project: Project) -> dict[str, str]:
    folder, date = f"{_OWN}/{IMPLEMENTATIONS}", today()
    return {
        "index.md": _filled("project/index.md", title=project.title),
        f"{project.operators}/{_OWN}.py": _filled("project/softmax.py"),
        f"{_OWN}/index.md": _filled("project/softmax.md"),
        f"{folder}/torch_{_OWN}.md": _filled("project/torch_softmax.md", today=date),
        f"{folder}/my_{_OWN}.md": _filled("project/my_softmax.md", today=date),
        f"{_OWN}/{RESULTS}/combined_results.md": _filled("combined_results.md", title="Softmax", today=date),
    }


def _workflow(project: Project, repository: Path) -> str:
    place = project.root.relative_to(repository).as_posix()
    inside = place != "."
    return _filled(
        "project/benchmarks.yml",
        harness=json.dumps(_elsewhere(project.harness)),
        folder=f"{place}/" if inside else "",
        defaults=f"    defaults:\n      run:\n        working-directory: {place}\n" if inside else "",
    )


def _elsewhere(harness: Harness) -> str:
    """Return what `pip install` and `kbt upgrade --harness` take for the same package on another machine.

    A folder of this machine and an index of its own are not there, and there is no release yet.
    """
    source = harness.source
    if not source or Path(source.get("path", "")).is_absolute():
        return f"git+{_REPOSITORY}"
    if "git" in source:
        return f"git+{source['git']}@{source['rev']}"
    return f"./{source['path']}" if "path" in source else str(source["url"])


def _appended(text: str, more: str) -> str:
    if not text or not more:
        return text + more
    end = "\r\n" if "\r\n" in text else "\n"
    return text + ("" if text.endswith("\n") else end) + end + more.replace("\n", end)


def _read(path: Path) -> str:
    try:
        return read_file(path).decode()
    except FileNotFoundError:
        return ""
    except (OSError, UnicodeDecodeError) as error:
        why = getattr(error, "strerror", None) or "it is not UTF-8"
        raise ProjectError(str(path), f"cannot be read: {why}") from None
