"""The parts of a notebook on a page: text, cells with their logs, and artifacts."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from markupsafe import Markup

from kernels_bench_tools.report.artifacts import Artifact, ArtifactPreview, link, missing, preview
from kernels_bench_tools.report.labels import Label, status_label
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.report.paths import SitePaths
from kernels_bench_tools.schema.build import CellRun, NotebookRun

OPERATORS = "operators"
"""The placeholder of the operators' sections."""
MAX_LOG_BYTES = 40_000
"""A longer log is shortened on the page, and linked to as a file."""
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff\ufffe\uffff]")


@dataclass(frozen=True)
class Heading:
    """A heading of the second level, for the table of contents."""

    id: str
    text: str


@dataclass(frozen=True)
class Html:
    """Rendered prose, of one chapter at most."""

    html: Markup
    heading: Heading | None = None
    """The heading that it begins with."""


@dataclass(frozen=True)
class Placeholder:
    """A line ``![operators]`` or ``![artifact:latency.svg]``."""

    name: str
    """For ``![operators: layer_norm, rotary]`` without the colon and what follows it."""

    @property
    def artifact(self) -> str:
        """Name of the artifact; empty for any other placeholder."""
        return self.name.removeprefix("artifact:") if self.name.startswith("artifact:") else ""


Part = Html | Placeholder | CellRun


@dataclass
class Body:
    """A notebook's text."""

    title: Markup | None = None
    """The notebook's first heading, which becomes the page's."""
    title_id: str = ""
    parts: list[Part] = field(default_factory=list)

    def introduction(self) -> int:
        """Return how many parts come before the first chapter or cell."""
        for index, part in enumerate(self.parts):
            if isinstance(part, CellRun) or (isinstance(part, Html) and part.heading):
                return index
        return len(self.parts)


@dataclass(frozen=True)
class Log:
    """A log on a page."""

    name: str
    text: str
    omitted: int
    """Bytes that were left out of the middle."""


def log_files(root: Path, cell: CellRun) -> dict[str, Path]:
    """Return the logs of a cell by the names of their streams."""
    named = {"stdout": cell.stdout, "stderr": cell.stderr, "environment": cell.environment_log}
    return {name: root / path for name, path in named.items() if path and (root / path).is_file()}


def is_long(file: Path) -> bool:
    """Whether a page shows only a part of this log."""
    return file.stat().st_size > MAX_LOG_BYTES


def read_log(name: str, file: Path) -> Log:
    """Return a log as text without terminal codes, shortened in the middle."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        if size <= MAX_LOG_BYTES:
            return Log(name, _decoded(stream.read()), 0)
        head = stream.read(MAX_LOG_BYTES // 2)
        stream.seek(size - MAX_LOG_BYTES // 2)
        tail = stream.read()
    return Log(name, f"{_decoded(head)}\n…\n{_decoded(tail)}", size - MAX_LOG_BYTES)


def _decoded(data: bytes) -> str:
    return plain_text(data.decode(errors="replace"))


def plain_text(text: str) -> str:
    """Return a process's output without terminal codes, with line feeds only."""
    text = _ANSI.sub("", text).replace("\r\n", "\n")
    # A progress bar returns to the start of its line; a terminal shows its last state.
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in text.split("\n"))
    return _CONTROL.sub("\ufffd", "\n".join(lines))


@dataclass(frozen=True)
class CellSection:
    """A cell as a page shows it."""

    run: CellRun
    label: Label
    code: Markup
    ids: Mapping[str, str]
    """Ids of the cell, its code and its output, as in uvnote."""
    logs: Sequence[tuple[Log, str]]
    """Its logs, each with the URL of the complete file if it is shortened."""
    artifacts: Sequence[ArtifactPreview]
    script: str
    """URL of its code as a file."""


@dataclass(frozen=True)
class PagePart:
    """One part of a page; at most one of the fields after ``kind`` is set."""

    kind: str
    """``html``, ``cell``, ``artifact``, or a placeholder: ``contents``, ``operators`` or ``results``."""
    html: Markup | None = None
    cell: CellSection | None = None
    artifact: ArtifactPreview | None = None


@dataclass(frozen=True)
class PartBuilder:
    """Builds the parts of one page."""

    page: Page
    root: Path
    paths: SitePaths
    notebook: NotebookRun
    artifacts: Sequence[Artifact]

    def parts(self, parts: Iterable[Part]) -> list[PagePart]:
        """Return the parts of a page for the parts of a notebook, in their order."""
        return [self._part(part) for part in parts]

    def _part(self, part: Part) -> PagePart:
        if isinstance(part, CellRun):
            return PagePart("cell", cell=self._cell(part))
        if isinstance(part, Html):
            return PagePart("html", html=part.html)
        return self._placeholder(part)

    def _placeholder(self, part: Placeholder) -> PagePart:
        if not part.artifact:
            return PagePart(part.name)
        found = [artifact for artifact in self.artifacts if artifact.name == part.artifact]
        if found:
            return PagePart("artifact", artifact=preview(found[-1], self.page))
        return PagePart("artifact", artifact=missing(part.artifact))

    def _cell(self, cell: CellRun) -> CellSection:
        from kernels_bench_tools.report.prose import highlighted  # imports Pygments

        artifacts = [artifact for artifact in self.artifacts if artifact.cell == cell.id]
        return CellSection(
            run=cell,
            label=status_label(cell.status),
            code=highlighted(cell.code),
            ids={kind: self.page.unique_id(f"{kind}-{cell.id}") for kind in ("cell", "code", "output")},
            logs=[self._log(cell, name, file) for name, file in log_files(self.root, cell).items()],
            artifacts=[link(artifact, self.page) for artifact in artifacts],
            script=self.page.url(self.paths.script(self.notebook.path, cell.id)),
        )

    def _log(self, cell: CellRun, name: str, file: Path) -> tuple[Log, str]:
        whole = self.page.url(self.paths.log(self.notebook.path, cell.id, name)) if is_long(file) else ""
        return read_log(name, file), whole
