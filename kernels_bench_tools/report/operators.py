"""The operators of a build: their notebooks, and the summary that their combine cell wrote."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import msgspec

from kernels_bench_tools.errors import NotebookError, ProjectError
from kernels_bench_tools.file_io import read_file, read_struct
from kernels_bench_tools.records.build import BuildRun, CellRun, NotebookRun
from kernels_bench_tools.records.code import has_other_code
from kernels_bench_tools.records.committed import is_linked, record_files
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.model import OPERATORS as MODEL_OPERATORS
from kernels_bench_tools.records.notebook import is_implementation, operator_of
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.settings import OPERATORS as OWN_OPERATORS
from kernels_bench_tools.records.settings import operator_modules, operators_folder
from kernels_bench_tools.records.summary import DeviceSummary, Point, Row, Summary
from kernels_bench_tools.report.artifacts import Artifact, ChartPanel, notebook_artifacts
from kernels_bench_tools.report.cells import OPERATORS
from kernels_bench_tools.report.labels import Label, cell_label, status_label
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.report.paths import KINDS, SitePaths, device_page, page_path, results_page
from kernels_bench_tools.results.counted import Counted, counted
from kernels_bench_tools.results.tables import DeviceResults, ViewRow, by_device, kind_of, view_slug
from kernels_bench_tools.text.names import title_from_name
from kernels_bench_tools.text.tables import grouped
from kernels_bench_tools.text.words import abbreviated, did_you_mean

LATENCY = "latency.svg"
_NAMES = re.compile(r"^!\[(operators|family):([^\]\n]*)\]", re.MULTILINE)
"""Placeholders with names."""


@dataclass(frozen=True)
class Implementation:
    """An implementation of an operator: its notebook and its rows, one of which may be missing."""

    id: str
    notebook: NotebookRun | None
    """None if the project no longer has it."""
    rows: Sequence[ViewRow]

    @property
    def title(self) -> str:
        if self.rows:
            return self.rows[0][1].title
        return notebook_title(self.notebook) if self.notebook else self.id

    @property
    def description(self) -> str:
        if self.notebook:
            return self.notebook.front.description
        return self.rows[0][1].description if self.rows else ""

    @property
    def family(self) -> str:
        return self.notebook.front.family if self.notebook else self.rows[0][1].family if self.rows else ""

    @property
    def status(self) -> tuple[Label, str]:
        """Status and reason of the first cell that is not all right, else of the first cell."""
        cells = [cell for cell in self.notebook.cells if not cell.commented] if self.notebook else []
        if not cells:
            return status_label(None), ""
        shown = next((cell for cell in cells if cell.status not in {None, Status.OK}), cells[0])
        return cell_label(shown), shown.expected or shown.reason


@dataclass(frozen=True)
class OperatorReport:
    root: Path
    build: BuildRun
    folder: str
    title: str
    description: str
    index: NotebookRun | None
    implementations: Sequence[NotebookRun]
    combined: Sequence[NotebookRun]
    artifacts: Sequence[Artifact]
    record_files: Sequence[Path]
    refused_files: Sequence[Path]
    """Links and other special files beside them, which are not read."""
    summary: Summary | None
    has_file: bool
    """Whether the summary is an artifact of a combine cell; otherwise it was made from the records."""
    problem: str
    """Why there is no summary; empty if there is one."""

    @property
    def shared_notebooks(self) -> list[NotebookRun]:
        """Its notebooks that are not of one implementation."""
        return [*self.combined, *([self.index] if self.index else [])]

    @cached_property
    def counted(self) -> Counted:
        """Its records, which are read for pages that show more of them than the summary has."""
        return counted(self.root, self.folder, self.build)

    @property
    def page(self) -> str:
        return results_page(self.folder, "")

    @cached_property
    def figures(self) -> list[Artifact]:
        return [artifact for artifact in self.artifacts if artifact.suffix == "svg" and artifact.exists]

    @cached_property
    def chart(self) -> Artifact | None:
        """The latency chart, or the first figure if there is none."""
        figures = self.figures
        return next((figure for figure in figures if figure.name == LATENCY), figures[0] if figures else None)

    @property
    def panels(self) -> list[ChartPanel]:
        """Those of its chart; none if it is not of ours."""
        return self.chart.panels if self.chart else []

    @property
    def first_chart(self) -> str:
        """The metric that its chart shows first; empty if it is not of ours."""
        return self.panels[0].chart if self.panels else ""

    @property
    def views(self) -> list[DeviceSummary]:
        """Its results by device and view; empty without a summary."""
        return self.summary.devices if self.summary else []

    @cached_property
    def results_pages(self) -> dict[str, str]:
        """The page of each kind of results that it has; the first kind is on its main page."""
        kinds = set(map(kind_of, self.views))
        present = [kind for kind in KINDS if kind in kinds]
        return {kind: results_page(self.folder, kind if at else "") for at, kind in enumerate(present)}

    @property
    def further_pages(self) -> dict[str, str]:
        return {kind: path for kind, path in self.results_pages.items() if path != self.page}

    @property
    def pages(self) -> list[tuple[str, str]]:
        """Title and path of its pages: the main one, those of further kinds of results, and those of combine notebooks."""
        pages = [(KINDS[""], self.page), *((KINDS[kind], path) for kind, path in self.further_pages.items())]
        for notebook in self.combined:
            name = notebook_title(notebook).removeprefix(f"{self.title}: ")
            pages.append((name[:1].upper() + name[1:], page_path(notebook.path)))
        return pages

    def page_of(self, view: DeviceSummary) -> str:
        return self.results_pages[kind_of(view)]

    def on(self, path: str) -> OperatorReport:
        """Return the operator with only those views that a page shows."""
        if self.summary is None:
            return self
        views = [view for view in self.views if self.page_of(view) == path]
        return replace(self, summary=msgspec.structs.replace(self.summary, devices=views))

    @cached_property
    def devices(self) -> list[DeviceResults]:
        return by_device(self.views)

    def is_stale(self, row: Row) -> bool:
        """Whether the code of a row's cell changed after it was measured; False if that is not known."""
        notebook = self.notebooks.get(row.implementation)
        return has_other_code(row.provenance, notebook.digests if notebook else {})

    def expected(self, row: Row, point: Point) -> str:
        """Return why a row's notebook expects a failed result; empty if it does not."""
        notebook = self.notebooks.get(row.implementation)
        return notebook.front.expect.get(point.status.value, "") if notebook else ""

    @cached_property
    def notebooks(self) -> Mapping[str, NotebookRun]:
        """The notebook of each implementation that the project still has."""
        return {implementation_id(notebook): notebook for notebook in self.implementations}

    def urls(self, page: Page) -> dict[str, str]:
        names = [*self.notebooks, *(row.implementation for _, row in self.rows)]
        notebooks = {name: self.notebook_of(name) for name in names}
        return {name: page.url(page_path(it.path)) for name, it in notebooks.items() if it}

    def view_url(self, view: DeviceSummary, page: Page) -> str:
        return f"{page.url(self.page_of(view))}#{view_slug(view)}"

    @cached_property
    def anchors(self) -> set[str]:
        """Ids of its devices and views, which are the same on every page that shows them."""
        return {view.device.slug for view in self.views} | {view_slug(view) for view in self.views}

    @cached_property
    def rows(self) -> list[ViewRow]:
        return [(view, row) for view in self.views for row in view.rows]

    def rows_of(self, notebook: NotebookRun) -> list[ViewRow]:
        """Return the rows of all implementations that a notebook measures, view by view."""
        return [pair for pair in self.rows if self.notebook_of(pair[1].implementation) is notebook]

    def notebook_of(self, implementation: str) -> NotebookRun | None:
        """Return the notebook of an implementation; one with several cells measures several."""
        return self.notebooks.get(implementation) or self._shared_notebooks.get(implementation)

    @cached_property
    def _shared_notebooks(self) -> dict[str, NotebookRun]:
        by_path = {notebook.path: notebook for notebook in self.implementations}
        paths = {row.implementation: row.provenance.notebook for _, row in self.rows}
        return {name: by_path[path] for name, path in paths.items() if path in by_path}

    @property
    def entries(self) -> list[Implementation]:
        """All implementations: the fastest of the first view first, those without results last."""
        rows = grouped((row.implementation, (view, row)) for view, row in self.rows)
        ranked = [row.implementation for _, row in self.rows if row.rank is not None]
        names = dict.fromkeys([*ranked, *rows])
        shown = {notebook.path for name in names if (notebook := self.notebook_of(name))}
        names |= {name: None for name, notebook in self.notebooks.items() if notebook.path not in shown}
        return [Implementation(name, self.notebook_of(name), rows.get(name, [])) for name in names]


def implementation_id(notebook: NotebookRun) -> str:
    """Return the id of the implementation that a notebook holds: the stem of its file."""
    return posixpath.splitext(posixpath.basename(notebook.path))[0]


def notebook_title(notebook: NotebookRun) -> str:
    stem = implementation_id(notebook)
    folder = posixpath.basename(posixpath.dirname(notebook.path))
    return notebook.front.title or title_from_name(folder if stem == "index" and folder else stem)


def find_operators(
    root: Path,
    paths: SitePaths,
    build: BuildRun,
    summaries: Mapping[str, Summary],
) -> list[OperatorReport]:
    """Return the operators, which are the folders with implementations or results.

    ``summaries`` are those of operators whose combine cells wrote none, by folder.
    Those that the front page names, ``![operators: layer_norm, rotary]``, come first and in its order; then the others
    by title.
    """
    ordered = sorted(build.notebooks, key=lambda notebook: notebook.path)
    by_path = {notebook.path: notebook for notebook in ordered}
    operators = [
        _operator(root, paths, build, folder, own, summaries.get(folder))
        for folder, own in grouped((operator_of(notebook.path), notebook) for notebook in ordered).items()
        if folder
    ]
    front = by_path.get("index.md")
    named = next(
        (_split(names) for kind, names in _NAMES.findall(front.prose if front else "") if kind == OPERATORS),
        [],
    )
    place = {folder: number for number, folder in reversed(list(enumerate(named)))}
    return sorted(
        operators, key=lambda it: (place.get(it.folder, len(named)), it.title.casefold(), it.folder)
    )


@dataclass(frozen=True)
class ReportDevice:
    device: Device
    path: str
    operators: Sequence[tuple[OperatorReport, DeviceResults]]

    @property
    def views(self) -> list[DeviceSummary]:
        return [view for _, device in self.operators for view in device.views]

    @property
    def rows(self) -> int:
        return sum(len(view.rows) for view in self.views)


def find_devices(operators: Iterable[OperatorReport]) -> list[ReportDevice]:
    """Return the devices of all operators: GPUs first, then those with most rows."""
    results = grouped(
        (device.device.slug, (operator, device)) for operator in operators for device in operator.devices
    )
    devices = [ReportDevice(pairs[0][1].device, device_page(slug), pairs) for slug, pairs in results.items()]
    return sorted(devices, key=lambda it: (it.device.kind == "cpu", -it.rows, it.device.slug))


def model_operators(root: Path, operators: Iterable[OperatorReport]) -> dict[str, OperatorReport]:
    """Return the operators that compute kernels of models, by the name of the one that comes with this package.

    A module of the project's own that has such a name is another operator, unless it has workload sets of models, too.
    """
    folder = None
    with suppress(ProjectError):  # a cell has damaged the file meanwhile
        folder = operators_folder(root)
    own = operator_modules(folder or root / OWN_OPERATORS)
    others = {name for name, file in own.items() if b"model_sets(" not in read_file(file)}
    named = ((operator.folder.rpartition("/")[2], operator) for operator in operators)
    return {name: operator for name, operator in named if name in MODEL_OPERATORS - others}


def _split(names: str) -> list[str]:
    return [name for part in names.split(",") if (name := part.strip().strip("/"))]


def unknown_names(
    where: str, text: str, operators: Collection[str], families: Collection[str]
) -> Iterator[NotebookError]:
    """Yield an error for each name in ``![operators: …]`` and ``![family: …]`` that is of no operator or family."""
    for kind, names in _NAMES.findall(text):
        known = sorted(filter(None, operators if kind == OPERATORS else families))
        otherwise = f"One of {abbreviated(known)}" if known else ""
        for name in _split(names) if kind == OPERATORS else [names.strip()]:
            if name not in known:
                what = f"![{kind}: …] names {name!r}, but this project has no such {kind.removesuffix('s')}"
                yield NotebookError(where, what, "", did_you_mean(name, known, otherwise))


def _operator(
    root: Path,
    paths: SitePaths,
    build: BuildRun,
    folder: str,
    notebooks: Sequence[NotebookRun],
    of_records: Summary | None,
) -> OperatorReport:
    own = posixpath.join(folder, "index.md")
    index = next((notebook for notebook in build.notebooks if notebook.path == own), None)
    implementations = [notebook for notebook in notebooks if is_implementation(notebook.path)]
    combined = [notebook for notebook in notebooks if notebook not in implementations]
    artifacts = [artifact for notebook in combined for artifact in notebook_artifacts(root, paths, notebook)]
    cells = [cell for notebook in combined for cell in notebook.cells]
    summary, problem = _summary(artifacts, cells)
    # Without a workload it has only the reasons of cells that did not run, which the implementations show.
    if (
        summary is None
        and of_records is not None
        and any(view.workloads for view in (*of_records.devices, *of_records.drawn))
    ):
        failed = any(cell.status not in {None, Status.OK, Status.UNSUPPORTED} for cell in cells)
        summary, problem = of_records, problem if failed else ""
    not_run = {None, Status.UNSUPPORTED}
    if not combined and all(
        cell.status in not_run for notebook in implementations for cell in notebook.cells
    ):
        problem = ""  # there is nothing to combine yet
    committed = record_files(root / folder)
    refused = [file for file in committed if is_linked(file) or not file.is_file()]
    return OperatorReport(
        root=root,
        build=build,
        folder=folder,
        title=notebook_title(index) if index else title_from_name(posixpath.basename(folder)),
        description=index.front.description if index else "",
        index=index,
        implementations=implementations,
        combined=combined,
        artifacts=artifacts,
        record_files=[file for file in committed if file not in refused],
        refused_files=refused,
        summary=summary,
        has_file=summary is not None and summary is not of_records,
        problem=problem,
    )


def _summary(artifacts: Sequence[Artifact], cells: Sequence[CellRun]) -> tuple[Summary | None, str]:
    file = next((artifact.file for artifact in artifacts if artifact.name == "summary.json"), None)
    if file is not None:
        try:
            return read_struct(file, Summary), ""
        except OSError as error:
            return None, f"summary.json cannot be read: {error.strerror}"
        except msgspec.DecodeError as error:
            return None, f"summary.json is not a summary: {error}"
    failed = next((cell for cell in cells if cell.status is not None and not cell.status.ran), None)
    if failed is not None:
        status = status_label(failed.status).word
        return None, f"cell {failed.id} failed ({status}): {failed.reason}".rstrip(": ")
    if not cells:
        return None, "there is no combine notebook in its results folder"
    why = "has not run" if cells[0].status is None else "wrote no summary.json"
    return None, f"its combine notebook {why}"
