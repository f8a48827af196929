"""What is kept of a figure that a cell drew: elements and attributes that draw, nothing that acts."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from functools import lru_cache

SVG = "{http://www.w3.org/2000/svg}"
"""Namespace of a figure's elements, as ElementTree writes it."""
FOREIGN_URL = re.compile(r"url\(\s*['\"]?(?!#)", re.IGNORECASE)
_XLINK_HREF = "{http://www.w3.org/1999/xlink}href"
_DRAWING = frozenset(
    SVG + name
    for name in [
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
_TEXTS = frozenset(SVG + name for name in ("title", "desc", "style"))


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
    attributes = element.attrib
    if _XLINK_HREF in attributes:
        attributes.setdefault("href", attributes[_XLINK_HREF])
    # Names few and values many: only what holds a bracket can hold "url(".
    bad = [name for name, value in attributes.items() if not _is_known(name) or "(" in value]
    for name in bad:
        if not _is_safe(name, attributes[name]):
            del attributes[name]
    for child in list(element):
        if child.tag in _DRAWING:
            _keep_what_draws(child)
            if child.tag in _TEXTS:
                # A browser reads elements in these as HTML.
                child[:] = []
        else:
            element.remove(child)


def _is_safe(name: str, value: str) -> bool:
    return _is_known(name) and (name == "href" or not FOREIGN_URL.search(value))


@lru_cache(maxsize=1024)
def _is_known(name: str) -> bool:
    """Whether an attribute of this name draws: it is of no other namespace, and answers to no event."""
    return not (name.startswith("{") or ":" in name or name.lower().startswith("on"))
