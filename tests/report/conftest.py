"""Reading published pages as a browser would."""

from __future__ import annotations

import importlib.util
import posixpath
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import unquote, urlsplit
from xml.etree import ElementTree as ET

import html5lib
import pytest

from kernels_bench_tools.report.site import publish


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


def read_pages(site: Path) -> dict[str, ReadPage]:
    """Return every page of a site by its path."""
    paths = [path.relative_to(site).as_posix() for path in sorted(site.rglob("*.html"))]
    return {path: ReadPage(site, path) for path in paths}


def dead_references(site: Path, pages: dict[str, ReadPage] | None = None) -> list[str]:
    """Return every link, source or fragment of the site's pages that leads nowhere."""
    read = read_pages(site) if pages is None else pages
    known = {path: frozenset(page.ids()) for path, page in read.items()}
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
                found = unquote(parts.fragment) in known[target]
            if not found:
                dead.append(f"{path}: {url}")
    return dead


@pytest.fixture(scope="session")
def pages(sample_site: Path) -> dict[str, ReadPage]:
    """Every page of the sample site by its path."""
    return read_pages(sample_site)


@pytest.fixture(scope="session")
def many_views_project(tmp_path_factory: pytest.TempPathFactory):
    """A project with many views and implementations, and the build of it."""
    spec = importlib.util.spec_from_file_location("many_views", Path(__file__).with_name("many_views.py"))
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    root = tmp_path_factory.mktemp("many") / "project"
    return root, module.write_project(root)


@pytest.fixture(scope="session")
def many_site(many_views_project) -> Path:
    """The site of the project with many views."""
    root, build = many_views_project
    publish(root, build, root / "site")
    return root / "site"


@pytest.fixture(scope="session")
def many_pages(many_site: Path) -> dict[str, ReadPage]:
    """Every page of the site with many views; reading them takes a while."""
    return read_pages(many_site)


@pytest.fixture(scope="session")
def read_page() -> type[ReadPage]:
    return ReadPage


@pytest.fixture(scope="session")
def find_dead_references():
    return dead_references
