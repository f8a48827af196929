"""Where everything lies in the site, and how one page links to another file of it.

A site path is relative to the site's root, with ``/`` and without quoting: ``layer_norm/index.html``.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from urllib.parse import quote

from kernels_bench_tools.schema.build import NotebookRun
from kernels_bench_tools.text import slugify


def page_path(notebook: str) -> str:
    """Return the site path of a notebook's page.

    >>> page_path("layer_norm/impls/torch.md")
    'layer_norm/impls/torch.html'
    """
    return posixpath.splitext(notebook)[0] + ".html"


def relative_url(target: str, page: str) -> str:
    """Return the quoted URL that leads from one site path to another.

    >>> relative_url("a/artifacts/x y.csv", "a/b/index.html")
    '../artifacts/x%20y.csv'
    """
    return _url_from(target, posixpath.dirname(page))


@lru_cache(maxsize=4096)
def _url_from(target: str, folder: str) -> str:
    """Pages of a folder link to much the same places."""
    url = quote(posixpath.relpath(target, folder or "."))
    # A colon in the first segment would read as a scheme.
    return f"./{url}" if ":" in url.partition("/")[0] else url


def stays_inside(path: str) -> bool:
    """Return whether a relative path leads to something below where it starts."""
    parts = path.split("/")
    return bool(path) and "\\" not in path and not any(part in {"", ".", ".."} for part in parts)


class SitePaths:
    """The site paths of a build's notebooks, cells and artifacts.

    Files of a cell lie under its id, as uvnote's notebooks expect. Where notebooks of one folder share
    an id, the notebook's stem comes before it, so that none overwrites another's files.
    """

    def __init__(self, notebooks: Iterable[NotebookRun]) -> None:
        notebooks = list(notebooks)
        self.pages = {notebook.path: page_path(notebook.path) for notebook in notebooks}
        self._shared = Counter(
            (posixpath.dirname(notebook.path), cell.id) for notebook in notebooks for cell in notebook.cells
        )

    def artifact(self, notebook: str, cell: str, name: str) -> str:
        """Return the site path of an artifact."""
        return self._cell_file("artifacts", notebook, cell, f"/{name}")

    def script(self, notebook: str, cell: str) -> str:
        """Return the site path of a cell's code."""
        return self._cell_file("cells", notebook, cell, ".py")

    def log(self, notebook: str, cell: str, stream: str) -> str:
        """Return the site path of what a cell wrote to ``stream``, where a page shows only a part."""
        return self._cell_file("cells", notebook, cell, f".{stream}.txt")

    def _cell_file(self, kind: str, notebook: str, cell: str, ending: str) -> str:
        folder, file = posixpath.split(notebook)
        stem = posixpath.splitext(file)[0] if self._shared[folder, cell] > 1 else ""
        name = cell if stays_inside(cell) else slugify(cell)
        return posixpath.join(folder, kind, stem, name + ending)
