"""Makes projects of many small notebooks, to time builds of them and to break builds of them.

Every tree has ``count`` notebooks whose cells need nothing but Python, and one combine cell over all of them.
Three layouts differ in what has made notebook runners slow or wrong before: equal cell ids in one folder,
an id of its own for each cell, and many folders.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

HEADER = '# /// script\n# requires-python = ">=3.11"\n# dependencies = []\n# ///\n'
"""What each cell asks for: Python alone, so that a build's own time is what shows."""

FOLDERS = 20
"""How many folders ``Layout.FOLDERS`` spreads its notebooks over."""

_CELL = """{header}import json
numbers = [{number} * step for step in range(10)]
with open("numbers.json", "w") as file:
    json.dump(numbers, file)
print("notebook {number}", sum(numbers))
"""
_COMBINE = """{header}import json, os
with open(os.environ["KBT_NEEDS"]) as file:
    needs = json.load(file)["cells"]
total = 0
for need in needs:
    with open(os.path.join(need["directory"], "numbers.json")) as file:
        total += sum(json.load(file))
print(len(needs), "notebooks, total", total)
with open("total.json", "w") as file:
    json.dump(total, file)
"""
_NOTEBOOK = """---
title: {title}
---

# {title}

{prose}

```python id={cell} {attributes}
{code}```
"""


class Layout(StrEnum):
    """How the notebooks of a tree are laid out."""

    FLAT = "flat"
    """One folder, and the same cell id in all notebooks, as operators have it."""
    UNIQUE = "unique"
    """One folder, and a cell id of its own for each notebook."""
    FOLDERS = "folders"
    """Twenty folders, and the same cell id in all notebooks."""


def make_tree(root: Path, count: int, layout: Layout = Layout.FLAT, header: str = HEADER) -> list[Path]:
    """Write a project of ``count`` notebooks and a combine cell; return the notebooks' files, combine last.

    Args:
        root: Folder of the project; made if it does not exist.
        count: How many notebooks, without the combine notebook.
        layout: Where they lie, and what their cells are called.
        header: What comes before the code of each cell.
    """
    root.mkdir(parents=True, exist_ok=True)
    (root / "pyproject.toml").write_text('[tool.kbt]\ntitle = "A generated tree"\n', encoding="utf-8")
    paths = [root / _name(number, layout) for number in range(count)]
    for number, path in enumerate(paths):
        write_notebook(path, number, layout, header)
    cell = "" if layout is Layout.UNIQUE else ":benchmark"
    folders = "*/impls" if layout is Layout.FOLDERS else "flat/impls"
    combine = _NOTEBOOK.format(
        title="Combined",
        prose="The sum over all notebooks.",
        cell="combine",
        attributes=f"needs=./{folders}/*.md{cell} outputs=total.json",
        code=_COMBINE.format(header=header),
    )
    (root / "combined.md").write_text(combine, encoding="utf-8")
    return [*paths, root / "combined.md"]


def write_notebook(
    path: Path, number: int, layout: Layout = Layout.FLAT, header: str = HEADER, edit: str = ""
) -> None:
    """Write one notebook of a tree; ``edit`` is added to its code, as somebody's change."""
    path.parent.mkdir(parents=True, exist_ok=True)
    text = _NOTEBOOK.format(
        title=f"Notebook {number}",
        prose=f"It multiplies the first ten numbers by {number}.",
        cell=f"benchmark-{number}" if layout is Layout.UNIQUE else "benchmark",
        attributes="outputs=numbers.json",
        code=_CELL.format(header=header, number=number) + edit,
    )
    path.write_text(text, encoding="utf-8")


def _name(number: int, layout: Layout) -> str:
    folder = f"group_{number % FOLDERS:02d}" if layout is Layout.FOLDERS else "flat"
    return f"{folder}/impls/n{number:04d}.md"
