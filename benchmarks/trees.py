"""Generated projects of many small notebooks, for benchmarks and for tests that interrupt builds.

Every tree has ``count`` notebooks whose cells need only Python, and one combine cell over all of them. The layouts
cover what has made notebook runners slow or wrong: the same cell id in all notebooks of a folder, different ids, and
many folders.
"""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path

HEADER = '# /// script\n# requires-python = ">=3.11"\n# dependencies = []\n# ///\n'
"""Header of each cell: only Python, so that the time is that of the build itself."""

FOLDERS = 20
"""Number of folders in ``Layout.FOLDERS``."""

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
    """Folders and cell ids of a tree."""

    FLAT = "flat"
    """One folder, and the same cell id in all notebooks, as in operators."""
    UNIQUE = "unique"
    """One folder, and a different cell id in each notebook."""
    FOLDERS = "folders"
    """Twenty folders, and the same cell id in all notebooks."""


def make_tree(root: Path, count: int, layout: Layout = Layout.FLAT, header: str = HEADER) -> list[Path]:
    """Write a project of ``count`` notebooks and a combine cell; return the files, the combine notebook last.

    Args:
        root: Folder of the project; created if it does not exist.
        count: Number of notebooks without the combine notebook.
        layout: Folders and cell ids.
        header: PEP 723 header of each cell.
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
    """Write one notebook of a tree; ``edit`` is appended to its code."""
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
