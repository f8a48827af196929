"""What is kept of a figure that a cell drew: elements and attributes that draw, nothing that acts."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

SVG = "{http://www.w3.org/2000/svg}"
"""Namespace of a figure's elements, as ElementTree writes it."""
FOREIGN_URL = re.compile(r"url\(\s*['\"]?(?!#)", re.IGNORECASE)
_XLINK_HREF = "{http://www.w3.org/1999/xlink}href"
_DRAWING = frozenset(
    [
        "svg",
        "g",
        "a",
        "path",
        "rect",
        "circle",
        "ellipse",
        "line",
        "polyline",
        "polygon",
        "text",
        "tspan",
        "textPath",
        "title",
        "desc",
        "defs",
        "use",
        "symbol",
        "marker",
        "clipPath",
        "mask",
        "linearGradient",
        "radialGradient",
        "stop",
        "pattern",
        "style",
    ]
)


def read_drawing(data: bytes) -> ET.Element:
    """Return the figure with what draws alone.

    Raises:
        ValueError: It is not SVG, or declares entities.
    """
    if b"<!ENTITY" in data:
        raise ValueError("declares entities")
    try:
        root = ET.fromstring(data)  # noqa: S314 - without entities there is nothing to expand
    except ET.ParseError as error:
        raise ValueError(f"is not XML: {error}") from error
    if root.tag != f"{SVG}svg":
        raise ValueError("has no <svg> at its root")
    _keep_what_draws(root)
    return root


def _keep_what_draws(element: ET.Element) -> None:
    for name, value in list(element.attrib.items()):
        if name == _XLINK_HREF:
            element.attrib.setdefault("href", value)
        if not _is_safe(name, value):
            del element.attrib[name]
    for child in list(element):
        local = child.tag.removeprefix(SVG) if isinstance(child.tag, str) else ""
        if local in _DRAWING and isinstance(child.tag, str) and child.tag.startswith(SVG):
            _keep_what_draws(child)
            if local in {"title", "desc", "style"}:
                # A browser reads elements in these as HTML.
                child[:] = []
        else:
            element.remove(child)


def _is_safe(name: str, value: str) -> bool:
    if name.startswith("{") or ":" in name or name.lower().startswith("on"):
        return False
    return name == "href" or not FOREIGN_URL.search(value)
