"""What a figure needs as a file of its own, and a page that has a dozen of them does not."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET
from itertools import groupby

from kernels_bench_tools.report.chart.drawing import SVG
from kernels_bench_tools.report.chart.outlines import short_path

_LINE = ("fill:none", "stroke-width:2", "stroke-linecap:square")
"""What ``style.css`` says of the class ``line``."""
_ANCHOR = "text-anchor:"
_LONG_NUMBER = re.compile(r"\d+\.\d{4,}(?![\d.e])")
_DIGITS = 4
_OWN_INK = re.compile(r"(#[\w-]+:root\{[^{}]*\}|@media[^{}]*\{#[\w-]+:root\{[^{}]*\}\})*")


def slim(root: ET.Element) -> None:
    """Make a figure smaller for a page; ``report.js`` puts back what it needs."""
    _drop_unused(root)
    _name_workloads_once(root)
    _drop_blanks(root)
    _style_markers_once(root)
    for group in list(root.iter()):
        if group.tag in {f"{SVG}g", f"{SVG}a"}:
            _anchor_once(group)
    for path in root.iter(f"{SVG}path"):
        _class_line(path)
        if "d" in path.attrib:
            path.set("d", short_path(path.attrib["d"]))


def _drop_unused(root: ET.Element) -> None:
    """Drop what a figure needs alone and not in a page: its ink, and ids of groups that classes tell as well."""
    for parent in list(root.iter()):
        for style in parent.findall(f"{SVG}style"):
            if _OWN_INK.fullmatch(style.text or ""):
                parent.remove(style)
    for group in root.iter(f"{SVG}g"):
        group.attrib.pop("data-device", None)
        if "data-series" in group.attrib:
            group.attrib.pop("id", None)
        if "band" in group.get("class", "").split():
            group.set("class", "band")
        if all(root.get(name) == group.get(name) for name in ("data-metric", "data-unit")):
            for name in ("data-metric", "data-unit"):
                group.attrib.pop(name, None)


def _name_workloads_once(root: ET.Element) -> None:
    """Say of each panel which workloads it has, where a name for each marker would be most of the page."""
    for panel in root.iter(f"{SVG}g"):
        if panel.get("class") != "panel":
            continue
        markers = [use for use in panel.iter(f"{SVG}use") if "data-at" in use.attrib]
        names = {use.get("data-at"): use.get("data-workload", "") for use in markers}
        if "data-scales" in panel.attrib:
            panel.set("data-scales", _plain_scales(panel.attrib["data-scales"]))
        panel.set("data-workloads", json.dumps(names, ensure_ascii=False, separators=(",", ":")))
        for use in markers:
            if names[use.get("data-at")] == use.get("data-workload"):
                use.attrib.pop("data-workload", None)
            _pack_values(use)


def _pack_values(use: ET.Element) -> None:
    """Put a marker's value and its ends before those that it has on the other scales, as exactly as they are shown."""
    own = [use.attrib.pop(f"data-{name}", "") for name in ("value", "low", "high")]
    if any(own) or "data-all" in use.attrib:
        packed = ";".join([" ".join(own).strip(), *filter(None, [use.get("data-all")])])
        use.set("data-all", _LONG_NUMBER.sub(lambda found: f"{float(found[0]):.{_DIGITS}g}", packed))


def _style_markers_once(root: ET.Element) -> None:
    """Leave to the groups of markers what they say of their ink as well as the marker's shape does."""
    said: dict[str, list[set[str]]] = {}
    for group in root.iter():
        for use in group.findall(f"{SVG}use"):
            styles = ";".join((group.get("style", ""), use.get("style", "")))
            said.setdefault(use.get("href", "").removeprefix("#"), []).append(set(styles.split(";")))
    for shape in root.iter(f"{SVG}path"):
        around = said.get(shape.get("id", ""))
        if around:
            _set_style(
                shape,
                [part for part in shape.get("style", "").split(";") if part not in set.intersection(*around)],
            )


def _plain_scales(text: str) -> str:
    """Return the scales of a panel without what goes without saying: nothing, no, and zero."""
    try:
        scales = json.loads(text)
    except ValueError:
        return text
    if not isinstance(scales, list):
        return text
    plain = [
        {name: value for name, value in scale.items() if value} if isinstance(scale, dict) else scale
        for scale in scales
    ]
    return json.dumps(plain, ensure_ascii=False, separators=(",", ":"))


def _drop_blanks(parent: ET.Element) -> None:
    """Drop line ends between elements; in a text they would be blanks."""
    if parent.tag == f"{SVG}text":
        return
    for child in parent:
        if child.tail and not child.tail.strip():
            child.tail = None
        _drop_blanks(child)


def _anchor_once(group: ET.Element) -> None:
    """Say once which end of texts is anchored where several follow each other; their start is, if nothing says so."""
    for anchor, run in groupby(list(group), _anchor):
        if anchor:
            _wrap(group, list(run), anchor)


def _anchor(element: ET.Element) -> str:
    if element.tag != f"{SVG}text":
        return ""
    return next((part for part in element.get("style", "").split(";") if part.startswith(_ANCHOR)), "")


def _wrap(group: ET.Element, texts: list[ET.Element], anchor: str) -> None:
    plain = anchor == f"{_ANCHOR}start"
    if len(texts) < 2 and not plain:
        return
    for text in texts:
        _set_style(text, [part for part in text.get("style", "").split(";") if part != anchor])
    if plain:
        return
    around = ET.Element(f"{SVG}g", {"style": anchor})
    group.insert(list(group).index(texts[0]), around)
    for text in texts:
        group.remove(text)
        around.append(text)


def _class_line(path: ET.Element) -> None:
    style = path.get("style", "").split(";")
    if "class" not in path.attrib and all(part in style for part in _LINE):
        path.set("class", "line")
        _set_style(path, [part for part in style if part not in _LINE])


def _set_style(element: ET.Element, parts: list[str]) -> None:
    if any(parts):
        element.set("style", ";".join(parts))
    else:
        element.attrib.pop("style", None)
