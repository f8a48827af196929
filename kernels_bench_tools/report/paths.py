"""Paths of the site's files and URLs between them.

A site path is relative to the site's root, with ``/`` and without quoting: ``layer_norm/index.html``.
"""

from __future__ import annotations

import posixpath
from collections import Counter
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from urllib.parse import quote

from kernels_bench_tools.records.build import NotebookRun
from kernels_bench_tools.records.model import DERIVED, model_files
from kernels_bench_tools.records.notebook import IMPLEMENTATIONS, operator_of
from kernels_bench_tools.text.names import slugify

DEVICES = "devices/index.html"
FRONT = "index.html"
HIGHLIGHTING = "static/highlight.css"
METHOD = "method.html"
MODELS = "models/index.html"
REPORT = "report.json"
SELFCHECK = "selfcheck.html"
STATUS = "status.html"

KINDS = {"": "Ranking", "models": "Shapes of models", "backward": "Backward"}
"""Kinds of results, of which each has a page with this title: workloads of the operator's own, and others."""

_PACKAGE = Path(__file__).resolve().parents[1]


def device_page(slug: str) -> str:
    # A device called "index" would replace the list of devices.
    return posixpath.join(posixpath.dirname(DEVICES), f"{slug if slug != 'index' else 'index-device'}.html")


def results_page(folder: str, kind: str) -> str:
    """Return the page of an operator's results of one kind; of the main ones if it is empty."""
    return posixpath.join(folder, f"{kind or 'index'}.html")


def model_file(key: str, suffix: str = "html") -> str:
    """Return the page of a model, or the file beside it with another suffix."""
    return posixpath.join(posixpath.dirname(MODELS), f"{key}.{suffix}")


def script(page: str, kind: str) -> str:
    """Return a script of a page: charts of its ``views``, ``charts`` of other metrics, or ``pairs``, any two implementations compared."""
    return f"{posixpath.splitext(page)[0]}.{kind}.js"


def operator_records(folder: str) -> str:
    return posixpath.join(folder, "results", "records.jsonl")


def template_folder() -> Path:
    """Return the folder of the templates: inside an installed package, beside it in a checkout."""
    installed = _PACKAGE / "templates"
    return installed if installed.is_dir() else _PACKAGE.parent / "templates"


def static_files() -> dict[str, bytes]:
    folder = template_folder() / "static"
    return {f"static/{path.name}": path.read_bytes() for path in sorted(folder.iterdir()) if path.is_file()}


def page_path(notebook: str) -> str:
    """Return the site path of a notebook's page.

    >>> page_path("layer_norm/impls/torch.md")
    'layer_norm/impls/torch.html'
    """
    return posixpath.splitext(notebook)[0] + ".html"


def is_generated(page: str) -> bool:
    """Whether a site path is that of a file that does not depend on a project's folders, except the front page."""
    fixed = {DEVICES, HIGHLIGHTING, METHOD, MODELS, REPORT, SELFCHECK, STATUS}
    models = map(model_file, model_files(DERIVED)) if page.startswith(f"{posixpath.dirname(MODELS)}/") else ()
    return page in {*fixed, *models} or Path(page).match(f"{posixpath.dirname(DEVICES)}/*.html")


def replaced_page(root: Path, notebook: str) -> str:
    """Return the generated page that a notebook's page, or its operator's, would replace; empty if there is none."""
    page, folder = page_path(notebook), posixpath.dirname(notebook)
    own = [page, results_page(operator, "")] if (operator := operator_of(notebook)) else [page]
    if (root / folder / IMPLEMENTATIONS).is_dir() and page in {
        results_page(folder, kind) for kind in KINDS if kind
    }:
        return page
    # Where case makes no difference to files, they would be one.
    return next((it for it in own if is_generated(it) or is_generated(it.lower())), "")


def relative_url(target: str, page: str) -> str:
    """Return the quoted URL from one page to a site path.

    >>> relative_url("a/artifacts/x y.csv", "a/b/index.html")
    '../artifacts/x%20y.csv'
    """
    return _url_from(target, posixpath.dirname(page))


@lru_cache(maxsize=4096)
def _url_from(target: str, folder: str) -> str:
    url = quote(posixpath.relpath(target, folder or "."))
    # A colon in the first segment would read as a scheme.
    return f"./{url}" if ":" in url.partition("/")[0] else url


def stays_inside(path: str) -> bool:
    """Whether a relative path is a plain path below its folder."""
    parts = path.split("/")
    return bool(path) and "\\" not in path and not any(part in {"", ".", ".."} for part in parts)


class SitePaths:
    """The site paths of a build's notebooks, cells and artifacts.

    Files of a cell are in a folder named after its id, as in uvnote. Where notebooks of one folder share an id, the
    notebook's stem comes before it.
    """

    def __init__(self, notebooks: Iterable[NotebookRun]) -> None:
        notebooks = list(notebooks)
        self.pages = {notebook.path: page_path(notebook.path) for notebook in notebooks}
        self._shared = Counter(
            (posixpath.dirname(notebook.path), cell.id) for notebook in notebooks for cell in notebook.cells
        )

    def artifact(self, notebook: str, cell: str, name: str) -> str:
        return self._cell_file("artifacts", notebook, cell, f"/{name}")

    def script(self, notebook: str, cell: str) -> str:
        return self._cell_file("cells", notebook, cell, ".py")

    def log(self, notebook: str, cell: str, stream: str) -> str:
        """Return the site path of a log that the page shows only in part."""
        return self._cell_file("cells", notebook, cell, f".{stream}.txt")

    def _cell_file(self, kind: str, notebook: str, cell: str, ending: str) -> str:
        folder, file = posixpath.split(notebook)
        stem = posixpath.splitext(file)[0] if self._shared[folder, cell] > 1 else ""
        name = cell if stays_inside(cell) else slugify(cell)
        return posixpath.join(folder, kind, stem, name + ending)
