"""Figures taken into a page: cleaned, with ids of their own, links that work there, and names to read out.

A figure comes from a cell, so it is not trusted: only elements and attributes that draw are kept.
Series are found by ``data-series``; what is written here is what ``report.js`` reads.
"""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass, field

from markupsafe import Markup

from kernels_bench_tools.report.chart.drawing import FOREIGN_URL, SVG, read_drawing
from kernels_bench_tools.report.chart.panels import cut
from kernels_bench_tools.report.chart.slimming import slim

_LOCAL_URL = re.compile(r"url\(\s*['\"]?#([^'\")\s]+)['\"]?\s*\)", re.IGNORECASE)
_SCHEME = re.compile(r"^[\s\x00-\x20]*([a-z][a-z0-9+.\-\s]*):", re.IGNORECASE)
_SHAPE = re.compile(r"[a-z0-9-]+-\d+")
_JSON = re.compile(r' (data-scales|data-workloads)="([^"]*)"')
_ID_LISTS = ("aria-labelledby", "aria-describedby")


@dataclass(frozen=True)
class SeriesName:
    """What a reader is told about a series."""

    title: str
    device: str
    """The device, and the view of it where there are several."""
    note: str = ""
    """Its speed-up or why it has none, in a few words."""
    panel: str = ""
    """What it shares with the series that it is compared with."""


@dataclass(frozen=True)
class Setting:
    """The page that a figure is taken into."""

    unique_id: Callable[[str], str]
    relink: Callable[[str], str | None]
    """Gives the link of the page for a link of the figure, or None for one that leads nowhere."""
    names: Mapping[str, SeriesName] = field(default_factory=dict)
    """Name of each series by its slug."""


@dataclass(frozen=True)
class Panel:
    """A part of a figure, as an element of an HTML page."""

    series: str
    """Slug of its first series."""
    figure: Markup


def inline_figure(
    data: bytes, label: str, setting: Setting, elsewhere: Set[str] = frozenset()
) -> tuple[list[Panel], Markup | None]:
    """Return the panels of the figure as elements of an HTML page, or all of it as one if it cannot be cut.

    It is not cut if it is one panel, or of a make that is not known.

    Args:
        data: The SVG file.
        label: Its name if it has no title of its own.
        setting: The page it goes into.
        elsewhere: Slugs of series whose panels are not wanted.

    Raises:
        ValueError: It is not SVG, or declares entities.
    """
    root = read_drawing(data)
    panels = _panels(root, label, setting, elsewhere)
    return panels, None if panels else _inlined(root, label, setting)


def _panels(root: ET.Element, label: str, setting: Setting, elsewhere: Set[str]) -> list[Panel]:
    cuts = cut(root)
    if len(cuts) < 2:
        return []
    return [
        Panel(one.series, _inlined(one.root, one.heading or label, setting, one.heading))
        for one in cuts
        if one.series not in elsewhere
    ]


def _inlined(root: ET.Element, label: str, setting: Setting, heading: str = "") -> Markup:
    slim(root)
    _relink(root, setting.relink)
    _rename_ids(root, setting.unique_id)
    _scope_styles(root, setting.unique_id)
    _name(root, label, setting.names, heading)
    return Markup(_serialized(root))  # noqa: S704 - nothing but drawing elements is left


def _relink(root: ET.Element, relink: Callable[[str], str | None]) -> None:
    for element in root.iter():
        url = element.attrib.pop("href", None)
        if url is None:
            continue
        scheme = _SCHEME.match(url)
        if url.startswith("#"):
            element.set("href", url)
        elif element.tag == f"{SVG}a" and (scheme is None or scheme[1].lower() in {"http", "https"}):
            target = relink(url)
            if target is not None:
                element.set("href", target)


def _rename_ids(root: ET.Element, unique_id: Callable[[str], str]) -> None:
    renamed: dict[str, str] = {}
    for element in root.iter():
        old = element.get("id")
        if old is not None:
            # Hundreds of markers name their shapes, so those have short names.
            short = _SHAPE.fullmatch(old) and element is not root and "data-series" not in element.attrib
            new = unique_id("m" if short else re.sub(r"\s+", "-", old) or "figure")
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
    """Nest each style sheet in a rule for the figure, or drop one that could reach out of it."""
    for parent in list(root.iter()):
        for style in parent.findall(f"{SVG}style"):
            css = style.text or ""
            if FOREIGN_URL.search(css) or re.search(r"@import|\\|</|/\*", css) or not _is_balanced(css):
                parent.remove(style)
                continue
            if "id" not in root.attrib:
                root.set("id", unique_id("figure"))
            style.text = f"[id={_quoted(root.attrib['id'])}] {{ {css.strip()} }}"


def _is_balanced(css: str) -> bool:
    depth = 0
    for char in css:
        depth += {"{": 1, "}": -1}.get(char, 0)
        if depth < 0:
            return False
    return depth == 0


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _name(root: ET.Element, label: str, names: Mapping[str, SeriesName], heading: str) -> None:
    for size in ("width", "height"):
        root.attrib.pop(size, None)
    for title in root.findall(f"{SVG}title"):
        label = (title.text or "").strip() or label
        # Left in place, browsers would show it over every tooltip.
        root.remove(title)
    # Not "img", whose parts no one can reach: the series inside are links.
    root.set("role", "group")
    root.set("aria-label", _panel_label(label, heading) if heading and heading != label else label)
    groups = [group for group in root.iter(f"{SVG}g") if group.get("data-series") in names]
    for device in dict.fromkeys(names[group.get("data-series", "")].device for group in groups):
        # Of a figure with several panels each series says it for itself.
        alone = all(names[group.get("data-series", "")].device == device for group in groups)
        for element in [root] if alone else groups:
            if alone or names[element.get("data-series", "")].device == device:
                element.set("data-device-name", device)
    linked = {group.get("data-series") for group in groups if _is_series(group) and _links(group)}
    for group in groups:
        slug = group.get("data-series", "")
        name = names[slug]
        if _is_series(group):
            group.set("data-title", name.title)
            group.set("data-note", name.note)
        for link in _links(group):
            link.attrib.pop("aria-label", None)
            if _is_series(group):
                # The figure says for all of them where they were measured, if it is one place.
                link.set(
                    "aria-label",
                    name.title if "data-device-name" in root.attrib else f"{name.title} on {name.device}",
                )
            if slug in linked and not _is_series(group):
                # One stop of the Tab key for each series is enough.
                link.set("tabindex", "-1")


def _panel_label(label: str, heading: str) -> str:
    """Return what a panel shows: its heading says of what and on which device, so the figure's label need not."""
    title = heading.partition(" · ")[0]
    return f"{heading}: {label.removeprefix(f'{title}: ').partition(' on ')[0]}"


def _is_series(group: ET.Element) -> bool:
    return "series" in group.get("class", "").split()


def _links(group: ET.Element) -> list[ET.Element]:
    return [link for link in group.iter(f"{SVG}a") if "href" in link.attrib]


def _serialized(root: ET.Element) -> str:
    for element in root.iter():
        element.tag = element.tag.removeprefix(SVG)
    # An empty element of a figure ends with a slash in HTML too.
    text = ET.tostring(root, encoding="unicode").replace(" />", "/>")
    return _JSON.sub(_in_single_quotes, text)


def _in_single_quotes(match: re.Match[str]) -> str:
    value = match[2].replace("'", "&#39;").replace("&quot;", '"')
    return f" {match[1]}='{value}'"
