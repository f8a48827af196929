"""All pages: what they are made from, which template shows a page, and the variables that it gets."""

from __future__ import annotations

import posixpath
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, replace
from functools import partial
from itertools import chain, zip_longest
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from kernels_bench_tools.errors import RecordError
from kernels_bench_tools.records.build import BuildRun, NotebookRun
from kernels_bench_tools.records.codec import read_committed
from kernels_bench_tools.records.committed import EFFECTS
from kernels_bench_tools.records.model import HUB_DEVICES, model_and_framework
from kernels_bench_tools.records.notebook import FrontMatter, operator_of
from kernels_bench_tools.records.record import REJECTING, Flag, Regime, Status
from kernels_bench_tools.records.selfcheck import SelfChecks
from kernels_bench_tools.records.summary import CauseKind
from kernels_bench_tools.report import artifacts, paths
from kernels_bench_tools.report.artifacts import Artifact, ArtifactPreview, ChartPanel
from kernels_bench_tools.report.cells import OPERATORS, Body, BodyPart, CellViews, Heading
from kernels_bench_tools.report.labels import VERDICTS, status_label
from kernels_bench_tools.report.operators import (
    OperatorReport,
    ReportDevice,
    implementation_id,
    notebook_title,
    unknown_names,
)
from kernels_bench_tools.report.page import Links, Page
from kernels_bench_tools.report.paths import SitePaths
from kernels_bench_tools.results.effects import Effects, effects_by_device
from kernels_bench_tools.results.models import Models, model_imports
from kernels_bench_tools.results.summary import reversed_pair
from kernels_bench_tools.results.tables import (
    Origin,
    ViewRow,
    baseline_title,
    charts,
    details_of,
    failure_groups,
    measured_peaks,
    measured_rows,
    origins,
    rows_by_device,
    view_origins,
    view_slug,
    view_title,
)
from kernels_bench_tools.text.numbers import milliseconds, times, times_interval
from kernels_bench_tools.text.tables import grouped

if TYPE_CHECKING:
    from kernels_bench_tools.results.history.timeline import History


@dataclass(frozen=True)
class Site:
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
        folder = operator_of(path) or posixpath.dirname(path)
        return next((operator for operator in self.operators if operator.folder == folder), None)


def blank_notebook(title: str, description: str = "", path: str = "") -> NotebookRun:
    """Return an empty notebook, for a page without one."""
    front = FrontMatter(title=title, description=description)
    return NotebookRun(path=path, digest="", front=front, blocks=[])


_NAVIGATION = (
    ("Report", paths.FRONT),
    ("Models", paths.MODELS),
    ("Method", paths.METHOD),
    ("Accuracy", paths.SELFCHECK),
    ("Failures", paths.STATUS),
    ("Devices", paths.DEVICES),
    (paths.REPORT, paths.REPORT),
)


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
        "crumbs": [(it[0], page.url(it[1])) for it in above if it and it[1] != page.path],
        "origins": origins,
        "operator": owner,
        "selfcheck_url": page.url(paths.SELFCHECK),
        "method_url": page.url(paths.METHOD),
        "source": site.links.source(notebook.path) if notebook.digest else "",
        "related": marked(owner.pages if owner else []),
        "navigation": marked([it for it in _NAVIGATION if it[1] != paths.MODELS or site.models.keys]),
    }
    return environment().get_template(template).render(common | context)


def front_page(site: Site) -> str:
    notebook = next((it for it in site.build.notebooks if it.path == "index.md"), None)
    notebook = notebook or blank_notebook(site.build.project.title, path="index.md")
    page, views, body = _open(site, notebook)
    if not any(part.kind == OPERATORS for part in body.parts):
        body.parts.append(BodyPart(OPERATORS))
    summaries = [operator.summary for operator in site.operators if operator.summary]
    counted, changes = site.history.changes(summaries) if site.history else ("", [])
    sections = {page.heading_id(operator.title): operator for operator in site.operators}
    families = {entry.family for operator in site.operators for entry in operator.entries}
    folders = [operator.folder for operator in site.operators]
    others = [it for it in site.build.notebooks if it.cells and not site.operator_of(it.path)]
    return render(
        site,
        "index.html.j2",
        page,
        notebook,
        body,
        cell_views=views,
        operators=sections,
        problems=unknown_names(notebook.path, notebook.prose, folders, families),
        devices=[it.device for it in site.devices],
        device_choices=[(it.device.slug, it.device.name) for it in site.devices],
        charts={
            operator.folder: page.url(paths.script(f"{operator.folder}/front.html", "charts"))
            for operator in site.operators
            if operator.panels
        },
        models=[(key, page.url(paths.model_file(key))) for key in site.models.keys],
        measured_in=partial(_measured_in, site, page),
        contents=_contents(body.parts, sections),
        changes=changes,
        since=site.history.since if site.history else "",
        counted=counted,
        measured=site.build.measured if site.build.measures else (0, 0),
        owners={it.summary.operator: it for it in site.operators if it.summary},
        commit=site.build.project.commit,
        origins=view_origins(view for operator in site.operators for view in operator.views),
        others=[(it.path, page.url(site.paths.pages[it.path])) for it in others if it is not notebook],
    )


def _contents(parts: Sequence[BodyPart], operators: Mapping[str, OperatorReport]) -> list[Heading]:
    """Return the front page's chapters in their order, without the heading of the contents themselves."""
    chapters: list[Heading] = []
    sections = [Heading(heading, operator.title) for heading, operator in operators.items()]
    for part, after in zip_longest(parts, parts[1:]):
        if part.heading and (after is None or after.kind != "contents"):
            chapters.append(part.heading)
        elif part.kind == OPERATORS:
            chapters += sections
    return chapters


_INLINED = 4
"""Charts in an operator's page itself. The others are loaded when a reader comes to them, so that more devices cost little."""
_RESULTS = {
    "models": "Results for the shapes with which models call it, in prefill and decoding.",
    "backward": "Results of the backward pass, which is timed separately from the forward pass.",
}


def operator_page(site: Site, operator: OperatorReport, kind: str = "") -> str:
    """Return an operator's page: its description and its results on each device; those of a ``kind`` on a further page."""
    if kind:
        page, views = Page(operator.further_pages[kind], site.links, {"main", *operator.anchors}), None
        notebook = blank_notebook(f"{operator.title}: {kind}", _RESULTS[kind])
        body = Body(parts=[BodyPart("results")])
    else:
        path = posixpath.join(operator.folder, "index.md")
        notebook = operator.index or blank_notebook(operator.title, path=path)
        page, views, body = _open(site, notebook, operator.anchors)
        if not any(part.kind == "results" for part in body.parts):
            # Results come after the introduction, before any chapter.
            body.parts.insert(body.introduction(), BodyPart("results"))
    shown = operator.on(page.path)
    elsewhere, first = _elsewhere(operator, page.path), operator.first_chart
    panels = {it.view: it for it in operator.panels if it.view not in elsewhere and it.chart == first}
    inlined = {view for view in panels if view not in operator.anchors} | {*list(panels)[:_INLINED]}
    chart = None
    if operator.chart:
        chart = artifacts.preview(operator.chart, page, lambda it: it.chart == first and it.view in inlined)
        chart = replace(chart, data=[*chart.data, _records(operator, page)])
    drawn = {panel.chart for figure in operator.figures for panel in figure.panels}
    return render(
        site,
        "operator.html.j2",
        page,
        notebook,
        body,
        owner=operator,
        origins=view_origins(shown.views),
        cell_views=views,
        operator=shown,
        urls=operator.urls(page),
        measured_in=partial(_measured_in, site, page),
        latency=chart,
        panels=panels,
        charts={panel.view: figure for panel, figure in chart.panels} if chart else {},
        choices={name: text for name, text in charts(shown.views).items() if name in drawn},
        charts_url=page.url(paths.script(page.path, "charts")),
        views_url=page.url(paths.script(page.path, "views")),
        pairs_url=page.url(paths.script(page.path, "pairs")),
        drawn=operator.summary.drawn if operator.summary and not kind else [],
        compared={
            row.implementation: row.title for view in shown.views if view.pairs for row in measured_rows(view)
        },
        other_panels=[it for it in chart.panels if it[0].view not in operator.anchors] if chart else [],
        figures=[artifacts.link(figure, page) for figure in operator.figures if figure is not operator.chart],
        downloads=[
            *(artifacts.link(artifact, page) for artifact in operator.artifacts),
            *([_records(operator, page)] if operator.views or operator.record_files else []),
        ],
        combined=[(notebook_title(it), page.url(paths.page_path(it.path))) for it in operator.combined],
        view_url=partial(operator.view_url, page=page),
        models=[
            (model, page.url(paths.model_file(model.key)), calls)
            for name, it in site.model_operators.items()
            if it is operator and page.path == operator.page
            for model, calls in site.models.used_by(name)
        ],
    )


def panels_script(site: Site, operator: OperatorReport, path: str, kind: str) -> str:
    """Return a script with panels of a page: those of its ``views``, or with ``charts`` those of all other metrics.

    The first are for when a reader comes to them, the others for when a reader chooses their metric.
    """
    elsewhere, first = _elsewhere(operator, path), kind == "views"
    return _panels_script(
        operator,
        Page(path, site.links),
        lambda it: it.view not in elsewhere and (it.chart == operator.first_chart) == first,
    )


def front_charts(site: Site, operator: OperatorReport) -> str:
    """Return a script with an operator's charts on the front page, for when a reader comes to them."""
    leading = {view_slug(view) for device in operator.devices for view in device.leading}
    page, first = Page(paths.FRONT, site.links), operator.first_chart
    return _panels_script(operator, page, lambda it: it.view in leading and it.chart == first)


def _panels_script(operator: OperatorReport, page: Page, shown: Callable[[ChartPanel], bool]) -> str:
    figures: dict[str, dict[str, str]] = {}
    for artifact in operator.figures:
        for panel, figure in artifacts.preview(artifact, page, shown).panels:
            figures.setdefault(panel.chart, {})[panel.view] = str(figure)
    return _script(figures)


def pairs_script(operator: OperatorReport, path: str) -> str:
    """Return a script with the comparisons of any two implementations of each view on a page, seen from both sides."""
    views: dict[str, dict[str, Any]] = {}
    for view in operator.on(path).views:
        ratios: dict[str, dict[str, list[tuple[str, str, str, bool]]]] = {}
        for pair in [*view.pairs, *map(reversed_pair, view.pairs)]:
            ratios.setdefault(pair.implementation, {})[pair.over] = [
                (times(ratio.value), times_interval(ratio.gain), ratio.verdict.value, ratio.separate)
                for ratio in (pair.overall, *pair.ratios)
            ]
        views[view_slug(view)] = {
            "title": f"{view.device.name}, {view_title(view)}",
            "baseline": baseline_title(view),
            "workloads": [workload.name for workload in view.workloads],
            "ms": {row.implementation: [milliseconds(it.p50_ms) for it in row.points] for row in view.rows},
            "ratios": ratios,
        }
    return _script(
        {"views": views, "verdicts": {verdict.value: label for verdict, label in VERDICTS.items()}}
    )


def _script(data: Any) -> str:
    # A page that was opened from disk may load scripts, but no other text.
    return f"kbtData = {msgspec.json.encode(data).decode()};\n"


def _elsewhere(operator: OperatorReport, path: str) -> set[str]:
    """Return the slugs of the views that another page of the operator shows."""
    return {view_slug(view) for view in operator.views if operator.page_of(view) != path}


def _records(operator: OperatorReport, page: Page) -> ArtifactPreview:
    # The file is written together with the page, so its size is not known yet.
    url = page.url(paths.operator_records(operator.folder))
    return ArtifactPreview("records.jsonl", url, "all records", "file")


def implementation_page(site: Site, operator: OperatorReport, notebook: NotebookRun) -> str:
    page, views, body = _open(site, notebook, operator.anchors)
    rows, name = operator.rows_of(notebook), implementation_id(notebook)
    commands = [*_commands(notebook.path, rows)] or [f"kbt run {notebook.path}"]
    if not rows and (files := site.effects.files_with(operator.folder, name)):
        model, framework = model_and_framework(files[0].parent.name)
        option = f" --framework {framework}" if framework else ""
        commands = [f"kbt effect {operator.folder}/{name} --model {model}{option}"]
    devices = [
        (device, of_device, any(row.status is not Status.ABSENT for _, row in of_device))
        for device, of_device in rows_by_device(rows)
    ]
    return render(
        site,
        "implementation.html.j2",
        page,
        notebook,
        body,
        owner=operator,
        origins=origins(rows),
        cell_views=views,
        devices=[(device, of_device) for device, of_device, measured in devices if measured],
        absent=[device.name for device, _, measured in devices if not measured],
        titles={row.implementation: row.title for _, row in operator.rows},
        details={slug: details_of(own) for slug, own in operator.counted.of(name).items()},
        effects=_measured_in(site, page, operator, name),
        commands=commands,
        history=site.history.charts(operator.folder, name) if site.history else {},
        causes=[*CauseKind],
    )


def _commands(path: str, rows: Sequence[ViewRow]) -> Iterator[str]:
    """Yield a command for each device and mode that measures these rows again, in as many processes."""
    measured = grouped(
        ((view.device.name, workload.mode), (point.processes, workload.set))
        for view, row in rows
        for workload, point in zip(view.workloads, row.points, strict=True)
        if point.p50_ms is not None
    )
    for (device, mode), points in measured.items():
        sets = ",".join(dict.fromkeys(workload_set for _, workload_set in points if workload_set))
        options = f" --workloads {sets}" * bool(sets) + f" --mode {mode}" * bool(mode)
        yield f"kbt run {path}{options} --processes {max(points)[0]}  # {device}"


def _measured_in(
    site: Site, page: Page, operator: OperatorReport, implementation: str
) -> list[tuple[str, str]]:
    """Return name and URL of each model in which an implementation was measured."""
    return [
        (key, f"{page.url(paths.model_file(key))}#{EFFECTS}")
        for key in site.effects.models_with(operator.folder, implementation)
        if key in site.models.keys
    ]


def notebook_page(site: Site, notebook: NotebookRun) -> str:
    """Return the page of any other notebook, such as one that combines an operator's results."""
    page, views, body = _open(site, notebook)
    operator = site.operator_of(notebook.path)
    combines = operator is not None and notebook in operator.combined
    return render(
        site,
        "combined.html.j2" if combines else "notebook.html.j2",
        page,
        notebook,
        body,
        owner=operator,
        origins=view_origins(operator.views) if combines and operator else [],
        cell_views=views,
    )


def _generated(
    site: Site, path: str, template: str, title: str, description: str = "", **context: Any
) -> str:
    """Return a page without a notebook."""
    return render(site, template, Page(path, site.links), blank_notebook(title, description), **context)


def models_page(site: Site) -> str:
    page = Page(paths.MODELS, site.links)
    reports = sorted(
        site.models.reports.values(),
        key=lambda it: -max((it.measured_on(device.slug) for device in it.devices), default=0),
    )
    models = [(model, page.url(paths.model_file(model.key))) for model in reports]
    about = "End-to-end speed-ups from the fastest kernels of this report."
    return _generated(site, page.path, "models.html.j2", "Models", about, models=models)


def model_page(site: Site, key: str) -> str:
    model = site.models.reports[key]
    page = Page(paths.model_file(key), site.links, {"main", EFFECTS})
    rows = {(it.view.device.slug, it.row.slug): (it.view, it.row) for it in model.results}
    owners = site.model_operators
    effects = site.effects.of(key)
    by_name = {operator.folder.rpartition("/")[2]: operator for operator in site.operators}
    notebooks, digests = {}, {}
    for folder, name in {tuple(full.rsplit("/", 1)) for it in effects for full in it.implementations}:
        operator = by_name.get(folder.rpartition("/")[2])
        notebook = operator.notebook_of(name) if operator else None
        if notebook:
            notebooks[f"{folder}/{name}"] = (
                notebook_title(notebook),
                page.url(paths.page_path(notebook.path)),
            )
            digests[f"{folder}/{name}"] = {*notebook.digests.values()}

    return render(
        site,
        "model.html.j2",
        page,
        blank_notebook(
            key,
            "Time of a forward pass by kernel, the fastest implementation of each, and the end-to-end speed-up.",
        ),
        parent=("Models", paths.MODELS),
        origins=origins(rows.values()),
        model=model,
        choices={
            "ranks": [(ranks, ranks) for ranks in model.splits],
            "device": [(number, device.name) for number, device in enumerate(model.devices, 1)],
        },
        operators=owners,
        urls={name: operator.urls(page) for name, operator in owners.items()},
        imports=model_imports(model),
        hub_devices=HUB_DEVICES,
        imports_url=page.url(paths.model_file(key, "json")),
        calls_url=page.url(paths.model_file(key, "csv")),
        effects=effects_by_device(effects),
        notebooks=notebooks,
        is_stale=lambda summary: summary.has_other_code(digests),
        effects_id=EFFECTS,
        effects_url=page.url(paths.model_file(f"{key}-effects", "csv")),
    )


def selfcheck_page(site: Site) -> str:
    about = "Checks against known results, against Nsight Compute, against the methods of other tools, and between processes."
    title = "Accuracy of the timing"
    return _generated(site, paths.SELFCHECK, "selfcheck.html.j2", title, about, selfchecks=site.selfchecks)


def devices_page(site: Site) -> str:
    about = "The machines on which this report's numbers were measured."
    return _generated(site, paths.DEVICES, "devices.html.j2", "Devices", about, devices=site.devices)


def device_page(site: Site, device: ReportDevice) -> str:
    checked = any(check.device.slug == device.device.slug for check in site.selfchecks.checks)
    return _generated(
        site,
        device.path,
        "device.html.j2",
        device.device.name,
        "Fastest implementations on this device, its measured peaks and its environment.",
        parent=("Devices", paths.DEVICES),
        origins=view_origins(device.views),
        device=device.device,
        environments=[row.environment for view in device.views for row in view.rows],
        operators=device.operators,
        peaks=measured_peaks(device.views),
        # The device's anchor on the page of the self-checks.
        checked=f"#device-{device.device.slug}" if checked else "",
    )


def method_page(site: Site) -> str:
    documented = (site.root / "docs/measuring.md").is_file()
    return _generated(
        site,
        paths.METHOD,
        "method.html.j2",
        "Method",
        "What is timed, how, and what each term of this report means.",
        flags=[(flag, flag in REJECTING) for flag in Flag],
        verdicts=[
            (f"{label.glyph} {label.word}", verdict.meaning)
            for verdict, label in VERDICTS.items()
            if verdict.meaning
        ],
        regimes=[(regime.label, regime.meaning) for regime in Regime],
        statuses=[
            (f"{label.glyph} {label.word}", status.meaning)
            for status in Status
            if (label := status_label(status))
        ],
        documented=site.links.source("docs/measuring.md") if documented else "",
    )


def status_page(site: Site) -> str:
    url = Page(paths.STATUS, site.links).url
    views = [view for operator in site.operators for view in operator.views]
    problems: list[str | RecordError] = [*chain.from_iterable(site.build.left_out.values())]
    for operator in site.operators:
        problems += operator.counted.problems
    for file in site.effects.files:
        read_committed(site.root, file, problems.append)
    cells = [
        (f"{notebook.path}:{cell.id}", url(site.paths.pages[notebook.path]), cell)
        for notebook in site.build.notebooks
        for cell in notebook.cells
        if cell.status is not None and cell.status.failed
    ]
    return _generated(
        site,
        paths.STATUS,
        "status.html.j2",
        "Failures",
        "Results that failed, are unsupported or were not measured, on all devices, by reason.",
        origins=view_origins(views),
        groups=failure_groups(operator.summary for operator in site.operators if operator.summary),
        cells=sorted(cells, key=lambda item: bool(item[2].expected)),
        problems=problems,
        operators=site.operators,
        owners={it.summary.operator: it for it in site.operators if it.summary},
        total=sum(len(row.points) for view in views for row in view.rows),
    )


def highlighting_styles() -> str:
    from kernels_bench_tools.report.markup import highlight_styles  # imports markdown-it and Pygments

    return highlight_styles()


def _open(site: Site, notebook: NotebookRun, ids: Set[str] = frozenset()) -> tuple[Page, CellViews, Body]:
    """Return the page of a notebook, its cells, and its text, whose headings do not get these ids."""
    from kernels_bench_tools.report.prose import render_notebook  # slow, as above

    path = site.paths.pages.get(notebook.path, paths.page_path(notebook.path))
    page = Page(path, site.links, {"main", *ids})
    body = render_notebook(notebook, page, raw_html=site.build.project.raw_html)
    written = list(artifacts.notebook_artifacts(site.root, site.paths, notebook))
    return page, CellViews(page, site.root, site.paths, notebook, written), body
