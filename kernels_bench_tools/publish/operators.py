"""The operators of a build: their notebooks, and the summary that their combine cell left."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kernels_bench_tools.naming import title_from_name
from kernels_bench_tools.publish.artifacts import Artifact, notebook_artifacts
from kernels_bench_tools.publish.devices import DeviceViews, by_device, view_slug
from kernels_bench_tools.publish.numbers import times, times_interval
from kernels_bench_tools.publish.paths import SitePaths
from kernels_bench_tools.publish.svg import SeriesName
from kernels_bench_tools.publish.words import status_mark
from kernels_bench_tools.runs import CellRun, NotebookRun, read_struct
from kernels_bench_tools.summaries import DeviceSummary, Row, Summary

IMPLEMENTATIONS, RESULTS = "impls", "results"
LATENCY = "latency.svg"


@dataclass(frozen=True)
class Operator:
    """An operator's part of a build."""

    folder: str
    title: str
    description: str
    index: NotebookRun | None
    implementations: Sequence[NotebookRun]
    combined: Sequence[NotebookRun]
    artifacts: Sequence[Artifact]
    """What its combine notebooks left."""
    summary: Summary | None
    problem: str
    """Why there is no summary; empty if there is one."""

    @property
    def page(self) -> str:
        """Site path of the operator's page."""
        return posixpath.join(self.folder, "index.html")

    @property
    def figures(self) -> list[Artifact]:
        """The figures that its pages show."""
        return [artifact for artifact in self.artifacts if artifact.suffix == "svg" and artifact.exists]

    @property
    def chart(self) -> Artifact | None:
        """The figure that is shown where there is room for one: that of the latencies."""
        figures = self.figures
        return next((figure for figure in figures if figure.name == LATENCY), figures[0] if figures else None)

    @property
    def views(self) -> list[DeviceSummary]:
        """What is known, view by view; empty without a summary."""
        return self.summary.devices if self.summary else []

    @property
    def devices(self) -> list[DeviceViews]:
        """What is known of each device; empty without a summary."""
        return by_device(self.views)

    @property
    def names(self) -> dict[str, SeriesName]:
        """What a reader is told about each series of the figures."""
        return {
            row.slug: SeriesName(
                row.title, ", ".join(filter(None, [view.device.name, view.view])), _note(row), view_slug(view)
            )
            for view in self.views
            for row in view.rows
        }

    def notebook(self, implementation: str) -> NotebookRun | None:
        """Return the notebook of an implementation; None if the project no longer has it."""
        path = posixpath.join(self.folder, IMPLEMENTATIONS, f"{implementation}.md")
        return next((notebook for notebook in self.implementations if notebook.path == path), None)

    def rows(self, implementation: str) -> list[tuple[DeviceSummary, Row]]:
        """Return what is known of an implementation, view by view."""
        return [
            (view, row) for view in self.views for row in view.rows if row.implementation == implementation
        ]


def _note(row: Row) -> str:
    if row.baseline and row.passed:
        return "baseline"
    if row.speedup is not None:
        bounds = times_interval(row.speedup_low, row.speedup_high)
        return f"{' '.join(filter(None, [times(row.speedup), bounds]))} the baseline's speed"
    return f"{status_mark(row.status).word}{f': {row.reason}' if row.reason else ''}"


def implementation_id(notebook: NotebookRun) -> str:
    """Return the id of the implementation that a notebook holds: the stem of its file."""
    return posixpath.splitext(posixpath.basename(notebook.path))[0]


def notebook_title(notebook: NotebookRun) -> str:
    """Return a notebook's title, or one made from its path."""
    stem = implementation_id(notebook)
    folder = posixpath.basename(posixpath.dirname(notebook.path))
    return notebook.front.title or title_from_name(folder if stem == "index" and folder else stem)


def find_operators(root: Path, paths: SitePaths, notebooks: Sequence[NotebookRun]) -> list[Operator]:
    """Return the operators, which are the folders with implementations or results, in their order."""
    by_path = {notebook.path: notebook for notebook in notebooks}
    folders = {
        posixpath.dirname(posixpath.dirname(path))
        for path in by_path
        if posixpath.basename(posixpath.dirname(path)) in {IMPLEMENTATIONS, RESULTS}
    }
    return [_operator(root, paths, folder, by_path) for folder in sorted(folders) if folder]


def _operator(root: Path, paths: SitePaths, folder: str, by_path: Mapping[str, NotebookRun]) -> Operator:
    def within(subfolder: str) -> list[NotebookRun]:
        path = posixpath.join(folder, subfolder)
        return [by_path[name] for name in sorted(by_path) if posixpath.dirname(name) == path]

    index = by_path.get(posixpath.join(folder, "index.md"))
    combined = within(RESULTS)
    artifacts = [found for notebook in combined for found in notebook_artifacts(root, paths, notebook)]
    summary, problem = _summary(artifacts, [cell for notebook in combined for cell in notebook.cells])
    return Operator(
        folder=folder,
        title=notebook_title(index) if index else title_from_name(posixpath.basename(folder)),
        description=index.front.description if index else "",
        index=index,
        implementations=within(IMPLEMENTATIONS),
        combined=combined,
        artifacts=artifacts,
        summary=summary,
        problem=problem,
    )


def _summary(artifacts: Sequence[Artifact], cells: Sequence[CellRun]) -> tuple[Summary | None, str]:
    """Return the summary, or why there is none."""
    file = next((artifact.file for artifact in artifacts if artifact.name == "summary.json"), None)
    if file is not None:
        try:
            return read_struct(file, Summary), ""
        except OSError as error:
            return None, f"summary.json cannot be read: {error.strerror}"
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            return None, f"summary.json is not a summary: {error}"
    failed = next((cell for cell in cells if cell.status is not None and not cell.status.ran), None)
    if failed is not None:
        return None, f"cell {failed.id} ended as {status_mark(failed.status).word}: {failed.reason}".rstrip(
            ": "
        )
    if not cells:
        return None, "there is no combine notebook in its results folder"
    return None, "its combine notebook has not run" if cells[0].status is None else "it left no summary.json"
