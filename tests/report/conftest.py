"""Reading published pages as a browser would."""

import posixpath
import re
from collections import Counter
from collections.abc import Callable
from functools import cached_property
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree as ET

import html5lib
import pytest
from markup import text_of

REFERENCES = {"href", "src", "xlink:href"}


class _Scanner(HTMLParser):
    """Collects ids, references and levels of headings, which takes a tenth of the time of parsing the page."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.ids: list[str] = []
        self.references: list[tuple[str, str]] = []
        self.levels: list[int] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.ids += [value or "" for name, value in attrs if name == "id"]
        self.references += [(tag, value or "") for name, value in attrs if name in REFERENCES]
        if re.fullmatch("h[1-6]", tag):
            self.levels.append(int(tag[1]))


class ReadPage:
    """A page; it is parsed when its elements or its text are first read."""

    def __init__(self, site: Path, path: str) -> None:
        self.site = site
        self.path = path
        self.html = (site / path).read_text(encoding="utf-8")

    @cached_property
    def root(self) -> ET.Element:
        root: ET.Element = html5lib.parse(self.html, namespaceHTMLElements=False)
        return root

    @cached_property
    def _scanned(self) -> _Scanner:
        return _Scanner(self.html)

    @property
    def text(self) -> str:
        return text_of(self.root)

    @property
    def heading_levels(self) -> list[int]:
        return self._scanned.levels

    def elements(self, tag: str) -> list[ET.Element]:
        return [element for element in self.root.iter() if local_name(element) == tag]

    def ids(self) -> list[str]:
        return self._scanned.ids

    def references(self) -> list[tuple[str, str]]:
        """Return tag and URL of everything that the page links to or loads."""
        return self._scanned.references


def local_name(element: ET.Element) -> str:
    return str(element.tag).rpartition("}")[2]


def read_pages(site: Path) -> dict[str, ReadPage]:
    """Return every page of a site by its path."""
    paths = [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))]
    return {path: ReadPage(site, path) for path in paths}


def flaws(site: Path, pages: dict[str, ReadPage] | None = None) -> list[str]:
    """Return what leads nowhere, ids that a page has twice, and headings that skip a level."""
    read = read_pages(site) if pages is None else pages
    known = {path: frozenset(page.ids()) for path, page in read.items()}
    found_flaws = []
    for path, page in read.items():
        found_flaws += [f"{path}: #{one} twice" for one, times in Counter(page.ids()).items() if times > 1]
        levels = pairwise([0, *page.heading_levels])
        found_flaws += [f"{path}: h{below} after h{above}" for above, below in levels if below > above + 1]
        for _, url in page.references():
            parts = urlsplit(url)
            if parts.scheme or parts.netloc:
                continue
            target = (
                posixpath.normpath(posixpath.join(posixpath.dirname(path), unquote(parts.path)))
                if parts.path
                else path
            )
            found = (site / target).is_file()
            if found and parts.fragment and target in read:
                found = unquote(parts.fragment.partition("?")[0]) in known[target]
            if not found:
                found_flaws.append(f"{path}: {url}")
    return found_flaws


@pytest.fixture(scope="session")
def pages(sample_site: Path) -> dict[str, ReadPage]:
    """Every page of the sample site by its path."""
    return read_pages(sample_site)


@pytest.fixture(scope="session")
def many_pages(many_site: Path) -> dict[str, ReadPage]:
    """Every page of the site with many views."""
    return read_pages(many_site)


@pytest.fixture(scope="session")
def read_page() -> type[ReadPage]:
    return ReadPage


@pytest.fixture(scope="session")
def find_flaws():
    return flaws


@pytest.fixture
def published(sample) -> Callable[[str], ReadPage]:
    """Publish the sample project as it is now; return one of its pages."""

    def read(path: str) -> ReadPage:
        sample.publish()
        return ReadPage(sample.site, path)

    return read
