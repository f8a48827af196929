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


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


_SVG = "{http://www.w3.org/2000/svg}"
_XLINK_HREF = "{http://www.w3.org/1999/xlink}href"
_SHAPES = "path rect circle ellipse line polyline polygon text tspan textPath use symbol marker"
_STRUCTURE = "svg g a title desc defs clipPath mask linearGradient radialGradient stop pattern"
_DRAWING = frozenset(_SVG + name for name in f"{_SHAPES} {_STRUCTURE}".split())
_TEXTS = frozenset(_SVG + name for name in ("title", "desc"))
_PROPERTIES = _words(
    """
    alignment-baseline baseline-shift clip-path clip-rule color color-interpolation direction display
    dominant-baseline fill fill-opacity fill-rule font font-family font-size font-size-adjust font-stretch
    font-style font-variant font-weight image-rendering letter-spacing marker marker-end marker-mid marker-start
    mask mask-type opacity paint-order pointer-events shape-rendering stop-color stop-opacity stroke
    stroke-dasharray stroke-dashoffset stroke-linecap stroke-linejoin stroke-miterlimit stroke-opacity
    stroke-width text-anchor text-decoration text-rendering vector-effect visibility white-space word-spacing
    writing-mode
    """
)
"""Those that paint. Others, such as ``position``, would place a part of the figure on the rest of the page."""
_ATTRIBUTES = _PROPERTIES | _words(
    """
    class clipPathUnits cx cy d dx dy fr fx fy gradientTransform gradientUnits height href id lang lengthAdjust
    markerHeight markerUnits markerWidth maskContentUnits maskUnits method offset orient overflow pathLength
    patternContentUnits patternTransform patternUnits points preserveAspectRatio r refX refY role rotate rx ry
    side spacing spreadMethod startOffset style tabindex textLength transform type version viewBox width x x1 x2
    y y1 y2
    """
)
_NOT_OF_THE_ROOT = ("width", "height", "overflow", "tabindex", "transform")
"""The root is a box of the page: these would make it larger than its place, or move it."""
_FUNCTION = re.compile(r"([\w-]*)\s*\(")
_FUNCTIONS = _words("url rgb rgba hsl hsla var calc")
_MOST_COPIES = 100_000
"""Elements that all ``<use>`` of a figure may show; each copy takes the browser time."""
_FOREIGN_URL = re.compile(r"url\(\s*['\"]?(?!#)", re.IGNORECASE)
_LOCAL_URL = re.compile(r"url\(\s*['\"]?#([^'\")\s]+)['\"]?\s*\)", re.IGNORECASE)
_SCHEME = re.compile(r"^[\s\x00-\x20]*([a-z][a-z0-9+.\-\s]*):", re.IGNORECASE)
_ID_LISTS = ("aria-labelledby", "aria-describedby")
_QUOTED = re.compile(r"""="([^"']*&quot;[^"']*)\"""")


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
        ValueError: It is not SVG, declares entities, or is a figure without panels that has a style sheet.
    """
    root = _parsed(data)
    styled = next(root.iter(f"{_SVG}style"), None) is not None
    _keep_drawing(root)
    title = root.find(f"{_SVG}title")
    if title is not None:
        label = (title.text or "").strip() or label
        # Browsers would show it over every tooltip.
        root.remove(title)
    found = [(child, size) for child in root if (size := _panel_size(child))]
    if not found:
        if styled:
            raise ValueError("has a style sheet, which would apply to the whole page")
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


def _parsed(data: bytes) -> ET.Element:
    if b"<!ENTITY" in data:
        raise ValueError("declares entities")
    try:
        root = ET.fromstring(data)  # noqa: S314 - without entities there is nothing to expand
    except ET.ParseError as error:
        raise ValueError(f"is not XML: {error}") from error
    if root.tag != f"{_SVG}svg":
        raise ValueError("has no <svg> at its root")
    return root


def _keep_drawing(element: ET.Element) -> None:
    attributes = element.attrib
    if _XLINK_HREF in attributes:
        attributes.setdefault("href", attributes[_XLINK_HREF])
    for name, value in list(attributes.items()):
        if not _is_allowed(name) or (name == "tabindex" and value not in {"0", "-1"}):
            del attributes[name]
        elif name == "style":
            attributes[name] = _painting(value)
        # A link is left to `_relink`.
        elif name in _PROPERTIES and _reaches_out(value):
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
    """Whether an attribute of this name draws, or is read by the page's script and by screen readers."""
    return name in _ATTRIBUTES or re.fullmatch(r"(?:data|aria)-[\w-]+", name) is not None


def _reaches_out(value: str) -> bool:
    """Whether a value of CSS could load something, or cannot be judged because of escapes and comments."""
    if not any(mark in value for mark in ("(", "\\", "/*", "<", "{", "}")):
        return False
    functions = {name.lower() for name in _FUNCTION.findall(value)}
    rest = _FUNCTION.sub("", value)
    return bool(functions - _FUNCTIONS or _FOREIGN_URL.search(value) or re.search(r"[\\<{}]|/\*", rest))


def _painting(css: str) -> str:
    """Return the declarations of ``css`` that paint."""
    return ";".join(
        part
        for part in css.split(";")
        if part.partition(":")[0].strip().lower() in _PROPERTIES and not _reaches_out(part)
    )


def _inlined(
    root: ET.Element, label: str, unique_id: Callable[[str], str], relink: Callable[[str], str | None]
) -> Markup:
    for name in _NOT_OF_THE_ROOT:
        root.attrib.pop(name, None)
    if root.get("class") != "figure":  # classes of the page's own boxes
        root.attrib.pop("class", None)
    # Not "img", whose parts cannot be reached: the series inside are links.
    root.attrib |= {"role": "group", "aria-label": label}
    _relink(root, relink)
    _rename_ids(root, unique_id)
    for element in root.iter():
        element.tag = element.tag.removeprefix(_SVG)
    # An empty element of a figure ends with a slash in HTML too.
    text = ET.tostring(root, encoding="unicode").replace(" />", "/>")
    # Single quotes around JSON are shorter than an entity for each of its double quotes, which only attributes have.
    text = _QUOTED.sub(lambda found: "='" + found[1].replace("&quot;", '"') + "'", text)
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
    _limit_copies(root)


def _limit_copies(root: ET.Element) -> None:
    """Drop each ``<use>`` of what has one itself, since such copies multiply, and those above ``_MOST_COPIES``."""
    named = {f"#{element.get('id')}": element for element in root.iter() if "id" in element.attrib}
    sizes: dict[str, int] = {}
    copies = 0
    for use in root.iter(f"{_SVG}use"):
        href = use.get("href", "")
        if href not in sizes:
            target = named.get(href)
            nested = target is not None and next(target.iter(f"{_SVG}use"), None) is not None
            sizes[href] = _MOST_COPIES + 1 if target is None or nested else sum(1 for _ in target.iter())
        copies += sizes[href]
        if copies > _MOST_COPIES:
            copies -= sizes[href]
            use.attrib.pop("href", None)


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
