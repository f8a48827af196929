"""matplotlib's SVG prepared for pages: ids and classes for scripts and styles, links, and the page's text colour.

A chart is inlined into pages, next to other charts. So its ids are unique, its style rules apply to nothing else, and its
links are plain ``href``: an HTML parser does not know the prefix that ElementTree writes for ``xlink:href``.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple
from xml.etree import ElementTree as ET

INK = "#010203"
"""Placeholder for the page's text colour."""
FONT = "DejaVu Sans"
"""Measured by matplotlib, and replaced by the reader's own sans-serif, which is narrower."""

_WIDTH, _GAP, _EMPTY_HEIGHT = 691.2, 21.6, 72.0
_TEXT_STYLE = {
    f"font-family:'{FONT}'",
    f"font-family:{FONT}",
    "font-size:9.5px",
    f"fill:{INK}",
    "text-anchor:start",
}
"""The style of all texts, stated once for the figure."""
_ANCHOR = re.compile(r"url\(#([^)]+)\)")
_AROUND_COMMAND = re.compile(r" ?([A-Za-z]) ?")
_LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_SVG = "http://www.w3.org/2000/svg"


class Series(NamedTuple):
    """One implementation in one panel, as it was drawn."""

    slug: str
    """Last part of the ids ``series--…``, ``band--…``, ``failed--…``, ``legend-label--…`` and ``legend-handle--…``."""
    device: str
    title: str
    place: str
    note: str
    """Speed-up, or why there is none."""
    href: str
    """Target of a click; empty for none."""
    metric: str
    unit: str
    points: Sequence[dict[str, str]]
    """Attributes of each marker, in the order in which matplotlib was given them."""
    failures: Sequence[dict[str, str]]
    """The same for the crosses of failed workloads."""


def panel_group(
    drawn: bytes, prefix: str, identifier: str, data: Mapping[str, str], series: Sequence[Series]
) -> ET.Element:
    """Return a figure of ``draw_panel``, as matplotlib wrote it, as a group with its size in ``data-size``.

    The prefix of the ids of shapes is unique among the panels of a page. ``series`` includes those without a point.
    """
    root = ET.fromstring(drawn)  # noqa: S314 - written by matplotlib in this process
    _drop_namespaces(root)
    figure = next(child for child in root if child.get("id") == "figure_1")
    panel = ET.Element("g", {"id": identifier, "class": "panel"})
    panel.attrib |= {f"data-{name}": value for name, value in data.items()}
    panel.set("data-size", " ".join(root.get("viewBox", "").split()[2:]))
    panel.extend(child for child in root if child.tag == "defs")
    panel.extend(figure)
    _drop_unseen(panel)
    for entry in series:
        _tag(panel, entry)
    for group in panel.iter("g"):
        if group.get("id") in {"y-axis", "y-title", "y-better", "rule"}:
            group.set("class", group.attrib.pop("id"))
    _rename_ids(panel, prefix)
    _shorten(panel)
    _drop_plain_groups(panel)
    return panel


def figure_svg(identifier: str, title: str, panels: Sequence[ET.Element], empty: str) -> bytes:
    """Return the panels, one below the other, as an SVG file; without panels it shows the text ``empty``."""
    root = ET.Element("svg", {"xmlns": _SVG, "id": identifier, "class": "figure", "role": "img"})
    root.attrib |= {"font-family": "system-ui, sans-serif", "font-size": "9.5px", "fill": "currentColor"}
    root.attrib |= {"stroke-linejoin": "round"}
    ET.SubElement(root, "title").text = title
    # `:root` matches in the file only: in a page, the colour is the page's.
    ET.SubElement(root, "style").text = (
        f"#{identifier}:root{{color:#1f2328}}"
        f"@media (prefers-color-scheme:dark){{#{identifier}:root{{color:#e6edf3}}}}"
    )
    height = 0.0
    for panel in panels:
        if height:
            panel.set("transform", f"translate(0 {height:.1f})")
        height += float(panel.get("data-size", "0 0").split()[1]) + _GAP
        root.append(panel)
    if not panels:
        middle = {"x": f"{_WIDTH / 2}", "y": f"{_EMPTY_HEIGHT / 2}", "text-anchor": "middle"}
        ET.SubElement(root, "text", middle).text = empty
    root.set("viewBox", f"0 0 {_WIDTH} {height - _GAP if panels else _EMPTY_HEIGHT:.1f}")
    metrics = {
        (it.get("data-metric"), it.get("data-unit")) for it in root.iter("g") if "data-metric" in it.attrib
    }
    if len(metrics) == 1:
        ((metric, unit),) = metrics
        root.attrib |= {"data-metric": metric or "", "data-unit": unit or ""}
    text = ET.tostring(root, encoding="unicode")
    return f'<?xml version="1.0" encoding="utf-8"?>\n{text}\n'.encode()


def _drop_namespaces(root: ET.Element) -> None:
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
        for name in [name for name in element.attrib if name.startswith("{")]:
            element.set(name.rpartition("}")[2], element.attrib.pop(name))


def _drop_unseen(root: ET.Element) -> None:
    """Drop style rules, which would apply to the page, and empty elements."""
    for parent in list(root.iter()):
        for child in list(parent):
            if child.tag == "style" or (child.tag == "defs" and all(it.tag == "style" for it in child)):
                parent.remove(child)


def _tag(panel: ET.Element, entry: Series) -> None:
    line = _group(panel, f"series--{entry.slug}")
    assert line is not None, f"series--{entry.slug} was not drawn"
    _mark(line, entry.points)
    failed = _take(panel, f"failed--{entry.slug}")
    if failed is not None:
        _mark(failed, entry.failures)
        failed.set("class", "failed")
        line.append(failed)
    label = _group(panel, f"legend-label--{entry.slug}")
    handle = _take(panel, f"legend-handle--{entry.slug}")
    if label is not None and handle is not None:
        label.insert(0, handle)
    for kind in ("series", "band", "legend-label"):
        group = _group(panel, f"{kind}--{entry.slug}")
        if group is not None:
            group.set("class", f"{kind} {kind}--{entry.slug}")
            group.set("data-series", entry.slug)
            group.set("data-device", entry.device)
    line.attrib |= {"data-metric": entry.metric, "data-unit": entry.unit}
    line.attrib |= {"data-title": entry.title, "data-place": entry.place, "data-note": entry.note}
    stop = True
    for group in (line, label):
        # One stop of the Tab key for each series: its line, or its label if nothing was drawn.
        if group is not None and len(group) and entry.href:
            _link(group, entry, stop)
            stop = False


def _mark(group: ET.Element, points: Sequence[dict[str, str]]) -> None:
    """Give each marker of the group its point's attributes."""
    uses = list(group.iter("use"))
    # matplotlib draws no marker for a point that is not finite.
    assert len(uses) == len(points), f"{len(uses)} markers for {len(points)} points"
    for use, point in zip(uses, points, strict=True):
        for name, value in point.items():
            use.set(f"data-{name}", value)


def _link(group: ET.Element, entry: Series, stop: bool) -> None:
    """Make everything in the group one link."""
    link = ET.Element("a", {"href": entry.href, "aria-label": f"{entry.title} on {entry.place}"})
    if not stop:
        link.set("tabindex", "-1")
    link.extend(list(group))
    group[:] = [link]


def _group(root: ET.Element, identifier: str) -> ET.Element | None:
    return next((element for element in root.iter("g") if element.get("id") == identifier), None)


def _take(root: ET.Element, identifier: str) -> ET.Element | None:
    """Remove a group from where it was drawn, and return it."""
    for parent in root.iter("g"):
        for child in parent:
            if child.get("id") == identifier:
                parent.remove(child)
                del child.attrib["id"]
                return child
    return None


def _rename_ids(panel: ET.Element, prefix: str) -> None:
    """Number the shapes that are referred to, after the prefix; drop all other ids but those of series."""
    used = {use.get("href", "").removeprefix("#") for use in panel.iter("use")}
    used |= {
        name
        for element in panel.iter()
        for value in element.attrib.values()
        for name in _ANCHOR.findall(value)
    }
    known = [identifier for element in panel.iter() if (identifier := element.get("id", "")) in used]
    own = {identifier: f"{prefix}-{number}" for number, identifier in enumerate(known)}
    for element in panel.iter():
        identifier = element.get("id", "")
        if identifier in own:
            element.set("id", own[identifier])
        elif identifier and element is not panel and "data-series" not in element.attrib:
            del element.attrib["id"]
        if element.tag == "use":
            element.set("href", f"#{own[element.get('href', '').removeprefix('#')]}")
        for name, value in element.attrib.items():
            element.set(name, _ANCHOR.sub(lambda found: f"url(#{own[found.group(1)]})", value))


def _shortened(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")


def _shorten(panel: ET.Element) -> None:
    """Round coordinates to a tenth of a point, and drop what the figure states once for all texts, and a marker for its uses."""
    markers = {element.get("id"): element for element in panel.iter("path") if "id" in element.attrib}
    for element in panel.iter():
        element.tail = None
        if element.tag != "text" and element.text and not element.text.strip():
            element.text = None
        for name in {"d", "x", "y", "transform"} & element.attrib.keys():
            value = " ".join(_LONG_NUMBER.sub(_shortened, element.attrib[name]).split())
            element.set(name, _AROUND_COMMAND.sub(r"\1", value) if name == "d" else value)
        if element.get("transform", "").startswith("rotate(-0 "):
            del element.attrib["transform"]
        parts = [part.strip().replace(": ", ":") for part in element.attrib.pop("style", "").split(";")]
        stated: Collection[str] = _TEXT_STYLE if element.tag == "text" else ()
        if element.tag == "use":  # after the marker that it draws
            stated = markers[element.get("href", "").removeprefix("#")].get("style", "").split(";")
        style = ";".join(part for part in parts if part and part not in stated)
        if style:
            element.set("style", style)
        for name, value in element.attrib.items():
            element.set(name, value.replace(INK, "currentColor"))


def _drop_plain_groups(element: ET.Element) -> None:
    """Put the content of groups without attributes in their place."""
    for child in element:
        _drop_plain_groups(child)
    plain = [child.tag == "g" and not child.attrib for child in element]
    element[:] = [
        one for child, drop in zip(element, plain, strict=True) for one in (child if drop else [child])
    ]
