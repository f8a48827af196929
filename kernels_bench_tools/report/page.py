"""What is known of one page while it is made: its place, its links and the ids it has given out."""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field

from kernels_bench_tools.report.links import Links
from kernels_bench_tools.report.paths import relative_url

_NOT_IN_A_SLUG = re.compile(r"[^\w\- ]")
_RAW_ID = re.compile(r"""\bid\s*=\s*["']?([^"'\s>]+)""")


@dataclass
class Page:
    """A page in the making."""

    path: str
    """Site path."""
    links: Links
    taken: set[str] = field(default_factory=lambda: {"main"})
    """Ids that the page has."""

    @property
    def folder(self) -> str:
        """The folder of the page, which is also its notebook's."""
        return posixpath.dirname(self.path)

    def url(self, target: str) -> str:
        """Return the URL from here to a site path."""
        return relative_url(target, self.path)

    def unique_id(self, wanted: str) -> str:
        """Give out ``wanted``, or ``wanted-1`` and so on if the page has it already."""
        unique, number = wanted, 0
        while unique in self.taken:
            number += 1
            unique = f"{wanted}-{number}"
        self.taken.add(unique)
        return unique

    def heading_id(self, title: str) -> str:
        """Give out the id of a heading, spelled as GitHub spells it."""
        return self.unique_id(_NOT_IN_A_SLUG.sub("", title.strip().lower()).replace(" ", "-") or "section")

    def reserve_raw_ids(self, html: str) -> None:
        """Keep the ids that an author wrote in raw HTML from being given out."""
        self.taken.update(_RAW_ID.findall(html))
