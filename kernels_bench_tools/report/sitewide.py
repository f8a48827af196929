"""The pages that speak of the whole site: devices, method, what did not run, and the one for a wrong address."""

from __future__ import annotations

import json
import posixpath
from collections.abc import Iterable

from markupsafe import Markup

from kernels_bench_tools.report.devices import KnownDevice, device_view
from kernels_bench_tools.report.failures import failure_groups
from kernels_bench_tools.report.frame import Site, blank_notebook, front_crumbs, operator_crumbs, render
from kernels_bench_tools.report.matrix import STEPS, matrix_devices
from kernels_bench_tools.report.operators import Operator, implementation_id
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.report.prose import Body
from kernels_bench_tools.report.provenance import view_origins
from kernels_bench_tools.report.site_paths import DEVICES, METHOD, NOT_FOUND, STATUS, matrix_page
from kernels_bench_tools.schema.record import REJECTING, Flag
from kernels_bench_tools.schema.summary import DeviceSummary


def devices_page(site: Site) -> str:
    """Return the list of devices."""
    page = Page(DEVICES, site.links)
    notebook = blank_notebook("Devices", "The machines that this report's numbers come from.")
    views = [device_view(known, page, {}) for known in site.devices]
    return render(
        site, "devices.html.j2", page, notebook, Body(), crumbs=front_crumbs(site, page), devices=views
    )


def device_page(site: Site, known: KnownDevice) -> str:
    """Return the page of a device: what it is, what it reached, how steady it was, what was measured on it."""
    page = Page(known.path, site.links)
    notebook = blank_notebook(
        known.device.name, "What it is, what it reached, how steady it was, and what was measured on it."
    )
    crumbs = [*front_crumbs(site, page), ("Devices", page.url(DEVICES))]
    view = device_view(known, page, site.readings)
    checked = any(one.check.device.slug == known.device.slug for one in site.selfchecks.views)
    return render(
        site,
        "device.html.j2",
        page,
        notebook,
        Body(),
        crumbs=crumbs,
        view=view,
        origins=view.origins,
        # The anchor that the self-check's page gives to a device.
        checked=f"#device-{known.device.slug}" if checked else "",
    )


def method_page(site: Site) -> str:
    """Return the page that says what every number and word of the report means."""
    page = Page(METHOD, site.links)
    notebook = blank_notebook("Method", "What is timed, how, and what every word of this report means.")
    return render(
        site,
        "method.html.j2",
        page,
        notebook,
        Body(),
        crumbs=front_crumbs(site, page),
        flags=[(flag, flag in REJECTING) for flag in Flag],
        documented=site.links.source("docs/measuring.md") if _has(site, "docs/measuring.md") else "",
    )


def status_page(site: Site) -> str:
    """Return the page of everything that did not end well, by reason."""
    page = Page(STATUS, site.links)
    notebook = blank_notebook(
        "What did not run, and why",
        "Every failure of this report, over all operators and devices, by reason.",
    )
    views = [view for operator in site.operators for view in operator.views]
    return render(
        site,
        "status.html.j2",
        page,
        notebook,
        Body(),
        crumbs=front_crumbs(site, page),
        origins=view_origins(views),
        groups=failure_groups(site.operators, page, site.paths),
        problems=[(operator.title, page.url(operator.page), operator.problem) for operator in site.operators],
        tried=_points(views),
    )


def _points(views: Iterable[DeviceSummary]) -> int:
    return sum(len(row.points) for view in views for row in view.rows)


def operator_matrix_page(site: Site, operator: Operator) -> str:
    """Return the page of an operator's matrix."""
    page = Page(matrix_page(operator.folder), site.links)
    notebook = blank_notebook(
        f"{operator.title}: matrix",
        "Every workload by every implementation, as a multiple of the shortest time.",
    )
    urls = {implementation_id(one): page.url(site.paths.pages[one.path]) for one in operator.implementations}
    return render(
        site,
        "matrix.html.j2",
        page,
        notebook,
        Body(),
        crumbs=operator_crumbs(site, page, operator),
        owner=operator,
        origins=view_origins(operator.views),
        operator=operator,
        operator_url=page.url(operator.page),
        devices=matrix_devices(operator.devices, urls),
        steps=STEPS,
    )


def not_found_page(site: Site) -> str:
    """Return the page that a server shows for an address that leads nowhere.

    It is shown at any depth, so no relative address in it is right by itself. Its script finds out how deep it is from
    the folders that the site has.
    """
    page = Page(NOT_FOUND, site.links)
    folders = {posixpath.dirname(path) for path in site.paths.pages.values()}
    # "<" in a folder's name must not end the script.
    data = json.dumps(sorted(folders - {""}, key=lambda it: (-len(it), it))).replace("<", "\\u003c")
    return site.templates.get_template("404.html.j2").render(
        project=site.build.project,
        page=page,
        folders=Markup(data),  # noqa: S704 - JSON without "<"
        operators=[(operator.title, page.url(operator.page)) for operator in site.operators],
    )


def _has(site: Site, path: str) -> bool:
    return (site.root / path).is_file()
