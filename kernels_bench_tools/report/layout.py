"""The layout of every page: breadcrumbs, navigation and the origin of its numbers."""

from __future__ import annotations

import posixpath
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels_bench_tools.records.build import BuildRun, FrontMatter, NotebookRun, operator_of
from kernels_bench_tools.records.selfcheck import SelfChecks
from kernels_bench_tools.report import paths
from kernels_bench_tools.report.artifacts import Artifact
from kernels_bench_tools.report.cells import Body
from kernels_bench_tools.report.operators import OperatorReport, ReportDevice, notebook_title
from kernels_bench_tools.report.page import Links, Page
from kernels_bench_tools.report.paths import SitePaths
from kernels_bench_tools.results.effects import Effects
from kernels_bench_tools.results.models import Models
from kernels_bench_tools.results.tables import Origin

if TYPE_CHECKING:
    from kernels_bench_tools.results.history import History


@dataclass(frozen=True)
class Site:
    """Everything that pages are made from."""

    build: BuildRun
    root: Path
    paths: SitePaths
    links: Links
    operators: Sequence[OperatorReport]
    devices: Sequence[ReportDevice]
    artifacts: Sequence[Artifact]
    selfchecks: SelfChecks
    models: Models
    model_operators: Mapping[str, OperatorReport]
    """Operators that compute kernels of models, by the name of the one that comes with this package."""
    effects: Effects
    history: History | None = None

    def operator_of(self, path: str) -> OperatorReport | None:
        """Return the operator that a notebook or a page belongs to."""
        folder = operator_of(path) or posixpath.dirname(path)
        return next((operator for operator in self.operators if operator.folder == folder), None)


def blank_notebook(title: str, description: str = "", path: str = "") -> NotebookRun:
    """Return an empty notebook, for a page without one."""
    front = FrontMatter(title=title, description=description)
    return NotebookRun(path=path, digest="", front=front, blocks=[])


def render(
    site: Site,
    template: str,
    page: Page,
    notebook: NotebookRun,
    body: Body | None = None,
    *,
    owner: OperatorReport | None = None,
    parent: tuple[str, str] | None = None,
    origins: Sequence[Origin] = (),
    **context: Any,
) -> str:
    """Return the HTML of a page.

    ``notebook`` is the one that it shows, or a blank one, and ``body`` its text. ``owner`` is the operator that the page
    belongs to, and ``parent`` the title and site path of another page in the breadcrumbs. ``context`` has the other
    variables of the template.
    """
    # A build in which nothing changed need not import Jinja.
    from kernels_bench_tools.report.templates import environment

    project = site.build.project
    title = notebook_title(notebook) if notebook.path != "index.md" else project.title
    above = [(project.title, paths.FRONT), (owner.title, owner.page) if owner else parent]
    body = body or Body()
    related = [("Ranking", owner.page)] if owner else []
    if owner:
        labels = {"models": "Shapes of models", "backward": "Backward"}
        related += [(labels.get(kind, kind), path) for kind, path in owner.further_pages.items()]
        for combined in owner.combined:
            name = notebook_title(combined).removeprefix(f"{owner.title}: ")
            related.append((name[:1].upper() + name[1:], paths.page_path(combined.path)))
    navigation = [
        ("Report", paths.FRONT),
        *([("Models", paths.MODELS)] if site.models.keys else []),
        ("Method", paths.METHOD),
        ("Accuracy", paths.SELFCHECK),
        ("Failures", paths.STATUS),
        ("Devices", paths.DEVICES),
        (paths.REPORT, paths.REPORT),
    ]

    def marked(links: Sequence[tuple[str, str]]) -> list[tuple[str, str, bool]]:
        """Return label, URL, and whether it is this page."""
        return [(label, page.url(path), path == page.path) for label, path in links]

    common = {
        "project": project,
        "page": page,
        "front": notebook.front,
        "notebook": notebook.path,
        # It can hide a verdict or load from other hosts. "</" in a string or comment would end the style element.
        "custom_css": notebook.front.custom_css.replace("</", "<\\/") if project.raw_html else "",
        "title": title,
        "crumb": title.removeprefix(f"{owner.title}: ") if owner else title,
        "parts": body.parts,
        "heading": body.title or notebook.front.title or title,
        "heading_id": body.title_id or page.heading_id("top"),
        "crumbs": [(one[0], page.url(one[1])) for one in above if one and one[1] != page.path],
        "origins": origins,
        "operator": owner,
        "selfcheck_url": page.url(paths.SELFCHECK),
        "method_url": page.url(paths.METHOD),
        "source": site.links.source(notebook.path) if notebook.digest else "",
        "related": marked(related),
        "navigation": marked(navigation),
    }
    return environment().get_template(template).render(common | context)
