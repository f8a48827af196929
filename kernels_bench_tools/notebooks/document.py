"""Notebooks: prose and cells by the rules of uvnote, fences by those of CommonMark."""

from __future__ import annotations

import hashlib
import os
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from kernels_bench_tools.errors import NotebookError
from kernels_bench_tools.file_io import read_file
from kernels_bench_tools.notebooks.cell import (
    MOST_COMMENTED,
    Cell,
    commented_info,
    find_fences,
    read_cell,
)
from kernels_bench_tools.notebooks.front_matter import read_front_matter
from kernels_bench_tools.notebooks.imports import imported_cells
from kernels_bench_tools.notebooks.project import STATE_FOLDER, Project
from kernels_bench_tools.records.notebook import FrontMatter, is_implementation, operator_of
from kernels_bench_tools.report.paths import replaced_page
from kernels_bench_tools.text.foreign import LONGEST
from kernels_bench_tools.text.names import is_unicode

_LONGEST_NAME = 200  # bytes, to which endings can be added


@dataclass(frozen=True)
class Notebook:
    path: Path
    name: str
    """Path within the project, with ``/``."""
    digest: str
    """SHA-256 of the file's bytes, in hex."""
    front: FrontMatter
    blocks: list[str | Cell]
    """Prose and cells in order."""
    problems: list[NotebookError] = field(default_factory=list)
    """All errors within this file, in the order of its lines."""
    notes: list[tuple[int, str]] = field(default_factory=list)
    """Lines of what is most likely a mistake, such as a fence with the attributes of a cell that is none, and what it is."""

    @property
    def cells(self) -> list[Cell]:
        return [block for block in self.blocks if isinstance(block, Cell)]

    @property
    def active_cells(self) -> list[Cell]:
        return [cell for cell in self.cells if not cell.commented]

    @property
    def digests(self) -> dict[str, str]:
        """The digest of each cell's code, by its id."""
        return {cell.id: cell.digest for cell in self.cells}

    @property
    def folder(self) -> str:
        """The notebook's folder within the project; empty for the root."""
        return self.name.rpartition("/")[0]

    @property
    def implementation(self) -> str:
        """Id of the implementation: the stem of the file name."""
        return self.path.stem

    @property
    def operator(self) -> str:
        """Id of the operator: the folder that holds ``impls/`` or ``results/``; empty elsewhere."""
        return operator_of(self.name)

    def script_path(self, cell: Cell) -> Path:
        """Return where a cell's script is written; relative sources of its header count from there, as in uvnote."""
        return self.path.parent / STATE_FOLDER / "cells" / f"{self.path.stem}__{cell.id}.py"


def read_notebook(project: Project, path: Path) -> Notebook:
    """Return the notebook at ``path``; raise the first error in it."""
    notebook = survey_notebook(project, path)
    if notebook.problems:
        raise notebook.problems[0]
    return notebook


def survey_notebook(project: Project, path: Path) -> Notebook:
    """Return the notebook at ``path`` as far as it can be read, with all errors in ``problems``."""
    name = project.relative(path)
    problems: list[NotebookError] = []
    data, text = _read(project, path, name, problems)
    problems += _path_problems(project, name)
    # Not splitlines(), which also splits at form feeds and U+2028.
    lines, notes = text.split("\n"), list[tuple[int, str]]()
    front, before, front_problems = read_front_matter(name, lines, notes)
    body = lines[before:]
    if sum(commented_info(line.strip()) is not None for line in body) > MOST_COMMENTED:
        what = f"has more than {MOST_COMMENTED} commented-out cells"
        problems.append(NotebookError(name, what, "", "Remove what is not needed"))
        body = []
    fences = find_fences(body)
    blocks: list[str | Cell] = []
    first: dict[str, Cell] = {}
    done = 0
    for fence in fences:
        where = f"{name}:{before + fence.start + 1}"
        if not fence.closed:
            problems.append(NotebookError(where, "this fence is never closed", "", "End it with a line ```"))
        cell = None
        if fence.is_python and not fence.nested:
            cell = read_cell(project, name, fence, before, problems)
        if cell is None:
            continue
        blocks += ["\n".join(body[done : fence.start]), cell]
        done = fence.end
        earlier = cell if cell.commented else first.setdefault(cell.id, cell)
        if earlier is not cell:
            what = f"the id {cell.id!r} is already used by the cell in line {earlier.file_line}"
            problems.append(NotebookError(where, what, "", "Choose another `id=`"))
    blocks.append("\n".join(body[done:]))
    made = [path.name, *(f"{path.stem}__{block.id}.py" for block in blocks if isinstance(block, Cell))]
    longest = max(map(os.fsencode, made), key=len)
    if len(longest) > _LONGEST_NAME:
        what = f"{longest.decode(errors='replace')} is too long for a file name"
        remedy = "Shorten the notebook's name or the cell's `id=`"
        problems.append(NotebookError(name, what, f"At most {_LONGEST_NAME} bytes", remedy))
    for cell in first.values():
        cell.imported = imported_cells(cell, first)
    return Notebook(
        path=path,
        name=name,
        digest=hashlib.sha256(data).hexdigest(),
        front=front,
        blocks=[block for block in blocks if isinstance(block, Cell) or block.strip()],
        problems=[*front_problems, *problems],
        notes=[*notes, *((before + fence.start + 1, fence.note) for fence in fences if fence.note)],
    )


def _path_problems(project: Project, name: str) -> Iterator[NotebookError]:
    if not is_unicode(name):
        yield NotebookError(name, "its path is not UTF-8", "", "Rename it")
    elif is_implementation(name) and (other := next((char for char in name if not char.isascii()), "")):
        known = unicodedata.name(other, f"U+{ord(other):04X}")
        what = f"its path has the character {other!r} ({known}), which may look like another one"
        yield NotebookError(name, what, "A path of ASCII characters", "Rename the file or the folder")
    if page := replaced_page(project.root, name):
        what = f"its page, or its operator's, would be {page}, which kbt generates"
        yield NotebookError(name, what, "Another name", "Rename the file or the folder")


def _read(project: Project, path: Path, name: str, problems: list[NotebookError]) -> tuple[bytes, str]:
    """Return the bytes and the text of a notebook; empty if it cannot be read."""
    data = b""
    try:
        data = project.variants[name] if name in project.variants else read_file(path)
        if len(data) <= LONGEST:
            return data, data.decode("utf-8-sig").replace("\r\n", "\n")
        what = f"has {len(data):,} bytes, so its page would not be made in a reasonable time"
        problems.append(NotebookError(name, what, f"At most {LONGEST:,}", "Split it"))
    except OSError as error:
        problems.append(NotebookError(name, f"cannot be read ({error.strerror})"))
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        problems.append(NotebookError(f"{name}:{line}", "is not UTF-8", "", "Save the file as UTF-8"))
    return data, ""
