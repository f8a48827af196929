"""What a figure needs as a file of its own, and a page that has a dozen of them does not."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

from kernels_bench_tools.publish.drawing import SVG

_OWN_INK = re.compile(r"(#[\w-]+:root\{[^{}]*\}|@media[^{}]*\{#[\w-]+:root\{[^{}]*\}\})*")


def slim(root: ET.Element) -> None:
    """Make a figure smaller for a page; ``report.js`` puts back what it needs."""
    _drop_unused(root)
    _name_workloads_once(root)


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
        panel.set("data-workloads", json.dumps(names, ensure_ascii=False, separators=(",", ":")))
        for use in markers:
            if names[use.get("data-at")] == use.get("data-workload"):
                use.attrib.pop("data-workload", None)
