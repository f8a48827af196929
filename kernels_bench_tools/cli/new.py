"""``kbt new``: create an implementation or an operator from a working example."""

from __future__ import annotations

import keyword
import os
import re
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

import kernels_bench_tools
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import update_file, write_atomically
from kernels_bench_tools.notebooks.document import read_notebook, survey_notebook
from kernels_bench_tools.notebooks.project import Project, find_project, operators
from kernels_bench_tools.notebooks.upgrade import with_harness
from kernels_bench_tools.own_folders import make_folder
from kernels_bench_tools.records.build import IMPLEMENTATIONS, RESULTS
from kernels_bench_tools.records.settings import OPERATORS, operator_modules
from kernels_bench_tools.text import did_you_mean, title_from_name

_PACKAGE = Path(kernels_bench_tools.__file__).parent
_STARTERS = Path(__file__).parent / "starters"
"""Files with placeholders such as ``@NAME@``."""

new = typer.Typer(no_args_is_help=True, help="Create an implementation or an operator.")

_NAME = re.compile(r"[a-z][a-z0-9_]{0,99}")
_A_NAME = "A name of at most 100 lower-case letters, digits and underscores that starts with a letter"
_BASELINE = re.compile(r"^baseline: true$", re.MULTILINE)
_PIN = re.compile(r'^(#\s*exclude-newer\s*=\s*)"[^"]*"', re.MULTILINE)


@new.command("implementation")
def new_implementation(
    name: Annotated[str, typer.Argument()], origin: Annotated[str, typer.Option("--from")] = ""
) -> None:
    """Create a notebook for a new implementation.

    It is a working copy of the operator's baseline. An operator that computes several functions has a baseline for
    each; select one with `--from`. No other file has to be edited. If the operator is built in and the project does
    not have it, its folder is created first, with its baseline.

    Args:
        name (OPERATOR/NAME): Such as layer_norm/my_kernel.
        origin (IMPLEMENTATION): Implementation of the operator to copy. [default: its baseline]
    """
    project = find_project(Path.cwd())
    operator, _, stem = name.rpartition("/")
    if not operator or not _NAME.fullmatch(stem):
        remedy = f"For example: kbt new implementation {operator or 'layer_norm'}/my_kernel"
        raise ProjectError(name, "is not OPERATOR/NAME", _A_NAME, remedy)
    if operator in built_in_operators() and operator not in operators(project):
        created = write_new(project, built_in_texts(operator))
        print(*map(project.relative, created), sep="\n")
        print(f"{operator} is built in; its folder was created")
        if project.root / operator / IMPLEMENTATIONS / f"{stem}.md" in created:
            print(f"try it: kbt run {operator}/{stem}")
            return
    path, copied, others = create_implementation(project, operator, stem, origin)
    print(project.relative(path))
    if others:
        print(f"copied from {copied}; use --from to copy {' or '.join(others)} instead")
    print(f"edit it, then: kbt run {operator}/{stem}")


@new.command("operator")
def new_operator(name: Annotated[str, typer.Argument()]) -> None:
    """Create a module and a folder for a new operator.

    The module, `operators/NAME.py`, or in the folder that `operators` in `[tool.kbt]` names, defines the reference,
    the inputs and the tolerances. The folder, `NAME/`, has a description, a baseline and the combine notebook. Both
    work unchanged: the operator computes y = 2x until you replace the formula in the module and in the baseline.

    Args:
        name (NAME): Such as softmax.
    """
    project = find_project(Path.cwd())
    module = f"{project.operators}/{name}.py"
    reserved = {"docs", "site", "node_modules", project.operators.partition("/")[0]}
    if not _NAME.fullmatch(name) or keyword.iskeyword(name) or name in reserved:
        what = "is not a name for an operator" if not _NAME.fullmatch(name) else "is reserved"
        raise ProjectError(name or "''", what, _A_NAME, "For example: kbt new operator softmax")
    for path in (module, f"{project.operators}/{name}", name):
        if (project.root / path).exists():
            raise ProjectError(path, "exists already", "", "Choose another name")
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
    texts = {path: filled(starter, **values) for path, starter in starters.items()}
    print(*map(project.relative, write_new(project, texts)), sep="\n")
    print(f"edit the formula in the module and in the baseline, then: kbt run {name}/torch_{name}")


def create_implementation(
    project: Project, operator: str, stem: str, origin: str = ""
) -> tuple[Path, str, list[str]]:
    """Create an implementation as a copy of another; return its file, the name of that, and other baselines' names."""
    known = operators(project)
    if operator not in known:
        names = [*known, *(name for name in built_in_operators() if name not in known)]
        what, expected = "is not an operator of this project, nor built in", f"One of {', '.join(names)}"
        hint = did_you_mean(operator, names, "`kbt new operator NAME` creates one")
        raise ProjectError(operator, what, expected, hint)
    notebooks = {path.stem: survey_notebook(project, path) for path in known[operator]}
    if origin and origin not in notebooks:
        what, expected = f"is not an implementation of {operator}", f"One of {', '.join(notebooks)}"
        raise ProjectError(f"--from {origin}", what, expected, did_you_mean(origin, notebooks))
    baselines = [name for name, notebook in notebooks.items() if notebook.front.baseline]
    baselines = [origin] if origin else baselines or list(notebooks)[:1]
    start = read_notebook(project, notebooks[baselines[0]].path)
    path = start.path.parent / f"{stem}.md"
    if path.exists():
        raise ProjectError(project.relative(path), "exists already", "", "Edit it, or choose another name")
    cell, requires = start.cells[-1], start.front.requires
    text = filled(
        "implementation.md",
        title=title_from_name(stem),
        family=stem.replace("_", "-"),
        requires=f"requires: [{', '.join(requires)}]\n" if requires else "",
        origin=start.path.stem,
        name=stem,
        operator=operator,
        cell=cell.id,
        outputs=",".join(cell.outputs),
        code=_PIN.sub(rf'\g<1>"{today()}"', cell.code.rstrip("\n")),
    )
    make_folder(path.parent, project.root)
    write_atomically(path, with_harness(project, path, text).encode())
    return path, start.path.stem, baselines[1:]


def built_in_operators() -> list[str]:
    """Return the names of the operators that are part of this package and whose folders it has."""
    return [name for name in operator_modules(_PACKAGE / OPERATORS) if _built_in_folder(name).is_dir()]


def _built_in_folder(name: str) -> Path:
    shipped = _STARTERS / name
    return shipped if shipped.is_dir() else _PACKAGE.parent / name  # in a checkout


def built_in_texts(name: str) -> dict[str, str]:
    """Return the files of a built-in operator's folder, with its baselines: path in a project to text."""
    source = _built_in_folder(name)
    texts = {
        f"{name}/{path.relative_to(source).as_posix()}": path.read_text(encoding="utf-8")
        for pattern in ("index.md", f"{IMPLEMENTATIONS}/*.md", f"{RESULTS}/*.md")
        for path in sorted(source.glob(pattern))
    }
    return {
        path: _PIN.sub(rf'\g<1>"{today()}"', text)
        for path, text in texts.items()
        if f"/{IMPLEMENTATIONS}/" not in path or _BASELINE.search(text)
    }


def write_new(project: Project, texts: Mapping[str, str]) -> list[Path]:
    """Write files of a project, of which none may exist, unless a killed command has written the same."""
    if existing := [project.relative(path) for path in other_files(project, texts)]:
        raise ProjectError(", ".join(existing), "exists already, so nothing was created", "No such file")
    for name, text in texts.items():
        make_folder((project.root / name).parent, project.root)
        update_file(project.root / name, with_harness(project, project.root / name, text).encode(), sync=True)
    return [project.root / name for name in texts]


def other_files(project: Project, texts: Mapping[str, str]) -> list[Path]:
    """Return what is where these files would be written, and is not the same."""
    found = {
        project.root / name: text for name, text in texts.items() if os.path.lexists(project.root / name)
    }
    return [
        path
        for path, text in found.items()
        if path.is_symlink()
        or not path.is_file()
        or path.read_bytes() != with_harness(project, path, text).encode()
    ]


def today() -> str:
    """Return today's date in the format of ``exclude-newer``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT00:00:00Z")


def filled(starter: str, **values: str) -> str:
    """Return the text of a starter with these values in the place of ``@NAME@`` and the like."""
    text = (_STARTERS / f"{starter}.txt").read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name.upper()}@", value)
    return text
