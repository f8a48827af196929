"""All notebooks of a project with the graph of their cells, and the cells that a command's targets select."""

from __future__ import annotations

import re
import sys
import warnings
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kernels_bench_tools.errors import NotebookError, ProjectError
from kernels_bench_tools.file_io import read_file
from kernels_bench_tools.notebooks.benchmark_calls import find_benchmark_calls
from kernels_bench_tools.notebooks.cell import Cell
from kernels_bench_tools.notebooks.document import Notebook, survey_notebook
from kernels_bench_tools.notebooks.graph import CellName, Graph, build_graph, unknown_cell_hint
from kernels_bench_tools.notebooks.header import has_undated_packages, header_problems
from kernels_bench_tools.notebooks.imports import defined_names, find_imports, not_importable
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.records.notebook import is_implementation, operator_of
from kernels_bench_tools.records.settings import operator_modules, shared_files
from kernels_bench_tools.report.paths import FRONT, KINDS, is_generated, page_path, results_page
from kernels_bench_tools.text.tables import grouped

_HTML = re.compile(
    r"^ {0,3}</?(?:style|script|div|img|button|details|table|iframe|p|center|a|br|span)\b", re.M | re.I
)
"""A line that begins with a tag; others, such as comments, are often meant as text."""
_FENCED = re.compile(r"^ {0,3}(```|~~~).*?^ {0,3}\1", re.MULTILINE | re.DOTALL)


class NotebooksError(NotebookError):
    """Several errors in notebooks: each is in ``problems``, and the message has a line for each."""

    def __init__(self, problems: list[NotebookError]) -> None:
        self.problems = problems
        first = problems[0]
        super().__init__(first.where, first.what, first.expected, first.remedy)

    def __str__(self) -> str:
        return "\n".join(str(problem) for problem in self.problems)


@dataclass(frozen=True)
class Survey:
    """All notebooks of a project, as far as they can be read, and the errors in them."""

    notebooks: dict[str, Notebook]
    graph: Graph

    def problems(self, names: Iterable[str] | None = None) -> list[NotebookError]:
        """Return the errors in these notebooks, or in all, sorted by notebook."""
        problems = []
        for name in sorted(set(self.notebooks if names is None else names)):
            problems += self.notebooks[name].problems
            problems += [error for notebook, error in self.graph.problems if notebook == name]
        return problems

    @property
    def broken(self) -> dict[str, list[str]]:
        """The notebooks with errors, each with all of them."""
        problems = {name: [str(problem) for problem in self.problems([name])] for name in self.notebooks}
        return {name: own for name, own in problems.items() if own}

    def prose(self, names: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield the name of a notebook and its text without fences, for each block of prose of these notebooks."""
        for name in names:
            for block in self.notebooks[name].blocks:
                if isinstance(block, str):
                    yield name, _FENCED.sub("", block)

    def advice(self, names: Iterable[str] | None = None) -> list[str]:
        """Return a line for everything that is allowed but not recommended, such as cells without a date.

        What is the same in several places is told once, with all of them.
        """
        names = list(self.notebooks if names is None else names)
        advice = [line for name in names for line in _advice(self.notebooks[name])]
        places = grouped((what, where) for where, what in (*advice, *self._not_combined(names)))
        return [_told_once(what, where) for what, where in places.items()]

    def _not_combined(self, names: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Yield advice for implementations of which nothing is needed, other than of those in the same folder."""
        needs = {need for node in self.graph.nodes.values() for need in node.needs}
        usual = {need.notebook.rpartition("/")[0]: need.cell for need in sorted(needs)}
        for name in filter(is_implementation, names):
            cells = [cell for cell in self.notebooks[name].active_cells if cell.measures]
            needed = usual.get(name.rpartition("/")[0])
            if cells and needed and not needs & {CellName(name, cell.id) for cell in cells}:
                what = f"its results are not in any table, because the combine notebook reads the cell {needed!r} of each file."
                yield f"{name}:{cells[0].file_line}", f"{what} Write id={needed}."


def survey_project(project: Project) -> Survey:
    """Read every notebook of the project, and resolve every ``needs=``."""
    read = (survey_notebook(project, path) for path in project.notebook_paths())
    notebooks = {notebook.name: notebook for notebook in read}
    graph = build_graph(project, notebooks)
    graph.problems += [*_script_clashes(notebooks.values()), *_page_clashes(notebooks)]
    return Survey(notebooks, graph)


def survey_targets(
    project: Project, targets: Sequence[str], more: Sequence[str] = (), *, strict: bool = False
) -> tuple[Survey, list[CellName]]:
    """Return the project's notebooks, and the selected cells with all that they need, in execution order.

    ``more`` are further targets, if any. Cells of notebooks with errors are among them. The errors are raised if no other
    notebook is selected, if a target is that notebook alone, or if ``strict``.
    """
    survey = survey_project(project)
    selected = select_cells(project, survey, targets)
    cells = survey.graph.closure([*selected, *(select_cells(project, survey, more) if more else ())])
    needed = {*select_notebooks(project, survey, targets), *(cell.notebook for cell in cells)}
    named = [select_notebooks(project, survey, [target]) for target in targets]
    alone = {names[0] for names in named if len(names) == 1}
    wrong = survey.broken.keys() & needed
    if wrong and (strict or wrong == needed or wrong & alone):
        raise NotebooksError(survey.problems(wrong))
    return survey, cells


def select_notebooks(project: Project, survey: Survey, targets: Sequence[str]) -> list[str]:
    """Return the names of the notebooks that ``targets`` select; all without targets."""
    if not targets:
        return list(survey.notebooks)
    paths = project.find_notebooks([_split(target)[0] for target in targets])
    return [project.relative(path) for path in paths]


def select_cells(project: Project, survey: Survey, targets: Sequence[str]) -> list[CellName]:
    """Return the cells that ``targets`` select; all without targets.

    Each is one of :meth:`Project.find_notebooks`, and may end with ``:CELL``; one that matches nothing is an error.
    """
    if not targets:
        return list(survey.graph.nodes)
    selected: set[CellName] = set()
    for target in targets:
        cell = _split(target)[1]
        notebooks = select_notebooks(project, survey, [target])
        cells = [name for name in survey.graph.nodes if name.notebook in notebooks]
        named = [name for name in cells if not cell or name.cell == cell]
        if cell and not named:
            hint = unknown_cell_hint(cell, [name.cell for name in cells])
            raise ProjectError(target, f"there is no cell {cell!r}", "", hint)
        selected.update(named)
    return [name for name in survey.graph.nodes if name in selected]


def _split(target: str) -> tuple[str, str]:
    notebooks, colon, cell = target.rpartition(":")
    return (notebooks, cell) if colon else (target, "")


def module_problems(project: Project) -> list[NotebookError]:
    """Return the errors in the modules of the project's operators, and in what these share: unreadable, or no Python."""
    folder, problems = project.operators_folder, list[NotebookError]()
    paths = [
        *operator_modules(folder).values(),
        *(path for path in shared_files(folder) if path.suffix == ".py"),
        *sorted(path for path in folder.glob("*.py") if not path.is_file()),
    ]
    for path in paths:
        name = project.relative(path)
        try:
            error = _syntax_error(read_file(path))
        except OSError as unread:
            problems.append(NotebookError(name, f"cannot be read ({unread.strerror})", "A Python module"))
            continue
        if error:
            problems.append(
                NotebookError(f"{name}:{error[0] or 1}", f"the code is not valid Python: {error[1]}")
            )
    return problems


def html_advice(project: Project, prose: Iterable[tuple[str, str]]) -> list[str]:
    """Return a line if prose, given with its notebook, has HTML and no setting says what becomes of it."""
    names = list(dict.fromkeys(name for name, text in prose if _HTML.search(text)))
    if not names or project.raw_html is not None:
        return []
    what = "HTML in prose is shown as text. Set `raw_html = true` in [tool.kbt] to keep it, or `false` to hide this note."
    return [_told_once(what, names)]


def _told_once(what: str, places: Sequence[str]) -> str:
    more = f" Also {', '.join(places[1:])}." if places[1:] else ""
    return f"{places[0]}: {what}{more}"


def cell_problems(notebooks: Iterable[Notebook]) -> list[NotebookError]:
    """Return what would make cells fail: mistakes in headers, syntax and imports of cells, and another operator."""
    cells = ((notebook, cell) for notebook in notebooks for cell in notebook.active_cells)
    return [problem for notebook, cell in cells for problem in _cell_problems(notebook, cell)]


def _cell_problems(notebook: Notebook, cell: Cell) -> Iterator[NotebookError]:
    def where(line: int | None) -> str:
        # The code of script= is in another file.
        return f"{notebook.name}:{cell.file_line + (0 if cell.script else line or 0)}"

    folder = notebook.script_path(cell).parent
    for line, *problem in header_problems(cell.code, cell.deps, folder):
        yield NotebookError(where(line), *problem)
    if error := _syntax_error(cell.code):
        number, said = error
        script = f"line {number} of {cell.script}: " if cell.script else ""
        yield NotebookError(where(number), f"{script}the code is not valid Python: {said}")
    imports = find_imports(cell.code, guarded=False)
    for other in notebook.active_cells:
        found_import = imports.get(other.id)
        is_known = other.id in {cell.id, *cell.imported, *sys.stdlib_module_names}
        # What it does not define is taken from a package of this name.
        if found_import and not is_known and found_import.names <= defined_names(other.code):
            what = f"cell {other.id} is imported, but `needs=` does not name it"
            remedy = f"Write needs={','.join([*cell.needs, other.id])}"
            if other.measures:
                what, remedy = not_importable(other.id)
            yield NotebookError(where(found_import.line), what, "", remedy)
    operator = operator_of(notebook.name).rpartition("/")[2]
    is_ours = is_implementation(notebook.name) and "kernels_bench_tools" in cell.code
    for call in find_benchmark_calls(cell.code) if is_ours else ():
        if call.operator not in {None, operator}:
            what = f"run_benchmark is called for {call.operator!r}, but the notebook is in the folder of {operator!r}"
            yield NotebookError(where(call.line), what, f"run_benchmark({operator!r}, ...)")


def _syntax_error(code: str | bytes) -> tuple[int | None, str] | None:
    """Return the line and the message of an error in the syntax of Python code; None if there is none."""
    try:
        with warnings.catch_warnings(action="ignore"):
            compile(code, "cell", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        return getattr(error, "lineno", None), getattr(error, "msg", str(error)) or "it is nested too deeply"
    return None


def _advice(notebook: Notebook) -> Iterator[tuple[str, str]]:
    for line, what in notebook.notes:
        yield f"{notebook.name}:{line}", what
    if is_implementation(notebook.name) and not notebook.active_cells and not notebook.problems:
        yield notebook.name, "has no cell with code, so this implementation is not measured."
    for cell in notebook.active_cells:
        if not cell.named:
            what = "a python fence without `id=` runs as a cell."
            hint = "Add `id=NAME` if it should run; else write ```py."
            yield f"{notebook.name}:{cell.file_line}", f"{what} {hint}"
        if not cell.measures and "kernels_bench_tools" in cell.code and find_benchmark_calls(cell.code):
            what = "the cell calls run_benchmark, but has no `outputs=` for its records."
            yield f"{notebook.name}:{cell.file_line}", f"{what} Add one, such as outputs=softmax.jsonl."
        if has_undated_packages(cell.code, cell.deps):
            what = "the cell has no `[tool.uv] exclude-newer`: later builds may install other packages."
            hint = 'Add `exclude-newer = "YYYY-MM-DDT00:00:00Z"` to its header.'
            yield f"{notebook.name}:{cell.file_line}", f"{what} {hint}"


def _page_clashes(names: Collection[str]) -> Iterator[tuple[str, NotebookError]]:
    """Yield an error for notebooks in a folder that has the name of a page: it would be a file and a folder."""
    operators = filter(None, map(operator_of, names))
    taken = {
        FRONT,
        *map(page_path, names),
        *(results_page(operator, kind) for operator in operators for kind in KINDS),
    }
    for name in names:
        for folder in map(str, PurePosixPath(name).parents):
            if folder in taken or is_generated(folder):
                what = f"its page would be in the folder {folder}, but a page has this name"
                yield name, NotebookError(name, what, "", "Rename the folder")


def _script_clashes(notebooks: Iterable[Notebook]) -> Iterator[tuple[str, NotebookError]]:
    """Yield an error for cells whose scripts have the same path: ``a__b.md:c`` and ``a.md:b__c``."""
    owners: dict[Path, str] = {}
    for notebook in notebooks:
        for cell in notebook.active_cells:
            owner = owners.setdefault(notebook.script_path(cell), notebook.name)
            if owner != notebook.name:
                what = f"the id {cell.id!r} gives the same script name as a cell of {owner}"
                where = f"{notebook.name}:{cell.file_line}"
                yield notebook.name, NotebookError(where, what, "", "Choose another `id=`")
