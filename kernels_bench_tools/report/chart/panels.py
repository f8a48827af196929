"""Figures cut into their panels, so that a page can show each where it is spoken of.

The panels of a figure stand one below the other. Each is a group that holds series (``data-series``), under a
heading of its own: text of the figure, beside those groups. Where it ends above the next one's beginning,
``data-bottom`` says so. A figure of another make is left whole.
"""

from __future__ import annotations

import copy
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kernels_bench_tools.report.chart.drawing import SVG

_ANCHOR = re.compile(r"url\(#([^)]+)\)")


@dataclass(frozen=True)
class Cut:
    """A panel as a figure of its own."""

    series: str
    """Slug of its first series."""
    heading: str
    root: ET.Element


def cut(root: ET.Element) -> list[Cut]:
    """Return the panels of a figure from top to bottom; none if it cannot be told where they begin.

    Args:
        root: The figure, which stays as it is.
    """
    box = _numbers(root.get("viewBox", ""))
    canvas = next((child for child in root if child.tag == f"{SVG}g" and _series(child)), None)
    if canvas is None or len(box) != 4:
        return []
    panels = [child for child in canvas if _series(child)]
    lines = _headings([child for child in canvas if not _series(child)])
    tops = sorted({y for y, _, _ in lines})
    if len(panels) < 2 or len(tops) != len(panels):
        return []
    above = tops[0] - box[1]
    edges = [*(top - above for top in tops), box[1] + box[3]]
    found = []
    for panel, top, bottom in zip(panels, edges, edges[1:], strict=False):
        beside = [(element, text) for y, element, text in lines if top <= y < bottom]
        end = next((end for end in _numbers(panel.get("data-bottom", "")) if top < end < bottom), bottom)
        view_box = f"{box[0]:g} {top:g} {box[2]:g} {end - top:g}"
        inner = [panel, *(element for element, _ in beside)]
        heading = beside[0][1] if beside else ""
        found.append(Cut(_series(panel), heading, _figure(root, canvas, inner, view_box)))
    return found


def _series(element: ET.Element) -> str:
    return next(
        (inner.get("data-series", "") for inner in element.iter() if "data-series" in inner.attrib), ""
    )


def _numbers(text: str) -> list[float]:
    try:
        return [float(word) for word in text.replace(",", " ").split()]
    except ValueError:
        return []


def _headings(elements: Sequence[ET.Element]) -> list[tuple[float, ET.Element, str]]:
    """Return the figure's own texts, each with its place from the top; what has no place is no heading."""
    found = []
    for element in elements:
        for text in element.iter(f"{SVG}text"):
            place = _numbers(text.get("y", ""))
            if place:
                found.append((round(place[0], 1), element, "".join(text.itertext()).strip()))
    return found


def _figure(root: ET.Element, canvas: ET.Element, inner: Sequence[ET.Element], view_box: str) -> ET.Element:
    """Return a figure of some of the canvas's elements, with copies of what is not theirs alone."""
    made = ET.Element(root.tag, {**root.attrib, "viewBox": view_box})
    made.extend(copy.deepcopy(child) for child in root if child.tag in {f"{SVG}title", f"{SVG}style"})
    group = ET.SubElement(made, canvas.tag, canvas.attrib)
    group.extend(inner)
    missing = set(_references(made)) - {element.get("id") for element in made.iter()}
    if missing:
        group.insert(0, ET.Element(f"{SVG}defs"))
        group[0].extend(copy.deepcopy(element) for element in root.iter() if element.get("id") in missing)
    return made


def _references(root: ET.Element) -> Iterator[str]:
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "href" and value.startswith("#"):
                yield value[1:]
            elif "url(#" in value:
                yield from _ANCHOR.findall(value)
