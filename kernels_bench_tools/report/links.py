"""Links as authors write them, turned into links that work from a page on disk."""

from __future__ import annotations

import posixpath
from collections.abc import Collection, Mapping
from pathlib import Path
from urllib.parse import quote, unquote, urlsplit

from kernels_bench_tools.report.paths import relative_url, stays_inside


class Links:
    """Resolves what prose and figures link to.

    Args:
        root: The project.
        pages: Notebook to the site path of its page.
        files: Every site path that the build writes.
        repository: URL of the repository, for files that are not in the site; may be empty.
    """

    def __init__(self, root: Path, pages: Mapping[str, str], files: Collection[str], repository: str) -> None:
        self._root = root
        self._pages = pages
        self._files = files
        self._repository = repository
        self.dead: set[str] = set()
        """``notebook folder: url`` of each link that leads nowhere."""

    def rewrite(self, url: str, folder: str, page: str) -> str:
        """Return the link for ``page`` that means what ``url`` means in a file of ``folder``.

        A notebook becomes its page, a folder its index, and a project's file that the site lacks its
        place in the repository. What leads nowhere stays as it is, and is remembered in ``dead``.
        """
        try:
            parts = urlsplit(url)
        except ValueError:
            self.dead.add(f"{folder or '.'}: {url}")
            return url
        if parts.scheme or parts.netloc or not parts.path:
            return url
        target = posixpath.normpath(posixpath.join(folder, unquote(parts.path)))
        found = self.find(target)
        tail = url[len(url.partition("?")[0].partition("#")[0]) :]
        if found is not None:
            return relative_url(found, page) + tail
        if self._repository and stays_inside(target) and (self._root / target).exists():
            return f"{self._repository}/blob/HEAD/{quote(target)}{tail}"
        self.dead.add(f"{folder or '.'}: {url}")
        return url

    def find(self, target: str) -> str | None:
        """Return the site path that a project path or site path stands for, or None."""
        if target in self._pages:
            return self._pages[target]
        if target in self._files:
            return target
        index = posixpath.normpath(posixpath.join(target, "index.html"))
        return index if index in self._files else None

    def source(self, notebook: str) -> str:
        """Return the URL of a notebook's source in the repository; empty if there is none."""
        return f"{self._repository}/blob/HEAD/{quote(notebook)}" if self._repository else ""
