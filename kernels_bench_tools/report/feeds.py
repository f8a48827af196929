"""Atom feeds of what was measured, for the site and for each operator.

An entry is one operator on one device on the day it was last measured. Its id follows from these three and the
project's address, so that it stays the same until there is something new; all dates come from records.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from html import escape
from uuid import NAMESPACE_URL, uuid5

from kernels_bench_tools.report.cards import Lead, operator_card
from kernels_bench_tools.report.dates import latest
from kernels_bench_tools.report.format import times
from kernels_bench_tools.report.operators import Operator
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.report.paths import relative_url
from kernels_bench_tools.report.site_paths import FRONT
from kernels_bench_tools.report.words import plain_text
from kernels_bench_tools.schema.build import ProjectInfo

_NEVER = "1970-01-01T00:00:00Z"
"""Atom wants a date; this one says that nothing was measured."""


def atom_feed(project: ProjectInfo, operators: Iterable[Operator], page: Page, title: str = "") -> str:
    """Return a feed.

    Args:
        project: Whose it is.
        operators: Those that it tells of.
        page: Where it lies; links count from there.
        title: What it is called; the project's title if empty.
    """
    operators = list(operators)
    entries = sorted(
        (entry for operator in operators for entry in _entries(project, operator, page)), reverse=True
    )
    updated = max((date for date, _ in entries), default=_NEVER)
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        '<feed xmlns="http://www.w3.org/2005/Atom">',
        f"<id>{_identity(project, page.path)}</id>",
        f"<title>{_text(title or project.title)}</title>",
        f"<updated>{updated}</updated>",
        f"<author><name>{_text(project.title)}</name></author>",
        f'<link rel="self" href="{escape(relative_url(page.path, page.path))}"/>',
        f'<link rel="alternate" href="{escape(page.url(operators[0].page if title and operators else FRONT))}"/>',
        *(entry for _, entry in entries),
        "</feed>",
    ]
    return "\n".join(lines) + "\n"


def _entries(project: ProjectInfo, operator: Operator, page: Page) -> Iterator[tuple[str, str]]:
    """Yield the date and text of each of an operator's entries."""
    card = operator_card(operator, page)
    for device, views in zip(card.devices, operator.devices, strict=True):
        stamp = latest(views.views)
        date = _date(stamp)
        told = "; ".join(_told(lead) for lead in device.leads)
        yield (
            date,
            "\n".join(
                [
                    "<entry>",
                    f"<id>{_identity(project, f'{operator.folder} {device.device.slug} {stamp[:10]}')}</id>",
                    f"<title>{_text(f'{operator.title} on {device.device.name}')}</title>",
                    f"<updated>{date}</updated>",
                    f'<link href="{escape(device.url)}"/>',
                    f"<summary>{_text(told)}</summary>",
                    "</entry>",
                ]
            ),
        )


def _told(lead: Lead) -> str:
    passed = f"{lead.passed} of {lead.total} passed"
    if lead.fastest is None:
        return f"{lead.title}: none has a rank, {passed}"
    faster = (
        "" if lead.is_baseline or not lead.baseline else f", {times(lead.fastest.speedup)} {lead.baseline}"
    )
    return f"{lead.title}: fastest is {lead.fastest.title}{faster}; {passed}"


def _identity(project: ProjectInfo, name: str) -> str:
    return f"urn:uuid:{uuid5(NAMESPACE_URL, f'{project.repository or project.title} {name}')}"


def _date(stamp: str) -> str:
    """Return a record's time as Atom has it: with seconds and a zone."""
    if len(stamp) < 19:
        return _NEVER
    return escape(stamp[:19] + "Z" if stamp.endswith(("Z", "+00:00")) or len(stamp) == 19 else stamp)


def _text(text: str) -> str:
    return escape(plain_text(text))
