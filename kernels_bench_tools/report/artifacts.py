"""Artifacts of cells: files with their site paths, and their previews on pages."""

from __future__ import annotations

import csv
import io
import os
import posixpath
import re
from base64 import b64encode
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from html import escape, unescape
from itertools import islice
from pathlib import Path
from urllib.parse import unquote

import nh3
from markupsafe import Markup

from kernels_bench_tools.file_io import file_text, read_file, real_path
from kernels_bench_tools.records.build import NotebookRun
from kernels_bench_tools.report.page import Links, Page
from kernels_bench_tools.report.paths import SitePaths, relative_url, stays_inside
from kernels_bench_tools.text.hiding import visible
from kernels_bench_tools.text.numbers import size

_OURS = '<?xml version="1.0" encoding="utf-8"?>\n<svg xmlns="http://www.w3.org/2000/svg" class="figure"'
_PANEL = re.compile(r'<svg (?:y="[^"]*" )?(class="panel"[^<>]*)>(?:[^<]++|<(?!/?svg\b))*+</svg>')
_LOOK = {"class", "style", "fill", "transform"}
_PANEL_DATA = "view chart title metric unit series note workload value low high status reason"
_ATTRIBUTES = {
    "svg": {"viewBox", "role", "aria-label", "class", "font-family", "font-size", "fill", "stroke-linejoin"},
    "g": _LOOK,
    "a": {"href", "aria-label", "tabindex"},
    "defs": set[str](),
    "path": {"id", "d", *_LOOK},  # only a path has an id, so no <use> can multiply what it shows
    "text": {"x", "y", *_LOOK},
    "use": {"href", "x", "y", *_LOOK},
}
_CLASSES = re.compile(r"panel|(band|failed|series|legend-label) \1--[\w-]+")
_PAINTING = {"fill", "fill-opacity", "font-size", "font-weight", "opacity", "stroke", "text-anchor"} | {
    f"stroke-{kind}" for kind in ("dasharray", "dashoffset", "linecap", "linejoin", "opacity", "width")
}


@dataclass(frozen=True)
class ChartPanel:
    """One metric of one view: the slug of the device, then the key of the view if it has one."""

    source: str

    @cached_property
    def _tags(self) -> dict[str, str]:
        head = self.source[: self.source.index(">")]
        return {name: unescape(value) for name, value in re.findall(r' (?:data-)?([\w-]+)="([^"]*)"', head)}

    @property
    def view(self) -> str:
        return self._tags.get("view", "")

    @property
    def chart(self) -> str:
        return self._tags.get("chart", "")

    @property
    def title(self) -> str:
        return f"{self._tags.get('title', self.view)}: {self._tags.get('metric', self.chart).lower()}"

    @property
    def ratio(self) -> str:
        """Width and height as CSS."""
        size = self._tags.get("viewBox", "")
        return " / ".join(size.split()[2:]) if re.fullmatch(r"0 0 [\d.]+ [\d.]+", size) else "auto"

    def inlined(self, relink: Callable[[str], str | None]) -> Markup:
        """Return it as an element of a page.

        ``relink`` returns the link of the page for a link of the file, or None for one without a target.
        """

        def keep(tag: str, name: str, value: str) -> str | None:
            if name == "class":
                return value if _CLASSES.fullmatch(value) else None
            if name == "href" and tag == "use":
                return value if value.startswith("#") else None
            if name == "tabindex":
                return value if value == "-1" else None
            # A function or an escape could load something.
            return None if name in {"fill", "style"} and re.search(r"[(\\]", value) else value

        cleaned = nh3.clean(
            self.source,
            tags=set(_ATTRIBUTES),
            attributes={
                tag: names | {f"data-{name}" for name in _PANEL_DATA.split()}
                for tag, names in _ATTRIBUTES.items()
            },
            attribute_filter=keep,
            filter_style_properties=_PAINTING,
            link_rel=None,
            url_schemes={"http", "https"},
            url_relative=lambda url: url if url.startswith("#") else relink(url),
        )
        # Shapes have no content.
        return Markup(re.sub(r"></(?:path|use)>", "/>", cleaned))  # noqa: S704 - cleaned


def read_panels(data: bytes) -> list[ChartPanel]:
    """Return the panels of a chart that ``chart_svg`` drew; none for any other file."""
    text = data.decode(errors="replace")
    return [ChartPanel(panel[0]) for panel in _PANEL.finditer(text)] if text.startswith(_OURS) else []


MAX_ROWS, MAX_COLUMNS = 200, 100
"""How much of a CSV file a page shows; the file itself holds all of it."""
_DATA = {"csv", "json", "jsonl"}
_IMAGES = {"png", "jpg", "jpeg", "gif", "webp"}
_FRAMED = {"htm", "html", "xhtml", "xml"}
_RENDERED = {*_DATA, *_FRAMED, "log", "md", "py", "svg", "toml", "txt", "yaml", "yml"}
"""Published without scripts and without the names of home folders; any other file is copied as it is."""
_BINARY = "bin bz2 cubin gz h5 ncu-rep npy npz nsys-rep onnx parquet pdf pkl pt pth safetensors so tar tgz whl xz zip"
_PUBLISHED = {*_RENDERED, *_IMAGES, *_BINARY.split()}
"""Endings in which a browser runs nothing; a file with another one is published as a text."""
LARGEST = {"csv": 10_000_000, "md": 100_000}
"""Size in bytes of the largest file that a page shows; a larger one is a link."""
UNSHOWN = (MemoryError, RecursionError, ValueError, csv.Error)
"""How rendering what a cell wrote fails, which costs only that file."""
_SVG_LINK = re.compile(rb'(<a\b[^<>]*?\bhref=")([^"#:?<]+)(")')
_ACTIVE_SVG = re.compile(
    rb"""<(?!/?(?:svg|g|a|defs|path|text|tspan|use|title|desc|style|rect|circle|line|polyline|polygon)[\s/>])
    (?!\?xml\ version="1\.0"\ encoding="utf-8"\?>) | \bon\w+\s*= | href\s*=\s*(?!"(?:\#|https?://|[^":&]*"))
    | <use\b[^<>]*href="[^\#]  # Then what a style loads, and other ways to write it.
    | @import | (?:url|src|image|image-set)\((?!["']?\#) | \\ | &(?!(?:amp|lt|gt|quot|apos|\#39|\#x27|\#34);)""",
    re.VERBOSE | re.IGNORECASE,
)
"""What is more than shapes, texts and links: it may be a script, or be loaded from elsewhere."""
_SVG_IMAGE = """<svg xmlns="http://www.w3.org/2000/svg"{size}><image width="100%" height="100%" \
href="data:image/svg+xml;base64,{data}"/></svg>
"""
_SANDBOX = """<!DOCTYPE html>
<html xmlns="http://www.w3.org/1999/xhtml" lang="en"><head><meta charset="utf-8"/>
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'; img-src data:"/>
<title>{name}</title></head><body><iframe sandbox="" title="{name}" srcdoc="{text}"
style="position: fixed; inset: 0; border: 0; width: 100%; height: 100%"></iframe></body></html>
"""
_LINKED = re.compile(
    r"""\]\(\s*(?:<([^<>\n]+)>|((?:[^\s()]|\([^\s()]*\))+)) | ^\ {0,3}\[[^]\n]+\]:\s*<?([^\s>]+)
    | \b(?:src|href)\s*=\s*["']([^"'\n]+)""",
    re.VERBOSE | re.MULTILINE,
)
"""What may be the URL of a link or a picture in Markdown or HTML."""


@dataclass(frozen=True)
class Artifact:
    name: str
    notebook: str
    cell: str
    file: Path
    path: str
    """Site path."""
    data: tuple[Artifact, ...] = ()
    """Of a chart: the data files of the same cell."""

    @property
    def exists(self) -> bool:
        return self.file.is_file()

    @property
    def size(self) -> str:
        return size(self.file.stat().st_size) if self.exists else "missing"

    @property
    def suffix(self) -> str:
        """Ending of its name, lower case: ``"svg"``."""
        return posixpath.splitext(self.name)[1].lower().lstrip(".")

    @property
    def is_rendered(self) -> bool:
        """Whether it is published with changes."""
        return self.exists and self.suffix in _RENDERED

    @cached_property
    def panels(self) -> list[ChartPanel]:
        """The panels of a chart of ours; none for any other file."""
        try:
            return read_panels(read_file(self.file))
        except (OSError, *UNSHOWN):
            return []


def _published(path: str, file: Path) -> str:
    """Return the site path of a file: that of a text if a browser might run its own ending."""
    ending, added = posixpath.splitext(path)[1].lower().lstrip("."), ""
    while ending not in _PUBLISHED or (added and os.path.lexists(f"{file}{added}")):
        ending, added = "txt", f"{added}.txt"  # again where a file beside it has that name
    return path + added


def notebook_artifacts(root: Path, paths: SitePaths, notebook: NotebookRun) -> Iterator[Artifact]:
    """Yield the artifacts of a notebook's cells in their order; names that leave their folder are skipped."""
    for cell in notebook.cells:
        artifacts = [
            Artifact(name, notebook.path, cell.id, root / file, _published(path, root / file))
            for name, file in cell.artifacts.items()
            if stays_inside(name) and (path := paths.artifact(notebook.path, cell.id, name))
        ]
        data = tuple(artifact for artifact in artifacts if artifact.suffix in _DATA)
        for artifact in artifacts:
            yield replace(artifact, data=data) if artifact.suffix == "svg" else artifact


def linked_files(root: Path, notebook: NotebookRun, repository: str) -> Iterator[Artifact]:
    """Yield the project's files that a notebook's prose may link to, with the site path of the same folders.

    Where there is a repository, only pictures and files beside the notebook: it shows the others.
    """
    folder = posixpath.dirname(notebook.path)
    for url in (group for match in _LINKED.finditer(notebook.prose) for group in match.groups() if group):
        path = posixpath.normpath(posixpath.join(folder, unquote(re.split("[?#]", url)[0])))
        linked = Artifact(posixpath.basename(path), path, "", root / path, _published(path, root / path))
        beside = posixpath.dirname(path) == folder and linked.suffix != "md"
        if repository and not beside and linked.suffix not in {*_IMAGES, "svg"}:
            continue
        if not stays_inside(path) or any(part.startswith(".") for part in path.split("/")):
            continue
        # Path.is_file() raises an error for a name that is too long.
        if os.path.isfile(linked.file) and real_path(linked.file).is_relative_to(root.resolve()):  # noqa: PTH113
            yield linked


@dataclass(frozen=True)
class CsvTable:
    header: list[str]
    numeric: list[bool]
    """For each column, whether it holds only numbers; these are shown with six digits."""
    body: Markup
    """The first rows as HTML."""
    more: int
    more_columns: int
    """Rows and columns that are not shown."""


def read_csv(file: Path) -> CsvTable:
    """Return the first rows and columns of a CSV file, each row as long as the header; ``csv.Error`` if it is none."""
    text = read_file(file).decode("utf-8-sig", errors="replace").replace("\0", "\ufffd")
    reader = csv.reader(io.StringIO(text, newline=""))
    header = next(reader, [])
    width = min(len(header), MAX_COLUMNS)
    rows = [(row[:width] + [""] * width)[:width] for row in islice(reader, MAX_ROWS)]
    columns = list(zip(*rows, strict=True)) if rows else [()] * width
    numeric = [any(column) and all(_is_number(text) for text in column if text) for column in columns]
    # Not in a template, which would be slow for thousands of cells.
    cells = (
        [
            f'<td class="number">{escape(f"{float(text):.6g}" if len(text) > 8 else text)}</td>'
            if number
            else f"<td>{escape(text)}</td>"
            for text, number in zip(row, numeric, strict=True)
        ]
        for row in rows
    )
    body = Markup("\n".join(f"<tr>{''.join(row)}</tr>" for row in cells))  # noqa: S704 - texts are escaped
    return CsvTable(header[:width], numeric, body, sum(1 for _ in reader), len(header) - width)


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True


@dataclass(frozen=True)
class ArtifactPreview:
    name: str
    url: str
    """Empty if the file is missing."""
    size: str
    kind: str
    """``figure``, ``image``, ``table``, ``text``, ``file``, or ``failed`` for one that cannot be shown."""
    panels: Sequence[tuple[ChartPanel, Markup]] = ()
    """The panels of a chart, each with its element of the page."""
    table: CsvTable | None = None
    text: Markup | None = None
    """Rendered Markdown."""
    data: Sequence[ArtifactPreview] = ()
    """Data files of a chart, to download."""


def link(artifact: Artifact, page: Page) -> ArtifactPreview:
    return ArtifactPreview(
        artifact.name, page.url(artifact.path) if artifact.exists else "", artifact.size, "file"
    )


def preview(artifact: Artifact, page: Page, shown: Callable[[ChartPanel], bool] = bool) -> ArtifactPreview:
    """Return an artifact with its content, of a chart the panels that are ``shown``; a link where it has no preview."""
    view = link(artifact, page)
    if not artifact.exists or artifact.file.stat().st_size > LARGEST.get(artifact.suffix, 1 << 60):
        return view
    try:
        if artifact.suffix in _IMAGES:
            return replace(view, kind="image")
        if artifact.suffix == "svg":
            # Any other is an image, which runs no scripts, and so is one that the page shows again: its markers have ids.
            again = page.unique_id(artifact.path) != artifact.path
            data = [link(beside, page) for beside in artifact.data if beside.exists]
            panels = [
                (panel, panel.inlined(lambda url: relink(artifact, url, page.links, page.path)))
                for panel in artifact.panels
                if shown(panel) and not again
            ]
            return replace(view, kind="figure" if panels else "image", panels=panels, data=data)
        if artifact.suffix == "csv":
            return replace(view, kind="table", table=read_csv(artifact.file))
        if artifact.suffix == "md":
            from kernels_bench_tools.report.markup import render_markdown  # few pages show any

            text = file_text(artifact.file).replace("\0", "\ufffd")
            return replace(view, kind="text", text=render_markdown(text))
    except UNSHOWN:
        return replace(view, kind="failed")
    return view


def rendered(artifact: Artifact, links: Links) -> str | bytes:
    """Return what is published of a file: HTML and XML in a page without scripts, which is valid as XML, too.

    Links of a figure are made relative to its place in the site, not to its notebook's page. One that may have scripts
    becomes an image in an image, in which a browser runs none.
    """

    def replaced(match: re.Match[bytes]) -> bytes:
        url = relink(artifact, match[2].decode(errors="replace"), links, artifact.path)
        return match[0] if url is None else match[1] + url.encode() + match[3]

    data = read_file(artifact.file)
    if artifact.suffix in _FRAMED:
        text = escape(visible(data.decode(errors="replace")))
        return _SANDBOX.format(name=escape(artifact.name), text=text)
    if artifact.suffix != "svg":
        return data
    if not _ACTIVE_SVG.search(data):
        return _SVG_LINK.sub(replaced, data)
    box = re.search(rb"""<svg\b[^<>]*?\sviewBox=["'](?:[-\d.]+[ ,]+){2}([\d.]+)[ ,]+([\d.]+)["']""", data)
    size = f' viewBox="0 0 {box[1].decode()} {box[2].decode()}"' if box else ""
    return _SVG_IMAGE.format(size=size, data=b64encode(data).decode()).encode()


def relink(artifact: Artifact, url: str, links: Links, page: str) -> str | None:
    """Return the URL from a page to what a relative URL in a figure leads to; None if the site does not have it."""
    target, mark, fragment = url.partition("#")
    named = posixpath.join(posixpath.dirname(artifact.notebook), unquote(target))
    path = links.find(posixpath.normpath(named))
    return None if path is None else relative_url(path, page) + mark + fragment
