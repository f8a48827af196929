"""``kbt new``: create an implementation or an operator from a working example."""

from __future__ import annotations

import keyword
import re
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated

import typer

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import write_atomically
from kernels_bench_tools.notebooks.document import Notebook, read_notebook
from kernels_bench_tools.notebooks.project import Project, find_project, operators
from kernels_bench_tools.notebooks.upgrade import with_harness
from kernels_bench_tools.text import did_you_mean, title_from_name

OPERATORS = PurePosixPath("kernels_bench_tools/operators")
"""Folder of the operators' modules in a checkout."""
_STARTERS = Path(__file__).parent / "starters"
"""Files with placeholders such as ``@NAME@``."""

new = typer.Typer(no_args_is_help=True, help="Create an implementation or an operator.")

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_A_NAME = "A name of lower-case letters, digits and underscores that starts with a letter"
_NEVER_OPERATORS = {"docs", "site", "node_modules"}
"""Folders that are not searched for notebooks."""
_PIN = re.compile(r'^(#\s*exclude-newer\s*=\s*)"[^"]*"', re.MULTILINE)


@new.command("implementation")
def new_implementation(
    name: Annotated[str, typer.Argument(metavar="OPERATOR/NAME", help="Such as layer_norm/my_kernel.")],
    origin: Annotated[
        str,
        typer.Option(
            "--from",
            metavar="IMPLEMENTATION",
            help="Implementation of the operator to copy. [default: its baseline]",
        ),
    ] = "",
) -> None:
    """Create a notebook for a new implementation.

    It is a working copy of the operator's baseline. An operator that computes several functions has a baseline for
    each; select one with `--from`. No other file has to be edited.
    """
    project = find_project(Path.cwd())
    operator, _, stem = name.rpartition("/")
    start, others = _origin(project, operator, origin)
    if not _NAME.fullmatch(stem):
        remedy = f"For example: kbt new implementation {operator}/my_kernel"
        raise ProjectError(name, "is not OPERATOR/NAME", _A_NAME, remedy)
    path = start.path.parent / f"{stem}.md"
    if path.exists():
        raise ProjectError(
            project.relative(path), "exists already", "A new name", "Edit it, or choose another name"
        )
    write_atomically(path, with_harness(project, path, _notebook_text(start, operator, stem)).encode())
    print(project.relative(path))
    if others:
        print(f"copied from {start.path.stem}; use --from to copy {' or '.join(others)} instead")
    print(f"edit it, then: kbt run {operator}/{stem}")


@new.command("operator")
def new_operator(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Such as softmax.")],
) -> None:
    """Create a module and a folder for a new operator.

    The module, `kernels_bench_tools/operators/NAME.py`, defines the reference, the inputs and the tolerances. The
    folder, `NAME/`, has a description, a baseline and the combine notebook. Both work unchanged: the operator
    computes y = 2x until you replace the formula in the module and in the baseline.

    This needs a checkout of kernels-bench-tools.
    """
    project = find_project(Path.cwd())
    _check_operator(project, name)
    folder = project.root / name
    starters = {
        project.root / OPERATORS / f"{name}.py": "operator.py",
        folder / "index.md": "index.md",
        folder / "impls" / f"torch_{name}.md": "baseline.md",
        folder / "results" / "combined_results.md": "combined_results.md",
    }
    for path, starter in starters.items():
        text = _filled(starter, name=name, title=title_from_name(name), today=_today())
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, with_harness(project, path, text).encode())
        print(project.relative(path))
    print(f"edit the formula in the module and in the baseline, then: kbt run {name}/torch_{name}")


def _check_operator(project: Project, name: str) -> None:
    """Raise ``ProjectError`` if the name is invalid or taken, or the project does not contain the package."""
    reserved = keyword.iskeyword(name) or name in _NEVER_OPERATORS
    if not _NAME.fullmatch(name) or reserved:
        what = "is reserved" if reserved else "is not a name for an operator"
        raise ProjectError(name or "''", what, _A_NAME, "For example: kbt new operator softmax")
    if not (project.root / OPERATORS / "__init__.py").is_file():
        raise ProjectError(
            f"{OPERATORS}/{name}.py",
            f"cannot be added, since {project.root} does not contain the package",
            "A checkout of kernels-bench-tools",
            f"Clone it, and run `kbt new operator {name}` there",
        )
    for path in (OPERATORS / f"{name}.py", OPERATORS / name, Path(name)):
        if (project.root / path).exists():
            raise ProjectError(str(path), "exists already", "A new name", "Choose another name")


def _origin(project: Project, operator: str, asked: str) -> tuple[Notebook, list[str]]:
    """Return the notebook to copy, and the names of the other baselines."""
    known = operators(project)
    if operator not in known:
        raise ProjectError(
            operator or "OPERATOR/NAME",
            "is not an operator of this project",
            f"One of {', '.join(known) or '(none: no folder has impls/*.md)'}",
            "For example: kbt new implementation layer_norm/my_kernel",
        )
    notebooks = {path.stem: read_notebook(project, path) for path in known[operator]}
    if asked and asked not in notebooks:
        raise ProjectError(
            f"--from {asked}",
            f"is not an implementation of {operator}",
            f"One of {', '.join(notebooks)}",
            did_you_mean(asked, list(notebooks), ""),
        )
    baselines = [stem for stem, notebook in notebooks.items() if notebook.front.baseline]
    baselines = baselines or list(notebooks)[:1]
    return notebooks[asked or baselines[0]], [] if asked else baselines[1:]


def _notebook_text(start: Notebook, operator: str, stem: str) -> str:
    cell = start.cells[-1]
    requires = start.front.requires
    return _filled(
        "implementation.md",
        title=title_from_name(stem),
        family=stem.replace("_", "-"),
        requires=f"requires: [{', '.join(requires)}]\n" if requires else "",
        origin=start.path.stem,
        name=stem,
        operator=operator,
        cell=cell.id,
        outputs=",".join(cell.outputs),
        code=_PIN.sub(rf'\g<1>"{_today()}"', cell.code.rstrip("\n")),
    )


def _today() -> str:
    """Return today's date in the format of ``exclude-newer``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT00:00:00Z")


def _filled(starter: str, **values: str) -> str:
    text = (_STARTERS / f"{starter}.txt").read_text(encoding="utf-8")
    for name, value in values.items():
        text = text.replace(f"@{name.upper()}@", value)
    return text
