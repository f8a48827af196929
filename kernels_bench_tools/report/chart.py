"""Charts of cells as elements of a page: sanitized, with unique ids, and with links that work there.

An SVG file comes from a cell, so it is not trusted: only elements and attributes that draw are kept. The panels of
a chart are groups with the class ``panel``, their size in ``data-size`` and their view in ``data-view``.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Set
from dataclasses import dataclass
from functools import lru_cache

from markupsafe import Markup

_SVG = "{http://www.w3.org/2000/svg}"
_XLINK_HREF = "{http://www.w3.org/1999/xlink}href"
_SHAPES = "path rect circle ellipse line polyline polygon text tspan textPath use symbol marker"
_STRUCTURE = "svg g a title desc defs clipPath mask linearGradient radialGradient stop pattern style"
_DRAWING = frozenset(_SVG + name for name in f"{_SHAPES} {_STRUCTURE}".split())
_TEXTS = frozenset(_SVG + name for name in ("title", "desc", "style"))
_FOREIGN_URL = re.compile(r"url\(\s*['\"]?(?!#)", re.IGNORECASE)
_LOCAL_URL = re.compile(r"url\(\s*['\"]?#([^'\")\s]+)['\"]?\s*\)", re.IGNORECASE)
_SCHEME = re.compile(r"^[\s\x00-\x20]*([a-z][a-z0-9+.\-\s]*):", re.IGNORECASE)
_ID_LISTS = ("aria-labelledby", "aria-describedby")


@dataclass(frozen=True)
class ChartPanel:
    """One view of a chart, as an element of a page."""

    view: str
    """The slug of the device, then the key of the view if it has one."""
    title: str
    figure: Markup


def inline_chart(
    data: bytes,
    label: str,
    unique_id: Callable[[str], str],
    relink: Callable[[str], str | None],
    elsewhere: Set[str] = frozenset(),
) -> tuple[list[ChartPanel], Markup | None]:
    """Return the panels of a chart as elements of a page; of an SVG file without panels the whole of it.

    Panels of views in ``elsewhere`` are left out. ``label`` names a file without a title. ``relink`` returns the link
    of the page for a link of the file, or None for one without a target.

    Raises:
        ValueError: It is not SVG, or declares entities.
    """
    root = _sanitized(data)
    title = root.find(f"{_SVG}title")
    if title is not None:
        label = (title.text or "").strip() or label
        # Browsers would show it over every tooltip.
        root.remove(title)
    found = [(child, size) for child in root if (size := _panel_size(child))]
    if not found:
        return [], _inlined(root, label, unique_id, relink)
    panels = []
    for group, size in found:
        view = group.get("data-view", "")
        group.attrib.pop("transform", None)
        panel = ET.Element(root.tag, {**root.attrib, "viewBox": f"0 0 {size}"})
        panel.append(group)
        if view not in elsewhere:
            figure = _inlined(panel, group.attrib.pop("data-label", label), unique_id, relink)
            panels.append(ChartPanel(view, group.get("data-title", view), figure))
    return panels, None


def _panel_size(element: ET.Element) -> str:
    """Return width and height of a panel; empty if the element is none."""
    size = element.get("data-size", "") if element.get("class") == "panel" else ""
    return size if re.fullmatch(r"[\d.]+ [\d.]+", size) else ""


def _sanitized(data: bytes) -> ET.Element:
    """Return the file's root with only what draws."""
    if b"<!ENTITY" in data:
        raise ValueError("declares entities")
    try:
        root = ET.fromstring(data)  # noqa: S314 - without entities there is nothing to expand
    except ET.ParseError as error:
        raise ValueError(f"is not XML: {error}") from error
    if root.tag != f"{_SVG}svg":
        raise ValueError("has no <svg> at its root")
    _keep_drawing(root)
    return root


def _keep_drawing(element: ET.Element) -> None:
    attributes = element.attrib
    if _XLINK_HREF in attributes:
        attributes.setdefault("href", attributes[_XLINK_HREF])
    for name, value in list(attributes.items()):
        # A link with a bracket is left to `_relink`.
        foreign = "(" in value and name != "href" and _FOREIGN_URL.search(value)
        if foreign or not _is_allowed(name):
            del attributes[name]
    for child in list(element):
        if child.tag in _DRAWING:
            _keep_drawing(child)
            if child.tag in _TEXTS:
                # A browser reads elements in these as HTML.
                child[:] = []
        else:
            element.remove(child)


@lru_cache(maxsize=1024)
def _is_allowed(name: str) -> bool:
    """Whether an attribute of this name draws: it has no other namespace, and is no event handler."""
    return not (name.startswith("{") or ":" in name or name.lower().startswith("on"))


def _inlined(
    root: ET.Element, label: str, unique_id: Callable[[str], str], relink: Callable[[str], str | None]
) -> Markup:
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    # Not "img", whose parts cannot be reached: the series inside are links.
    root.attrib |= {"role": "group", "aria-label": label}
    _relink(root, relink)
    _rename_ids(root, unique_id)
    _scope_styles(root, unique_id)
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
    # An empty element of a figure ends with a slash in HTML too.
    text = ET.tostring(root, encoding="unicode").replace(" />", "/>")
    return Markup(text)  # noqa: S704 - nothing but drawing elements is left


def _relink(root: ET.Element, relink: Callable[[str], str | None]) -> None:
    for element in root.iter():
        url = element.attrib.pop("href", None)
        if url is None:
            continue
        scheme = _SCHEME.match(url)
        if url.startswith("#"):
            element.set("href", url)
        elif element.tag == f"{_SVG}a" and (scheme is None or scheme[1].lower() in {"http", "https"}):
            target = relink(url)
            if target is not None:
                element.set("href", target)


def _rename_ids(root: ET.Element, unique_id: Callable[[str], str]) -> None:
    renamed: dict[str, str] = {}
    for element in root.iter():
        old = element.get("id")
        if old is not None:
            new = unique_id(re.sub(r"\s+", "-", old) or "figure")
            renamed.setdefault(old, new)
            element.set("id", new)
    for element in root.iter():
        for name, value in element.attrib.items():
            if name == "href" and value.startswith("#"):
                element.set(name, f"#{renamed.get(value[1:], value[1:])}")
            elif name in _ID_LISTS:
                element.set(name, " ".join(renamed.get(word, word) for word in value.split()))
            elif "url(" in value:
                element.set(name, _LOCAL_URL.sub(lambda m: f"url(#{renamed.get(m[1], m[1])})", value))


def _scope_styles(root: ET.Element, unique_id: Callable[[str], str]) -> None:
    """Nest each style sheet in a rule for the figure, or drop one that could apply outside of it."""
    for parent in list(root.iter()):
        for style in parent.findall(f"{_SVG}style"):
            css = style.text or ""
            if _FOREIGN_URL.search(css) or re.search(r"@import|\\|</|/\*", css) or not _is_balanced(css):
                parent.remove(style)
                continue
            if "id" not in root.attrib:
                root.set("id", unique_id("figure"))
            quoted = root.attrib["id"].replace("\\", "\\\\").replace('"', '\\"')
            style.text = f'[id="{quoted}"] {{ {css.strip()} }}'


def _is_balanced(css: str) -> bool:
    depth = 0
    for char in css:
        depth += {"{": 1, "}": -1}.get(char, 0)
        if depth < 0:
            return False
    return depth == 0
