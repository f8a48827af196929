"""What surrounds every page: where it stands in the site, where one can go from it, where its numbers come from."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kernels_bench_tools.report.devices import KnownDevice
from kernels_bench_tools.report.links import Links
from kernels_bench_tools.report.operators import IMPLEMENTATIONS, RESULTS, Operator, notebook_title
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.report.paths import SitePaths
from kernels_bench_tools.report.selfchecks import SelfChecks
from kernels_bench_tools.report.site_paths import (
    DEVICES,
    FEED,
    FRONT,
    METHOD,
    REPORT,
    SELFCHECK,
    STATUS,
    backward_page,
    matrix_page,
    operator_feed,
)
from kernels_bench_tools.schema.build import BuildRun, FrontMatter, NotebookRun
from kernels_bench_tools.schema.record_io import RecordHead
from kernels_bench_tools.schema.summary import Report

if TYPE_CHECKING:
    from jinja2 import Environment

    from kernels_bench_tools.report.prose import Body


_STATE = ".kbt"


@dataclass(frozen=True)
class Site:
    """Everything that pages are made from."""

    build: BuildRun
    root: Path
    paths: SitePaths
    links: Links
    operators: Sequence[Operator]
    devices: Sequence[KnownDevice]
    selfchecks: SelfChecks
    read_readings: Callable[[], Mapping[str, Sequence[RecordHead]]]
    """Reads what records say of sentinels; called once, and only if a page of a device is made."""
    previous: Report | None = None
    """An earlier report, to tell what has changed since."""

    @cached_property
    def readings(self) -> Mapping[str, Sequence[RecordHead]]:
        """What records say of sentinels, by the slug of the device."""
        return self.read_readings()

    @cached_property
    def templates(self) -> Environment:
        """Where templates come from."""
        # A build in which nothing changed renders nothing, and need not load what renders.
        from kernels_bench_tools.report.templates import make_environment

        return make_environment(self.root / _STATE)

    @cached_property
    def _by_folder(self) -> Mapping[str, Operator]:
        return {operator.folder: operator for operator in self.operators}

    def operator_of(self, path: str) -> Operator | None:
        """Return the operator that a notebook or a page belongs to."""
        folder = posixpath.dirname(path)
        if posixpath.basename(folder) in {IMPLEMENTATIONS, RESULTS}:
            folder = posixpath.dirname(folder)
        return self._by_folder.get(folder)


def front_crumbs(site: Site, page: Page) -> list[tuple[str, str]]:
    """Return the way to a page that stands below the front page."""
    return [(site.build.project.title, page.url(FRONT))]


def operator_crumbs(site: Site, page: Page, operator: Operator | None) -> list[tuple[str, str]]:
    """Return the way to a page of an operator; to one below the front page if it belongs to none."""
    crumbs = front_crumbs(site, page)
    return crumbs if operator is None else [*crumbs, (operator.title, page.url(operator.page))]


def blank_notebook(title: str, description: str = "") -> NotebookRun:
    """Return what stands for the notebook of a page that has none."""
    front = FrontMatter(title=title, description=description)
    return NotebookRun(path="", digest="", front=front, blocks=[])


def render(site: Site, template: str, page: Page, notebook: NotebookRun, body: Body, **context: Any) -> str:
    """Return a page.

    Args:
        site: The site that it belongs to.
        template: Name of its template.
        page: Its place.
        notebook: The notebook that it shows, or a blank one.
        body: The notebook's text.
        context: What the template needs beside the frame: ``crumbs``, ``owner`` (the operator that the page belongs
            to) and ``origins`` (where its numbers come from) are the frame's, and may be left out.
    """
    owner: Operator | None = context.pop("owner", None)
    context.setdefault("crumbs", [])
    context.setdefault("origins", [])
    return site.templates.get_template(template).render(
        project=site.build.project,
        page=page,
        front=notebook.front,
        notebook=notebook.path,
        # "</" would end the style element in the middle of a string or comment.
        custom_css=notebook.front.custom_css.replace("</", "<\\/"),
        title=notebook_title(notebook) if notebook.path != "index.md" else site.build.project.title,
        heading=body.title or notebook_title(notebook),
        heading_id=body.title_id or page.heading_id("top"),
        selfcheck_url=page.url(SELFCHECK),
        method_url=page.url(METHOD),
        source=site.links.source(notebook.path) if notebook.digest else "",
        feed=(owner.title, page.url(operator_feed(owner.folder)))
        if owner
        else (site.build.project.title, page.url(FEED)),
        related=_related(site, page, owner),
        navigation=_navigation(site, page),
        **context,
    )


def _related(site: Site, page: Page, owner: Operator | None) -> list[tuple[str, str, bool]]:
    """Return the other pages of an operator: label, URL, and whether it is this one."""
    if owner is None:
        return []
    pages = [("Ranking", owner.page)]
    if owner.has_backward_page:
        pages.append(("Backward", backward_page(owner.folder)))
    if owner.views:
        pages.append(("Matrix", matrix_page(owner.folder)))
    pages += [(_short_title(notebook, owner), site.paths.pages[notebook.path]) for notebook in owner.combined]
    return [(label, page.url(path), path == page.path) for label, path in pages]


def _short_title(notebook: NotebookRun, owner: Operator) -> str:
    """Return a notebook's title among the pages of its operator, which need not name the operator again."""
    short = notebook_title(notebook).removeprefix(f"{owner.title}: ")
    return short[:1].upper() + short[1:]


def _navigation(site: Site, page: Page) -> list[tuple[str, str, bool]]:
    pages = [("Report", FRONT), ("Method", METHOD), ("How good are these numbers?", SELFCHECK)]
    pages += [("What did not run", STATUS), ("Devices", DEVICES)]
    pages += [(one.device.name, one.path) for one in site.devices]
    pages += [(REPORT, REPORT), ("Atom feed", FEED)]
    return [(label, page.url(path), path == page.path) for label, path in pages]
