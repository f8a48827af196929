"""Charts of cells as elements of a page: panels of ours as they were written; any other SVG file is an image.

A file comes from a cell, so it is not trusted, also where it looks like ours: only what our panels consist of is kept.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from html import unescape

import nh3
from markupsafe import Markup

_OURS = '<?xml version="1.0" encoding="utf-8"?>\n<svg xmlns="http://www.w3.org/2000/svg" class="figure"'
_PANEL = re.compile(r'<svg (?:y="[^"]*" )?(class="panel"[^>]*)>.*?</svg>', re.DOTALL)
_LOOK = {"class", "style", "fill", "transform"}
_DATA = "view chart title metric unit series note workload value low high status reason"
_ATTRIBUTES = {
    "svg": {"viewBox", "role", "aria-label", "class", "font-family", "font-size", "fill", "stroke-linejoin"},
    "g": _LOOK,
    "a": {"href", "aria-label", "tabindex"},
    "defs": set[str](),
    "path": {"id", "d", *_LOOK},  # only a path has an id, so no <use> can multiply what it shows
    "text": {"x", "y", *_LOOK},
    "use": {"href", "x", "y", *_LOOK},
}
_CLASSES = re.compile(r"panel|(band|failed|series|legend-label) \1--[\w-]+")
_PAINTING = {
    *("fill", "fill-opacity", "font-size", "font-weight", "opacity", "stroke", "stroke-dasharray"),
    *(
        "stroke-dashoffset",
        "stroke-linecap",
        "stroke-linejoin",
        "stroke-opacity",
        "stroke-width",
        "text-anchor",
    ),
}


@dataclass(frozen=True)
class ChartPanel:
    """One metric of one view: the slug of the device, then the key of the view if it has one."""

    source: str

    @cached_property
    def _tags(self) -> dict[str, str]:
        head = self.source[: self.source.index(">")]
        return {name: unescape(value) for name, value in re.findall(r' (?:data-)?([\w-]+)="([^"]*)"', head)}

    @property
    def view(self) -> str:
        return self._tags.get("view", "")

    @property
    def chart(self) -> str:
        return self._tags.get("chart", "")

    @property
    def title(self) -> str:
        return f"{self._tags.get('title', self.view)}: {self._tags.get('metric', self.chart).lower()}"

    @property
    def ratio(self) -> str:
        """Width and height as CSS."""
        size = self._tags.get("viewBox", "")
        return " / ".join(size.split()[2:]) if re.fullmatch(r"0 0 [\d.]+ [\d.]+", size) else "auto"

    def inlined(self, relink: Callable[[str], str | None]) -> Markup:
        """Return it as an element of a page.

        ``relink`` returns the link of the page for a link of the file, or None for one without a target.
        """

        def keep(tag: str, name: str, value: str) -> str | None:
            if name == "class":
                return value if _CLASSES.fullmatch(value) else None
            if name == "href" and tag == "use":
                return value if value.startswith("#") else None
            if name == "tabindex":
                return value if value == "-1" else None
            # A function or an escape could load something.
            return None if name in {"fill", "style"} and re.search(r"[(\\]", value) else value

        cleaned = nh3.clean(
            self.source,
            tags=set(_ATTRIBUTES),
            attributes={
                tag: names | {f"data-{name}" for name in _DATA.split()} for tag, names in _ATTRIBUTES.items()
            },
            attribute_filter=keep,
            filter_style_properties=_PAINTING,
            link_rel=None,
            url_schemes={"http", "https"},
            url_relative=lambda url: url if url.startswith("#") else relink(url),
        )
        # Shapes have no content.
        return Markup(re.sub(r"></(?:path|use)>", "/>", cleaned))  # noqa: S704 - cleaned


def read_panels(data: bytes) -> list[ChartPanel]:
    """Return the panels of a chart that ``chart_svg`` drew; none for any other file."""
    text = data.decode(errors="replace")
    return [ChartPanel(found[0]) for found in _PANEL.finditer(text)] if text.startswith(_OURS) else []
