"""matplotlib's SVG prepared for pages: classes and data for scripts, links, and the page's text colour.

Each panel is an ``<svg>`` of its own, which pages show as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import NamedTuple

INK = "#000000"
"""Becomes the page's text colour."""
FONT = "DejaVu Sans"
"""Measured by matplotlib, and replaced by the reader's own sans-serif, which is narrower."""

_WIDTH, _GAP, _EMPTY_HEIGHT = 691.2, 21.6, 72.0
_COORDINATES = re.compile(r' (?:d|x|y|transform)="[^"]*"')
_LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_STATED = re.compile(
    rf' transform="rotate\(-0 [^"]*"|(?:font-size: 9.5px; )?font-family: \'{FONT}\'(?:; )?|text-anchor: start(?:; )?'
)
"""What is stated once for all texts of a panel."""
_TAG = re.compile(
    r'<g id="(?:(?P<kind>series|band|failed|legend-label|legend-handle)--(?P<slug>[^"]+)|[^"]*)"(?P<end>/?)>'
    r'|<a xlink:href="(?P<url>[^"]*)" target="_blank">'
    r'|<use xlink:href="(?P<marker>[^"]*)" (?P<place>x="[^"]*" y="[^"]*") style="(?:fill: (?P<fill>[^;"]*))?[^"]*"/>'
)


class Series(NamedTuple):
    """One implementation in one panel: the attributes of its elements, see :func:`attributes`."""

    label: str
    """Of its link, for screen readers."""
    data: str
    points: Sequence[str]
    """Of each marker, in the order in which matplotlib was given them."""
    failures: Sequence[str]
    """The same for the crosses of failed workloads."""


class Panel(NamedTuple):
    svg: str
    height: float


def attributes(**values: str) -> str:
    """Return ``data-`` attributes of these names, each after a space; those without a value are left out."""
    return "".join(f' data-{name}="{escape(value)}"' for name, value in values.items() if value)


def panel_svg(drawn: str, tags: str, series: Mapping[str, Series]) -> Panel:
    """Return a figure of ``draw_panel``, as matplotlib wrote it, as an element with these attributes.

    Groups of ``series``, by slug, get a class, links a label, and markers their data.
    """
    size = re.search(r'viewBox="0 0 (\S+) (\S+)"', drawn)
    assert size is not None, "matplotlib states the size of a figure"
    body = re.sub(r" ?\n *", "", drawn[drawn.index('<g id="figure_1">') : drawn.rindex("</svg>")])
    body = _COORDINATES.sub(lambda it: _LONG_NUMBER.sub(_shortened, it[0]), body)
    body = _STATED.sub("", body).replace(INK, "currentColor").replace(' style=""', "")
    slug, linked = "", set[str]()
    marks: Iterator[str] | None = None

    def tag(match: re.Match[str]) -> str:
        nonlocal slug, marks
        if match["marker"]:
            data = "" if marks is None else next(marks)
            fill = "none" if "data-status" in data else match["fill"] or "none"
            return f'<use href="{match["marker"]}" {match["place"]} fill="{fill}"{data}/>'
        if match["url"]:
            # One stop of the Tab key for each series.
            again = ' tabindex="-1"' if slug in linked else ""
            linked.add(slug)
            return f'<a href="{match["url"]}" aria-label="{escape(series[slug].label)}"{again}>'
        assert marks is None or next(marks, None) is None, f"{slug} has fewer markers than points"
        marks = None
        if not match["kind"]:
            return f"<g{match['end']}>"
        kind, slug = match["kind"], match["slug"]
        if kind in {"series", "failed"}:
            marks = iter(series[slug].points if kind == "series" else series[slug].failures)
        name = "legend-label" if kind == "legend-handle" else kind
        data = series[slug].data if kind == "series" else ""
        return (
            f'<g id="{kind}--{slug}" class="{name} {name}--{slug}" data-series="{slug}"{data}{match["end"]}>'
        )

    look = 'font-family="system-ui, sans-serif" font-size="9.5px" fill="currentColor" stroke-linejoin="round"'
    box = f'width="{size[1]}" height="{size[2]}" viewBox="0 0 {size[1]} {size[2]}"'
    return Panel(
        f'<svg class="panel" {box} role="group" {look} {tags}>{_TAG.sub(tag, body)}</svg>', float(size[2])
    )


def figure_svg(title: str, panels: Sequence[Panel], empty: str) -> bytes:
    """Return the panels, one below the other, as an SVG file; without panels it shows the text ``empty``."""
    height, placed = 0.0, []
    for panel in panels:
        placed.append(panel.svg.replace("<svg ", f'<svg y="{height:.1f}" ', 1))
        height += panel.height + _GAP
    if not panels:
        middle = f'x="{_WIDTH / 2}" y="{_EMPTY_HEIGHT / 2}" text-anchor="middle"'
        placed, height = [f'<text {middle} fill="currentColor">{escape(empty)}</text>'], _EMPTY_HEIGHT + _GAP
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        f'<svg xmlns="http://www.w3.org/2000/svg" class="figure" role="img" viewBox="0 0 {_WIDTH} {height - _GAP:.1f}">',
        f"<title>{escape(title)}</title>",
        "<style>:root{color:#1f2328}@media (prefers-color-scheme:dark){:root{color:#e6edf3}}</style>",
        *placed,
        "</svg>\n",
    ]
    return "\n".join(lines).encode()


def _shortened(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")
