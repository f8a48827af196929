"""``kbt new``: start something from what is there, so that it runs before it is edited."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.naming import title_from_name
from kernels_bench_tools.notebooks.document import Notebook, read_notebook
from kernels_bench_tools.notebooks.project import Project, find_project, operators

new = typer.Typer(no_args_is_help=True, help="Start a new implementation.")

_NAME = re.compile(r"[a-z][a-z0-9_]*")
_PIN = re.compile(r'^(#\s*exclude-newer\s*=\s*)"[^"]*"', re.MULTILINE)

_TEMPLATE = """\
---
title: "{title}"
description: "One sentence for tables and tooltips: what this is and what makes it fast."
family: "{family}"
---

# {title}

What it computes and how. This notebook starts as a copy of the baseline `{baseline}`, so it runs as it
is: replace the function, keep its arguments.

- Its file name, `{name}`, is its id in records, charts and links.
- `exclude-newer` in the header pins every package by date; name what you need in `dependencies`.
- If it cannot run everywhere, say so in the front matter, for example `requires: [cuda]`.

Try it with `kbt run {operator}/{name}`, publish it with `kbt build`.

```python id={cell} outputs={outputs}
{code}
```
"""


@new.callback()
def _group() -> None:
    """Start a new implementation."""


@new.command("implementation")
def new_implementation(
    name: Annotated[str, typer.Argument(metavar="OPERATOR/NAME", help="Such as layer_norm/my_kernel.")],
) -> None:
    """Write a notebook for a new implementation; nothing else has to be edited.

    It starts as a copy of the operator's baseline, so that it runs before you change it.
    """
    project = find_project(Path.cwd())
    operator, _, stem = name.partition("/")
    baseline = _baseline(project, operator)
    if not _NAME.fullmatch(stem):
        raise ProjectError(
            name,
            "is not OPERATOR/NAME",
            "A name of lower-case letters, digits and underscores that starts with a letter",
            f"For example: kbt new implementation {operator}/my_kernel",
        )
    path = baseline.path.parent / f"{stem}.md"
    if path.exists():
        raise ProjectError(
            project.relative(path), "exists already", "A new name", "Edit it, or choose another name"
        )
    path.write_text(_notebook_text(baseline, operator, stem), encoding="utf-8")
    print(project.relative(path))
    print(f"edit it, then: kbt run {operator}/{stem}")


def _baseline(project: Project, operator: str) -> Notebook:
    known = operators(project)
    if operator not in known:
        raise ProjectError(
            operator or "OPERATOR/NAME",
            "is not an operator of this project",
            f"One of {', '.join(known) or '(none: no folder has impls/*.md)'}",
            "For example: kbt new implementation layer_norm/my_kernel",
        )
    notebooks = [read_notebook(project, path) for path in known[operator]]
    return next((notebook for notebook in notebooks if notebook.front.baseline), notebooks[0])


def _notebook_text(baseline: Notebook, operator: str, stem: str) -> str:
    cell = baseline.cells[-1]
    today = datetime.now(UTC).strftime("%Y-%m-%dT00:00:00Z")
    return _TEMPLATE.format(
        title=title_from_name(stem),
        family=stem.replace("_", "-"),
        baseline=baseline.path.stem,
        name=stem,
        operator=operator,
        cell=cell.id,
        outputs=",".join(cell.outputs),
        code=_PIN.sub(rf'\g<1>"{today}"', cell.code.rstrip("\n")),
    )
