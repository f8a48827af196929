"""The pages: which template shows a notebook, and what the template is given."""

from __future__ import annotations

import posixpath

from kernels_bench_tools.report import selfchecks
from kernels_bench_tools.report.artifacts import notebook_artifacts
from kernels_bench_tools.report.cards import operator_card
from kernels_bench_tools.report.cells import View, Viewer
from kernels_bench_tools.report.changes import changes_since
from kernels_bench_tools.report.details import device_details
from kernels_bench_tools.report.frame import Site, blank_notebook, front_crumbs, operator_crumbs, render
from kernels_bench_tools.report.operator import contents, operator_preview, operator_view
from kernels_bench_tools.report.operators import (
    Operator,
    implementation_id,
    notebook_title,
)
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.report.prose import OPERATORS, Body, render_notebook
from kernels_bench_tools.report.provenance import origins, view_origins
from kernels_bench_tools.report.recorded import recorded_rows
from kernels_bench_tools.report.results import implementation_sections
from kernels_bench_tools.report.site_paths import backward_page
from kernels_bench_tools.schema.build import BuildRun, FrontMatter, NotebookRun


def front_page(site: Site, notebook: NotebookRun) -> str:
    """Return the front page: its prose, the contents and a card for each operator."""
    page, viewer, body = _open(site, notebook)
    parts = _with_place_for(viewer.parts(body.parts), OPERATORS)
    sections = [operator_preview(operator, page, site.paths) for operator in site.operators]
    cards = [operator_card(operator, page) for operator in site.operators]
    return render(
        site,
        "index.html.j2",
        page,
        notebook,
        body,
        parts=parts,
        operators=sections,
        cards={section.id: card for section, card in zip(sections, cards, strict=True)},
        contents=contents(body.parts, sections),
        changes=changes_since(site.previous, site.operators, page, site.paths) if site.previous else None,
        commit=site.build.project.commit,
        origins=view_origins(view for operator in site.operators for view in operator.views),
    )


def operator_page(site: Site, operator: Operator) -> str:
    """Return an operator's page: what it computes, then who does it how fast on which device."""
    notebook = operator.index or _without_notebook(operator.folder, operator.title)
    page, viewer, body = _open(site, notebook)
    views = viewer.parts(body.parts)
    if not any(view.kind == "results" for view in views):
        # The question that brings readers here is answered before the background is given.
        views.insert(body.introduction(), View("results"))
    return render(
        site,
        "operator.html.j2",
        page,
        notebook,
        body,
        crumbs=front_crumbs(site, page),
        owner=operator,
        origins=view_origins(operator.on(page.path).views),
        parts=views,
        operator=operator_view(operator, page, site.paths),
        repository=site.build.project.repository,
    )


def operator_backward_page(site: Site, operator: Operator) -> str:
    """Return the page of an operator's backward passes."""
    page = Page(backward_page(operator.folder), site.links)
    notebook = blank_notebook(
        f"{operator.title}: backward",
        "Who computes the gradients how fast: backward passes are timed by themselves, and compared with each other.",
    )
    return render(
        site,
        "operator.html.j2",
        page,
        notebook,
        Body(),
        crumbs=operator_crumbs(site, page, operator),
        owner=operator,
        origins=view_origins(operator.on(page.path).views),
        parts=[View("results")],
        operator=operator_view(operator, page, site.paths),
        repository=site.build.project.repository,
    )


def implementation_page(site: Site, operator: Operator, notebook: NotebookRun) -> str:
    """Return an implementation's page: its results, how to repeat them, and its notebook."""
    page, viewer, body = _open(site, notebook)
    implementation = implementation_id(notebook)
    rows = operator.rows(implementation) or recorded_rows(viewer.artifacts, notebook_title(notebook))
    sections = implementation_sections(rows, page.unique_id)
    return render(
        site,
        "implementation.html.j2",
        page,
        notebook,
        body,
        crumbs=operator_crumbs(site, page, operator),
        owner=operator,
        origins=origins(rows),
        parts=viewer.parts(body.parts),
        devices=sections,
        operator=operator,
        titles={row.implementation: row.title for view in operator.views for row in view.rows},
        details=device_details(site.root, operator.folder, implementation, viewer.artifacts),
        repository=site.build.project.repository,
    )


def notebook_page(site: Site, notebook: NotebookRun) -> str:
    """Return the page of a notebook that has no special place, or that combines an operator's results."""
    page, viewer, body = _open(site, notebook)
    operator = site.operator_of(notebook.path)
    combines = operator is not None and operator.is_combined(notebook)
    return render(
        site,
        "combined.html.j2" if combines else "notebook.html.j2",
        page,
        notebook,
        body,
        crumbs=operator_crumbs(site, page, operator),
        owner=operator,
        origins=view_origins(operator.views) if combines and operator else [],
        parts=viewer.parts(body.parts),
        operator=operator,
    )


def selfcheck_page(site: Site) -> str:
    """Return the page that says how good the numbers are."""
    notebook = NotebookRun(path="", digest="", front=FrontMatter(title=selfchecks.TITLE), blocks=[])
    page = Page(selfchecks.PAGE, site.links)
    return render(
        site,
        "selfcheck.html.j2",
        page,
        notebook,
        Body(),
        crumbs=front_crumbs(site, page),
        selfchecks=site.selfchecks,
        heading_ids=[page.heading_id(f"device-{view.check.device.slug}") for view in site.selfchecks.views],
        repository=site.build.project.repository,
    )


def _open(site: Site, notebook: NotebookRun) -> tuple[Page, Viewer, Body]:
    page = Page(
        site.paths.pages.get(notebook.path, posixpath.splitext(notebook.path)[0] + ".html"), site.links
    )
    body = render_notebook(notebook, page, raw_html=site.build.project.raw_html)
    operator = site.operator_of(notebook.path)
    artifacts = list(notebook_artifacts(site.root, site.paths, notebook))
    names = operator.names if operator else {}
    return page, Viewer(page, site.root, site.paths, notebook, artifacts, names), body


def _without_notebook(folder: str, title: str) -> NotebookRun:
    path = posixpath.join(folder, "index.md")
    return NotebookRun(path=path, digest="", front=FrontMatter(title=title), blocks=[])


def front_notebook(build: BuildRun) -> NotebookRun:
    """Return the notebook of the front page, an empty one if the project has none."""
    found = next((notebook for notebook in build.notebooks if notebook.path == "index.md"), None)
    return found or _without_notebook("", build.project.title)


def _with_place_for(views: list[View], kind: str) -> list[View]:
    return views if any(view.kind == kind for view in views) else [*views, View(kind)]
