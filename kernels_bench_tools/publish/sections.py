"""What a page shows of an operator: its figures, its downloads and who implements it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import zip_longest

from kernels_bench_tools.publish.operators import Operator, implementation_id, notebook_title
from kernels_bench_tools.publish.page import Page
from kernels_bench_tools.publish.paths import SitePaths
from kernels_bench_tools.publish.previews import ArtifactView, link, preview
from kernels_bench_tools.publish.prose import Heading, Html, Part, Placeholder
from kernels_bench_tools.publish.words import Mark, status_mark
from kernels_bench_tools.runs import NotebookRun
from kernels_bench_tools.summaries import DeviceSummary, Row


@dataclass(frozen=True)
class ImplementationView:
    """An implementation in a table."""

    title: str
    description: str
    url: str
    """Empty if the project no longer has its notebook."""
    rows: Sequence[Row | None]
    """What is known of it on each of the operator's devices."""
    mark: Mark
    reason: str
    """How its cells ended, for when there is no summary."""

    @property
    def slugs(self) -> str:
        """The slugs of its series, with a space between."""
        return " ".join(row.slug for row in self.rows if row is not None)


@dataclass(frozen=True)
class DeviceView:
    """A device's results on an operator's page."""

    id: str
    summary: DeviceSummary
    baseline: str
    """Title of the implementation that divides the speed-ups; empty if there is none."""
    urls: dict[str, str]
    """Page of each implementation that has one."""


@dataclass(frozen=True)
class OperatorView:
    """An operator as a page shows it."""

    id: str
    """Of its heading."""
    title: str
    description: str
    url: str
    combined: Sequence[tuple[str, str]]
    """Title and URL of each combine notebook's page."""
    figures: Sequence[ArtifactView]
    downloads: Sequence[ArtifactView]
    devices: Sequence[DeviceView]
    implementations: Sequence[ImplementationView]
    problem: str


def operator_view(operator: Operator, page: Page, paths: SitePaths) -> OperatorView:
    """Return what ``page`` shows of an operator."""
    heading = page.heading_id(operator.title)
    urls = {
        implementation_id(notebook): page.url(paths.pages[notebook.path])
        for notebook in operator.implementations
    }
    return OperatorView(
        id=heading,
        title=operator.title,
        description=operator.description,
        url=page.url(operator.page),
        combined=[
            (notebook_title(notebook), page.url(paths.pages[notebook.path])) for notebook in operator.combined
        ],
        figures=[preview(artifact, page, operator.names) for artifact in operator.figures],
        downloads=[link(artifact, page) for artifact in operator.artifacts],
        devices=[
            DeviceView(page.heading_id(f"device-{device.device.slug}"), device, _baseline(device), urls)
            for device in operator.devices
        ],
        implementations=list(_implementations(operator, urls)),
        problem=operator.problem,
    )


def contents(parts: Sequence[Part], operators: Sequence[OperatorView]) -> list[Heading]:
    """Return the front page's chapters in their order, without the heading of the contents themselves."""
    chapters: list[Heading] = []
    sections = [Heading(operator.id, operator.title) for operator in operators]
    placed = False
    for part, after in zip_longest(parts, parts[1:]):
        if isinstance(part, Html) and part.heading and after != Placeholder("contents"):
            chapters.append(part.heading)
        elif part == Placeholder("operators"):
            chapters += sections
            placed = True
    return chapters if placed else chapters + sections


def _baseline(device: DeviceSummary) -> str:
    return next((row.title for row in device.rows if row.implementation == device.baseline), device.baseline)


def _implementations(operator: Operator, urls: dict[str, str]) -> Iterator[ImplementationView]:
    """Yield every implementation: the fastest of the first device first, those without results last."""
    for name in _in_order(operator):
        rows = {device.device.slug: row for device, row in operator.rows(name)}
        notebook = operator.notebook(name)
        row = next(iter(rows.values()), None)
        end = _worst(notebook)
        yield ImplementationView(
            title=row.title if row else notebook_title(notebook) if notebook else name,
            description=notebook.front.description if notebook else row.description if row else "",
            url=urls.get(name, ""),
            rows=[rows.get(device.device.slug) for device in operator.devices],
            mark=end[0],
            reason=end[1],
        )


def _in_order(operator: Operator) -> Iterable[str]:
    ranked = [row.implementation for device in operator.devices for row in device.rows]
    return dict.fromkeys(ranked + [implementation_id(notebook) for notebook in operator.implementations])


def _worst(notebook: NotebookRun | None) -> tuple[Mark, str]:
    """Return how the first cell that did not end well ended, else how the first one did."""
    cells = [cell for cell in notebook.cells if not cell.commented] if notebook else []
    if not cells:
        return status_mark(None), ""
    bad = next((cell for cell in cells if cell.status is not None and not cell.status.ran), cells[0])
    return status_mark(bad.status), bad.reason
