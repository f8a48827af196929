"""Keys of what the site is made from: the same key means that nothing that a page shows has changed."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from kernels_bench_tools.report.operators import Operator
from kernels_bench_tools.report.sentinels import record_files
from kernels_bench_tools.report.static import template_folder
from kernels_bench_tools.schema.build import NotebookRun

_LIBRARIES = ("jinja2", "latex2mathml", "markdown-it-py", "markupsafe", "mdit-py-plugins", "pygments")


def digest(*parts: str | bytes) -> str:
    """Return a digest of the parts, each told apart from its neighbours."""
    found = blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode(errors="surrogatepass")
        found.update(len(data).to_bytes(8, "big"))
        found.update(data)
    return found.hexdigest()


@cache
def program_key() -> str:
    """Return the key of what makes pages: templates, our own code, and the libraries that render."""
    package = Path(__file__).resolve().parent.parent
    patterns = ("*.py", "schema/*.py", "report/**/*.py")
    files = [
        *template_folder().glob("*.j2"),
        *(file for pattern in patterns for file in package.glob(pattern)),
    ]
    contents = [file.name.encode() + b"\n" + file.read_bytes() for file in sorted(files)]
    return digest(*contents, *map(_version, _LIBRARIES))


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:  # a copy without metadata
        return ""


class Keys:
    """The keys of one build; each file is read once.

    Args:
        root: The project.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._files: dict[str, str] = {}
        self._notebooks: dict[str, str] = {}
        self._records: dict[str, list[Path]] = {}

    def file(self, path: str) -> str:
        """Return the key of a file; that of a missing one is empty."""
        if path not in self._files:
            try:
                with open(path, "rb") as file:  # noqa: PTH123 - of thousands of files, a Path each costs more than this
                    self._files[path] = digest(file.read())
            except OSError:
                self._files[path] = ""
        return self._files[path]

    def files(self, paths: Iterable[Path]) -> str:
        """Return the key of files of the project, their names included."""
        return digest(
            *(part for path in paths for part in (str(path.relative_to(self._root)), self.file(str(path))))
        )

    def text(self, notebook: NotebookRun) -> str:
        """Return the key of a notebook's text and of how its cells ended; whether one was cached changes nothing."""
        # Within a string its quotes would be escaped.
        return digest(msgspec.json.encode(notebook).replace(b'"cached":true', b'"cached":false'))

    def notebook(self, notebook: NotebookRun) -> str:
        """Return the key of a notebook with everything that its cells left."""
        if notebook.path not in self._notebooks:
            # Thousands of them: joining strings takes a tenth of what joining paths does.
            left = [
                path
                for cell in notebook.cells
                for path in (cell.stdout, cell.stderr, cell.environment_log, *cell.artifacts.values())
                if path
            ]
            keys = (self.file(f"{self._root}/{path}") for path in left)
            self._notebooks[notebook.path] = digest(self.text(notebook), *keys)
        return self._notebooks[notebook.path]

    def facts(self, operator: Operator) -> str:
        """Return the key of what pages say of an operator beside its notebooks' text."""
        summary = [str(artifact.file) for artifact in operator.artifacts if artifact.name == "summary.json"]
        own = [*([operator.index] if operator.index else []), *operator.combined]
        return digest(
            operator.folder,
            operator.title,
            operator.description,
            operator.problem,
            *map(self.file, summary),
            *(msgspec.json.encode(notebook.front) for notebook in own),
        )

    def records(self, operator: Operator, implementation: str = "") -> str:
        """Return the key of an operator's committed records, or of those of one implementation."""
        if operator.folder not in self._records:
            self._records[operator.folder] = record_files(self._root, operator.folder)
        files = self._records[operator.folder]
        return self.files(file for file in files if not implementation or file.stem == implementation)
