"""An SVG made smaller without a difference that anyone could see."""

from __future__ import annotations

import re
from xml.etree import ElementTree as ET

_FONT_SIZE = "9.5px"
_COORDINATES = frozenset({"d", "x", "y", "transform"})
_LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}")
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


def share(root: ET.Element, font: str) -> None:
    """Say once what all texts say alike, and take out the groups that only nest."""
    own = f"font-family: {font}"
    root.attrib |= {"font-family": font, "font-size": _FONT_SIZE, "fill": "currentColor"}
    for element in root.iter():
        style = [part.strip() for part in element.get("style", "").split(";")]
        drop = {own, f"font-size: {_FONT_SIZE}", "fill: currentColor", ""} if element.tag == "text" else {""}
        kept = ";".join(part.replace(": ", ":") for part in style if part not in drop)
        element.attrib.pop("style", None)
        if kept:
            element.set("style", kept)
    _flatten(root)
    _merge_lines(root)


def _merge_lines(parent: ET.Element) -> None:
    """Draw an axis's grid as one path, and lines that follow each other too; drop what is neither filled nor stroked."""
    last: ET.Element | None = None
    for child in list(parent):
        _merge_lines(child)
        if child.tag == "path" and child.get("style") == "fill:none" and "id" not in child.attrib:
            parent.remove(child)
        elif (
            child.tag != "path"
            or not child.get("style", "").startswith("fill:none;")
            or set(child.attrib) != {"d", "style"}
        ):
            # Texts of an axis stand beside its grid, so which of them is above the other does not matter.
            last = last if child.tag == "text" and parent.get("class") == "y-axis" else None
        elif last is not None and last.get("style") == child.get("style"):
            last.set("d", last.get("d", "") + child.get("d", ""))
            parent.remove(child)
        else:
            last = child


def _flatten(parent: ET.Element) -> None:
    """Put the children of groups without attributes in their place, and drop the groups that hold nothing."""
    for child in list(parent):
        _flatten(child)
        if child.tag == "g" and (len(child) == 0 or not child.attrib) and "data-series" not in child.attrib:
            at = list(parent).index(child)
            parent.remove(child)
            for offset, inner in enumerate(list(child)):
                parent.insert(at + offset, inner)


def _rounded(number: re.Match[str]) -> str:
    """Return a coordinate to a tenth of a point, which is less than a pixel where the chart fills a page."""
    return f"{float(number.group()):.1f}".rstrip("0").rstrip(".")


def _share_style(group: ET.Element) -> None:
    """Say once what all markers of a group say alike."""
    children = list(group)
    styles = {child.get("style", "") for child in children}
    if len(children) > 1 and len(styles) == 1 and all(child.tag == "use" for child in children):
        if style := styles.pop():
            group.set("style", style)
        for child in children:
            child.attrib.pop("style", None)
