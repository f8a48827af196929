"""What templates print of a notebook: its text, cells and artifacts, made ready for one page."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from markupsafe import Markup

from kernels_bench_tools.report.artifacts import Artifact
from kernels_bench_tools.report.chart.svg import SeriesName
from kernels_bench_tools.report.code import highlighted
from kernels_bench_tools.report.logs import Log, is_long, log_files, read_log
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.report.paths import SitePaths
from kernels_bench_tools.report.previews import ArtifactView, link, missing, preview
from kernels_bench_tools.report.prose import Html, Part, Placeholder
from kernels_bench_tools.report.words import Mark, status_mark
from kernels_bench_tools.schema.build import CellRun, NotebookRun


@dataclass(frozen=True)
class CellView:
    """A cell as a page shows it."""

    run: CellRun
    mark: Mark
    code: Markup
    ids: Mapping[str, str]
    """Ids of the cell, its code and its output, as uvnote names them."""
    logs: Sequence[tuple[Log, str]]
    """What it printed, each with the URL of the whole of it if a part is left out."""
    artifacts: Sequence[ArtifactView]
    script: str
    """URL of its code as a file."""


@dataclass(frozen=True)
class View:
    """One part of a page; exactly one of the fields beside ``kind`` is set, or none."""

    kind: str
    """``html``, ``cell``, ``artifact``, or a place for ``contents``, ``operators`` or ``results``."""
    html: Markup | None = None
    cell: CellView | None = None
    artifact: ArtifactView | None = None


@dataclass(frozen=True)
class Viewer:
    """Makes the parts of one page."""

    page: Page
    root: Path
    paths: SitePaths
    notebook: NotebookRun
    artifacts: Sequence[Artifact]
    names: Mapping[str, SeriesName]

    def parts(self, parts: Iterable[Part]) -> list[View]:
        """Return the views of a notebook's parts, in their order."""
        return [self._part(part) for part in parts]

    def _part(self, part: Part) -> View:
        if isinstance(part, CellRun):
            return View("cell", cell=self._cell(part))
        if isinstance(part, Html):
            return View("html", html=part.html)
        return self._placeholder(part)

    def _placeholder(self, part: Placeholder) -> View:
        if not part.artifact:
            return View(part.name)
        found = [artifact for artifact in self.artifacts if artifact.name == part.artifact]
        if found:
            return View("artifact", artifact=preview(found[-1], self.page, self.names))
        return View("artifact", artifact=missing(part.artifact))

    def _cell(self, cell: CellRun) -> CellView:
        artifacts = [artifact for artifact in self.artifacts if artifact.cell == cell.id]
        return CellView(
            run=cell,
            mark=status_mark(cell.status),
            code=highlighted(cell.code),
            ids={kind: self.page.unique_id(f"{kind}-{cell.id}") for kind in ("cell", "code", "output")},
            logs=[self._log(cell, name, file) for name, file in log_files(self.root, cell).items()],
            artifacts=[link(artifact, self.page) for artifact in artifacts],
            script=self.page.url(self.paths.script(self.notebook.path, cell.id)),
        )

    def _log(self, cell: CellRun, name: str, file: Path) -> tuple[Log, str]:
        whole = self.page.url(self.paths.log(self.notebook.path, cell.id, name)) if is_long(file) else ""
        return read_log(name, file), whole
