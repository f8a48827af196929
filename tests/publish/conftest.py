"""Reading published pages as a browser would."""

from __future__ import annotations

import posixpath
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree as ET

import html5lib
import pytest


class ReadPage:
    """A parsed page."""

    def __init__(self, site: Path, path: str) -> None:
        self.site = site
        self.path = path
        self.html = (site / path).read_text(encoding="utf-8")
        self.root: ET.Element = html5lib.parse(self.html, namespaceHTMLElements=False)

    @property
    def text(self) -> str:
        return " ".join("".join(self.root.itertext()).split())

    def elements(self, tag: str) -> list[ET.Element]:
        return [element for element in self.root.iter() if local_name(element) == tag]

    def ids(self) -> list[str]:
        return [element.attrib["id"] for element in self.root.iter() if "id" in element.attrib]

    def references(self) -> Iterator[tuple[str, str]]:
        """Yield tag and URL of everything that the page links to or loads."""
        for element in self.root.iter():
            for name in ("href", "src", "{http://www.w3.org/1999/xlink}href"):
                if name in element.attrib:
                    yield local_name(element), element.attrib[name]


def local_name(element: ET.Element) -> str:
    return str(element.tag).rpartition("}")[2]


def dead_references(site: Path) -> list[str]:
    """Return every link, source or fragment of the site's pages that leads nowhere."""
    pages = {path.relative_to(site).as_posix(): None for path in site.rglob("*.html")}
    read = {path: ReadPage(site, path) for path in pages}
    dead = []
    for path, page in read.items():
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
                found = unquote(parts.fragment) in read[target].ids()
            if not found:
                dead.append(f"{path}: {url}")
    return dead


@pytest.fixture(scope="session")
def pages(sample_site: Path) -> dict[str, ReadPage]:
    """Every page of the sample site by its path."""
    paths = [path.relative_to(sample_site).as_posix() for path in sorted(sample_site.rglob("*.html"))]
    return {path: ReadPage(sample_site, path) for path in paths}


@pytest.fixture(scope="session")
def read_page() -> type[ReadPage]:
    return ReadPage


@pytest.fixture(scope="session")
def find_dead_references():
    return dead_references
