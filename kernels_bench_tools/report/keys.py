"""Keys of what pages are made from: pages with the same key are not rendered again."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

import msgspec

from kernels_bench_tools.file_io import read_file
from kernels_bench_tools.records.build import NotebookRun
from kernels_bench_tools.report.paths import template_folder

_LIBRARIES = (
    "jinja2",
    "latex2mathml",
    "markdown-it-py",
    "markupsafe",
    "mdit-py-plugins",
    "nh3",
    "pygments",
)


def notebook_key(root: Path, notebook: NotebookRun) -> str:
    """Return the key of a notebook, its cells' status and all files of its cells.

    Whether a result came from the cache is on no page, so it does not count.
    """
    files = (
        path
        for cell in notebook.cells
        for path in (cell.stdout, cell.stderr, cell.environment_log, *cell.artifacts.values())
        if path
    )
    # Quotes inside of JSON strings are escaped, so only the field itself can match.
    text = msgspec.json.encode(notebook).replace(b'"cached":true', b'"cached":false')
    return digest(text, files_key(root, files))


def files_key(root: Path, paths: Iterable[str | Path]) -> str:
    """Return the key of files of the project, which may be missing, and their paths."""

    def content(path: str | Path) -> bytes:
        try:
            return read_file(root / path)
        except OSError:
            return b""

    return digest(*(part for path in paths for part in (str(path), content(path))))


def digest(*parts: str | bytes) -> str:
    """Return a digest of the parts and their lengths."""
    found = blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode(errors="surrogatepass")
        found.update(len(data).to_bytes(8, "big"))
        found.update(data)
    return found.hexdigest()


@cache
def program_key() -> str:
    """Return the key of templates, our own code and models, and the libraries that render."""
    package = Path(__file__).resolve().parents[1]
    models = ("models/configs/*.json", "models/derived/**/*.json", "models/baseline/**/*.py")
    patterns = ("*.py", "records/*.py", "report/*.py", "results/*.py", *models)
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
