"""A page while it is rendered: its path, its links and the ids in use."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from kernels_bench_tools.file_io import read_file
from kernels_bench_tools.report.paths import relative_url, stays_inside
from kernels_bench_tools.text.names import make_unique

_NOT_IN_A_SLUG = re.compile(r"[^\w\- ]")


class Links:
    """Resolves links in prose and figures.

    Args:
        root: The project.
        pages: Notebook to the site path of its page.
        files: Every site path that the build writes.
        repository: URL of the repository, for files that are not in the site; may be empty.
    """

    def __init__(self, root: Path, pages: Mapping[str, str], files: Collection[str], repository: str) -> None:
        self._root = root
        self._pages = pages
        self._notebooks = {page: notebook for notebook, page in pages.items()}
        self._files = files
        self._repository = repository
        self.dead: set[str] = set()
        """``notebook:line: url`` of each link whose target does not exist, or ``folder: url`` of a page without notebook."""

    def rewrite(self, url: str, folder: str, page: str) -> str:
        """Return the URL from ``page`` to what ``url`` names in a file of ``folder``.

        A link to a notebook becomes a link to its page, to a folder one to its index, to a project's file that is not
        in the site one to the repository. Any other is kept as it is and added to ``dead``.
        """
        try:
            parts = urlsplit(url)
        except ValueError:
            return self._dead(url, folder, page)
        if parts.scheme or parts.netloc or not parts.path:
            return url
        target = posixpath.normpath(posixpath.join(folder, unquote(parts.path)))
        path = self.find(target)
        tail = url[len(url.partition("?")[0].partition("#")[0]) :]
        if path is not None:
            return relative_url(path, page) + tail
        if self._repository and stays_inside(target) and (self._root / target).exists():
            return f"{self._repository}/blob/HEAD/{quote(target)}{tail}"
        return self._dead(url, folder, page)

    def _dead(self, url: str, folder: str, page: str) -> str:
        """Note where a link is whose target does not exist, and return it."""
        where = self._notebooks.get(page, folder or ".")
        with suppress(OSError, UnicodeDecodeError, StopIteration):
            lines = read_file(self._root / where).decode().split("\n")
            numbers = (at for at, line in enumerate(lines, 1) if url in line or unquote(url) in line)
            where += f":{next(numbers)}"
        self.dead.add(f"{where}: {url}")
        return url

    def find(self, target: str) -> str | None:
        """Return the site path of a project path or site path, None if the site has neither."""
        if target in self._pages:
            return self._pages[target]
        index = posixpath.normpath(posixpath.join(target, "index.html"))
        return next((path for path in (target, f"{target}.txt", index) if path in self._files), None)

    def source(self, notebook: str) -> str:
        """Return the URL of a notebook's source in the repository; empty if there is none."""
        return f"{self._repository}/blob/HEAD/{quote(notebook)}" if self._repository else ""


@dataclass
class Page:
    path: str
    links: Links
    taken: set[str] = field(default_factory=lambda: {"main"})

    @property
    def folder(self) -> str:
        """The folder of the page, which is also its notebook's."""
        return posixpath.dirname(self.path)

    def url(self, target: str) -> str:
        return relative_url(target, self.path)

    def unique_id(self, wanted: str) -> str:
        """Reserve and return ``wanted``, or ``wanted-1`` and so on if the page has it already."""
        unique = make_unique(wanted, self.taken, 1)
        self.taken.add(unique)
        return unique

    def heading_id(self, title: str) -> str:
        """Reserve and return the id of a heading, as GitHub spells it."""
        return self.unique_id(_NOT_IN_A_SLUG.sub("", title.strip().lower()).replace(" ", "-") or "section")
