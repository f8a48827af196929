"""The parts of a notebook on a page: text, cells with their logs, and artifacts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from markupsafe import Markup

from kernels_bench_tools.file_io import open_regular, read_file
from kernels_bench_tools.records.build import CellRun, NotebookRun
from kernels_bench_tools.report.artifacts import Artifact, ArtifactPreview, link, preview
from kernels_bench_tools.report.labels import Label, cell_label
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.report.paths import SitePaths
from kernels_bench_tools.text.hiding import visible, without_private, without_styles

OPERATORS = "operators"
"""The placeholder of the operators' sections."""
MAX_LOG_BYTES = 40_000
"""A longer log is shortened on the page, and linked to as a file."""


@dataclass(frozen=True)
class Heading:
    """A heading of the second level, for the table of contents."""

    id: str
    text: str


@dataclass(frozen=True)
class BodyPart:
    """A part of a notebook's text: rendered prose of one chapter at most, a cell, or a placeholder."""

    kind: str
    """``html``, ``cell``, or a placeholder: ``artifact``, ``contents``, ``operators`` or ``results``."""
    html: Markup | None = None
    heading: Heading | None = None
    """The heading that the prose begins with."""
    cell: CellRun | None = None
    name: str = ""
    """Name of an artifact."""


@dataclass
class Body:
    title: Markup | None = None
    """The notebook's first heading, which becomes the page's."""
    title_id: str = ""
    parts: list[BodyPart] = field(default_factory=list)

    def introduction(self) -> int:
        """Return how many parts come before the first chapter or cell."""
        for index, part in enumerate(self.parts):
            if part.cell or part.heading:
                return index
        return len(self.parts)


@dataclass(frozen=True)
class Log:
    name: str
    text: str
    omitted: int = 0
    """Bytes that were left out of the middle."""
    whole: str = ""
    """URL of the complete file if something was left out."""


def log_files(root: Path, cell: CellRun) -> dict[str, Path]:
    """Return the logs of a cell by the names of their streams."""
    named = {"stdout": cell.stdout, "stderr": cell.stderr, "environment": cell.environment_log}
    return {name: root / path for name, path in named.items() if path and (root / path).is_file()}


def is_long(file: Path) -> bool:
    """Whether a page shows only a part of this log."""
    return file.stat().st_size > MAX_LOG_BYTES


def read_log(name: str, file: Path, url: str) -> Log:
    """Return a log as text without terminal codes, shortened in the middle; the whole file is at ``url``."""
    if not is_long(file):
        return Log(name, _decoded(read_file(file)))
    size = file.stat().st_size
    with open_regular(file) as stream:
        head = stream.read(MAX_LOG_BYTES // 2)
        stream.seek(size - MAX_LOG_BYTES // 2)
        tail = stream.read()
    return Log(name, f"{_decoded(head)}\n…\n{_decoded(tail)}", size - MAX_LOG_BYTES, url)


def _decoded(data: bytes) -> str:
    return plain_text(data.decode(errors="replace"))


def plain_text(text: str) -> str:
    """Return a process's output without terminal codes, with line feeds only."""
    text = without_styles(text).replace("\r\n", "\n")
    # A progress bar returns to the start of its line; a terminal shows its last state.
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return visible("\n".join(lines))


@dataclass(frozen=True)
class CellSection:
    run: CellRun
    label: Label
    code: Markup
    ids: Mapping[str, str]
    """Ids of the cell, its code and its output, as in uvnote."""
    logs: Sequence[Log]
    artifacts: Sequence[ArtifactPreview]
    script: str
    """URL of its code as a file."""


@dataclass(frozen=True)
class CellViews:
    page: Page
    root: Path
    paths: SitePaths
    notebook: NotebookRun
    artifacts: Sequence[Artifact]

    def preview(self, name: str) -> ArtifactPreview:
        """Return the artifact of this name, which may be missing."""
        named = [artifact for artifact in self.artifacts if artifact.name == name]
        return preview(named[-1], self.page) if named else ArtifactPreview(name, "", "", "file")

    def cell(self, cell: CellRun) -> CellSection:
        from kernels_bench_tools.report.markup import highlighted  # imports Pygments

        artifacts = [artifact for artifact in self.artifacts if artifact.cell == cell.id]
        return CellSection(
            run=cell,
            label=cell_label(cell),
            code=highlighted(without_private(cell.code)),
            ids={kind: self.page.unique_id(f"{kind}-{cell.id}") for kind in ("cell", "code", "output")},
            logs=[
                read_log(name, file, self.page.url(self.paths.log(self.notebook.path, cell.id, name)))
                for name, file in log_files(self.root, cell).items()
            ],
            artifacts=[link(artifact, self.page) for artifact in artifacts],
            script=self.page.url(self.paths.script(self.notebook.path, cell.id)),
        )
