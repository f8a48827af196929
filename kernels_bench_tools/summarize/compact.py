"""An SVG made smaller without a difference that anyone could see."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

_COORDINATES = frozenset({"d", "x", "y", "transform"})
_LONG_NUMBER = re.compile(r"-?\d+\.\d{3,}")
_AROUND_LETTERS = re.compile(r"\s*([A-Za-z])\s*")


def shorten(root: ET.Element) -> None:
    """Drop what no one can see: a chart of many implementations would be a megabyte."""
    for element in root.iter():
        element.tail = (element.tail and element.tail.strip()) or "\n"
        if element.text and not element.text.strip():
            element.text = ""
        _share_style(element)
        for name in _COORDINATES & element.attrib.keys():
            value = _LONG_NUMBER.sub(_rounded, element.attrib[name])
            element.set(name, _AROUND_LETTERS.sub(r"\1", value).strip() if name == "d" else value)


def _rounded(number: re.Match[str]) -> str:
    """Return a coordinate to a hundredth, which is far less than a pixel."""
    return f"{float(number.group()):.2f}".rstrip("0").rstrip(".")


def _share_style(group: ET.Element) -> None:
    """Say once what all markers of a group say alike."""
    children = list(group)
    styles = {child.get("style", "") for child in children}
    if len(children) > 1 and len(styles) == 1 and all(child.tag == "use" for child in children):
        if style := styles.pop():
            group.set("style", style)
        for child in children:
            child.attrib.pop("style", None)
