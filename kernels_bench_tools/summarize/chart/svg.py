"""What a chart's SVG needs beyond matplotlib: names for scripts and styles, links, and the page's ink.

A chart is inlined into pages, next to other charts. So its ids are its own, its style rules reach
nothing else, its neutrals take the page's colour, and its links are plain ``href``: an HTML parser does
not know ElementTree's made-up prefix for ``xlink:href``, and every marker would vanish.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from xml.etree import ElementTree as ET

from kernels_bench_tools.errors import RecordError
from kernels_bench_tools.summarize.chart.compact import share, shorten

INK = "#010203"
"""Drawn by matplotlib wherever the page's text colour shall be."""
FONT = "DejaVu Sans"
"""Measured by matplotlib, and replaced by the reader's own sans-serif, which is narrower."""

_READERS_FONT = "system-ui, sans-serif"
_ANCHOR = re.compile(r"url\(#([^)]+)\)")
_SVG = "http://www.w3.org/2000/svg"


class Series(NamedTuple):
    """One implementation on one device, as it was drawn."""

    slug: str
    """Ends the ids ``series--…``, ``band--…``, ``failed--…``, ``legend-label--…`` and ``legend-handle--…``."""
    device: str
    title: str
    """Names the link to readers who cannot see it."""
    href: str
    """Where a click leads; empty for nowhere."""
    metric: str
    """What the markers' values are, such as ``Latency``."""
    unit: str
    """Their unit; empty for a plain number."""
    points: Sequence[dict[str, str]]
    """Attributes of each marker, in the order in which matplotlib was given them."""
    failures: Sequence[dict[str, str]]
    """The same for the marks of failed workloads."""


class Panel(NamedTuple):
    """One view of a figure, as it was drawn."""

    id: str
    """Ends the ids ``panel--…``, ``y-axis--…``, ``y-title--…``, ``y-better--…`` and ``rule--…``."""
    attributes: Mapping[str, str]
    """What a page is told about it."""


def finish_svg(
    drawn: bytes, figure: str, title: str, series: Sequence[Series], panels: Sequence[Panel] = ()
) -> bytes:
    """Return matplotlib's SVG made ready for pages; the same bytes for the same input.

    Args:
        drawn: What matplotlib wrote, with a ``gid`` for each of the ids that ``Series.slug`` names.
        figure: Id of the chart, unique among the charts of a page.
        title: Says what it shows to readers who cannot see it.
        series: Every series that was drawn, also those without a point.
        panels: Every panel that was drawn.

    Raises:
        RecordError: Two series share a slug.
    """
    _refuse_shared_slugs(series)
    # Parses what matplotlib has just written, no one else's.
    root = ET.fromstring(drawn)  # noqa: S314
    _drop_namespaces(root)
    _drop_defaults(root)
    for entry in series:
        _tag(root, entry)
    _tag_panels(root, panels)
    _keep_own_ids(root, figure)
    shorten(root)
    for element in root.iter():
        for name, value in element.attrib.items():
            element.set(name, value.replace(INK, "currentColor").replace(f"'{FONT}'", _READERS_FONT))
        if element.get("transform", "").startswith("rotate(-0 "):
            del element.attrib["transform"]
    share(root, _READERS_FONT)
    _name(root, figure, title)
    _tell_metric(root, series)
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'.encode()


def _refuse_shared_slugs(series: Sequence[Series]) -> None:
    seen: dict[str, str] = {}
    for entry in series:
        if entry.slug in seen:
            raise RecordError(
                entry.slug,
                f"is the id of two series, {seen[entry.slug]!r} and {entry.title!r}",
                "Implementation ids that differ in more than punctuation",
                "Rename one of the notebooks",
            )
        seen[entry.slug] = entry.title


def _drop_namespaces(root: ET.Element) -> None:
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for name in [name for name in element.attrib if name.startswith("{")]:
            element.set(name.rpartition("}")[2], element.attrib.pop(name))
    root.set("xmlns", _SVG)


def _drop_defaults(root: ET.Element) -> None:
    """Drop the metadata, and a style rule for ``*`` that would restyle the page around the chart."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag in {"metadata", "style"}:
                parent.remove(child)
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == "defs" and len(child) == 0:
                parent.remove(child)


def _tag(root: ET.Element, entry: Series) -> None:
    line = _group(root, f"series--{entry.slug}")
    assert line is not None, f"series--{entry.slug} was not drawn"
    _mark(line, entry.points)
    failed = _take(root, f"failed--{entry.slug}")
    if failed is not None:
        _mark(failed, entry.failures)
        failed.set("class", "failed")
        line.append(failed)
    label = _group(root, f"legend-label--{entry.slug}")
    handle = _take(root, f"legend-handle--{entry.slug}")
    if label is not None and handle is not None:
        label.insert(0, handle)
    for kind in ("series", "band", "legend-label"):
        group = _group(root, f"{kind}--{entry.slug}")
        if group is not None:
            group.set("class", f"{kind} {kind}--{entry.slug}")
            group.set("data-series", entry.slug)
            group.set("data-device", entry.device)
        if group is not None and kind == "series":
            group.attrib |= {"data-metric": entry.metric, "data-unit": entry.unit}
    for group in (line, label):
        if group is not None and entry.href:
            _link(group, entry)


def _tag_panels(root: ET.Element, panels: Sequence[Panel]) -> None:
    for group in root.iter("g"):
        if group.get("id") == "figure_1":
            group.set("class", "canvas")
    for panel in panels:
        for kind in ("panel", "y-axis", "y-title", "y-better", "rule"):
            for group in root.iter("g"):
                if group.get("id") == f"{kind}--{panel.id}":
                    group.set("class", kind)
                    group.attrib |= (
                        {f"data-{name}": value for name, value in panel.attributes.items()}
                        if kind == "panel"
                        else {}
                    )


def _mark(group: ET.Element, points: Sequence[dict[str, str]]) -> None:
    """Give each marker of the group its point's attributes."""
    uses = list(group.iter("use"))
    # matplotlib draws no marker for a point that is not finite: counting tells if one was.
    assert len(uses) == len(points), f"{len(uses)} markers for {len(points)} points"
    for use, point in zip(uses, points, strict=True):
        for name, value in point.items():
            use.set(f"data-{name}", value)


def _link(group: ET.Element, entry: Series) -> None:
    """Make one link of everything in the group: one stop for the keyboard, not one per marker."""
    if len(group) == 0:
        return
    link = ET.Element("a", {"href": entry.href, "aria-label": entry.title})
    link.extend(list(group))
    for child in list(group):
        group.remove(child)
    group.append(link)


def _group(root: ET.Element, identifier: str) -> ET.Element | None:
    return next((element for element in root.iter("g") if element.get("id") == identifier), None)


def _take(root: ET.Element, identifier: str) -> ET.Element | None:
    """Return a group, taken out of where it was drawn."""
    for parent in root.iter("g"):
        for child in parent:
            if child.get("id") == identifier:
                parent.remove(child)
                del child.attrib["id"]
                return child
    return None


def _keep_own_ids(root: ET.Element, figure: str) -> None:
    """Drop every id that nothing refers to; number the rest, after the chart's name."""
    values = [value for element in root.iter() for value in element.attrib.values()]
    used = {name for value in values for name in _ANCHOR.findall(value)}
    used |= {use.get("href", "").removeprefix("#") for use in root.iter("use")}
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == "clipPath" and child.get("id") not in used:
                parent.remove(child)
    known = [identifier for element in root.iter() if (identifier := element.get("id", "")) in used]
    short = figure.removeprefix("figure--")
    own = {identifier: f"{short}-{number}" for number, identifier in enumerate(known)}
    for element in root.iter():
        identifier = element.get("id", "")
        if identifier in own:
            element.set("id", own[identifier])
        elif identifier and "data-series" not in element.attrib:
            del element.attrib["id"]
        if element.tag == "use":
            element.set("href", f"#{own[element.get('href', '').removeprefix('#')]}")
        for name, value in element.attrib.items():
            element.set(name, _ANCHOR.sub(lambda found: f"url(#{own[found.group(1)]})", value))


def _tell_metric(root: ET.Element, series: Sequence[Series]) -> None:
    """Say of the whole chart what its values are, where they are all the same."""
    said = {(entry.metric, entry.unit) for entry in series}
    if len(said) == 1:
        ((metric, unit),) = said
        root.attrib |= {"data-metric": metric, "data-unit": unit}


def _name(root: ET.Element, figure: str, title: str) -> None:
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    root.attrib |= {"id": figure, "class": "figure", "role": "img", "stroke-linejoin": "round"}
    # `:root` holds for the file alone: in a page, the ink is the page's.
    style = ET.Element("style")
    style.text = (
        f"#{figure}:root{{color:#1f2328}}"
        f"@media (prefers-color-scheme:dark){{#{figure}:root{{color:#e6edf3}}}}"
    )
    heading = ET.Element("title")
    heading.text = title
    root.insert(0, style)
    root.insert(0, heading)
