"""``kbt init``: make a project that builds, in an empty folder or in somebody's repository."""

from __future__ import annotations

import json
import os
import shlex
import tomllib
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit
from urllib.request import url2pathname

import typer

from kernels_bench_tools.cli.new import (
    filled,
    other_files,
    today,
    write_new,
)
from kernels_bench_tools.cli.output import note
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import check_writable, read_file, real_path, write_atomically
from kernels_bench_tools.notebooks.harness import Harness
from kernels_bench_tools.notebooks.header import PACKAGE
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.records.build import IMPLEMENTATIONS, RESULTS
from kernels_bench_tools.records.settings import is_root
from kernels_bench_tools.text import title_from_name

_OWN = "softmax"
"""The first operator: its module becomes part of the project."""
_NOTEBOOKS = ["index.md", "*/index.md", "**/impls/*.md", "**/results/*.md", "suites/*.md"]
_IGNORED = ("__pycache__/", ".venv/", ".kbt/", "/site/", "/hub-builds/")
_REPOSITORY = "https://github.com/kernels-bench-tools/kernels-bench-tools"
_WORKFLOW = ".github/workflows/benchmarks.yml"


def init(path: Annotated[Path, typer.Argument()] = Path()) -> None:
    """Make a project that builds.

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
    texts = _texts(project)
    repository = next((folder for folder in (root, *root.parents) if (folder / ".git").exists()), root)
    workflow = repository / _WORKFLOW
    clashes = other_files(project, texts)
    if clashes:
        existing = [os.path.relpath(file, root) for file in clashes]
        what = f"{'exist' if len(existing) > 1 else 'exists'} already, so nothing was made"
        raise ProjectError(", ".join(existing), what, "", "Choose another folder: `kbt init PATH`")
    kept = os.path.lexists(workflow)
    for file in [*(root / name for name in texts), *([] if kept else [workflow])]:
        check_writable(file.parent)

    root.mkdir(parents=True, exist_ok=True)
    made = [root / "pyproject.toml", root / ".gitignore", *write_new(project, texts)]
    if not kept:
        workflow.parent.mkdir(parents=True, exist_ok=True)
        place = root.relative_to(repository).as_posix()
        inside = place != "."
        text = filled(
            "project/benchmarks.yml",
            harness=json.dumps(_elsewhere(project.harness)),
            folder=f"{place}/" if inside else "",
            defaults=f"    defaults:\n      run:\n        working-directory: {place}\n" if inside else "",
        )
        write_atomically(workflow, text.encode())
    # The settings, which make it a project, last: until then the same command continues one that was killed.
    for extended, more in ((made[1], ignored), (made[0], settings)):
        write_atomically(extended, _appended(_read(extended), more).encode())
    for file in made if kept else (*made, workflow):
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
        note(f"cells take {PACKAGE} from {project.harness.source['path']}, as this command")
        if Path(project.harness.source["path"]).is_absolute():
            note("other machines do not have that folder")
        note(f"to take it from PyPI: kbt upgrade --harness {PACKAGE}, or from Git: --harness URL@COMMIT")
    if not kept and _REPOSITORY in _elsewhere(project.harness):
        note(f"the workflow takes {PACKAGE} from {_REPOSITORY}: HARNESS in it says what to do on a release")
    if kept:
        note(f"{os.path.relpath(workflow, root)} exists already and was kept: it does not know this project")
    for name in sorted({*map(project.relative, project.notebook_paths())} - {*map(project.relative, made)}):
        note(f"{name} matches `notebooks` in pyproject.toml, so it becomes a page, and its cells run")


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
        raise ProjectError(str(path), "has [tool.kbt] already: this is a project", "", remedy)
    settings = f"""[tool.kbt]
title = {json.dumps(project.title, ensure_ascii=False)}
# Which Markdown files are notebooks. Others contain examples, not cells.
notebooks = {json.dumps(_NOTEBOOKS)}
# Where cells get the harness from. `kbt upgrade --harness` changes all notebooks with it.
harness = {project.harness.setting()}
"""
    text, after = _read(path), {}
    try:
        tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise ProjectError(str(path), f"cannot be read: {error}", "A TOML file") from None
    with suppress(tomllib.TOMLDecodeError):
        after = tomllib.loads(_appended(text, settings))
    if not isinstance(after.get("tool"), dict):
        raise ProjectError(str(path), "[tool.kbt] cannot be added", "A TOML file that can have this table")
    return settings


def _texts(project: Project) -> dict[str, str]:
    folder, date = f"{_OWN}/{IMPLEMENTATIONS}", today()
    return {
        "index.md": filled("project/index.md", title=project.title),
        f"{project.operators}/{_OWN}.py": filled("project/softmax.py"),
        f"{_OWN}/index.md": filled("project/softmax.md"),
        f"{folder}/torch_{_OWN}.md": filled("project/torch_softmax.md", today=date),
        f"{folder}/my_{_OWN}.md": filled("project/my_softmax.md", today=date),
        f"{_OWN}/{RESULTS}/combined_results.md": filled("combined_results.md", title="Softmax", today=date),
    }


def _elsewhere(harness: Harness) -> str:
    """Return what `pip install` and `kbt upgrade --harness` take for the same package on another machine.

    A folder of this machine and an index of its own are not there, and there is no release yet.
    """
    if not harness.source or Path(harness.source.get("path", "")).is_absolute():
        return f"git+{_REPOSITORY}"
    return harness.pip_requirement().removeprefix(f"{PACKAGE} @ ")


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
