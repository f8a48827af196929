"""Publishing: a build's notebooks and artifacts in, a folder of pages out."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kernels_bench_tools.publish.artifacts import Artifact, notebook_artifacts
from kernels_bench_tools.publish.code import highlight_styles
from kernels_bench_tools.publish.exports import report_json
from kernels_bench_tools.publish.links import Links
from kernels_bench_tools.publish.logs import is_long, log_files
from kernels_bench_tools.publish.operators import find_operators
from kernels_bench_tools.publish.output import OutputFolder
from kernels_bench_tools.publish.pages import (
    FRONT,
    Site,
    front_notebook,
    front_page,
    implementation_page,
    notebook_page,
    operator_page,
    selfcheck_page,
)
from kernels_bench_tools.publish.paths import SitePaths
from kernels_bench_tools.publish.selfchecks import PAGE as SELFCHECK
from kernels_bench_tools.publish.selfchecks import read_selfchecks
from kernels_bench_tools.publish.templates import make_environment, static_files
from kernels_bench_tools.runs import BuildRun, NotebookRun

_SVG_LINK = re.compile(rb'(<a\b[^>]*?\bhref=")([^"#:?]+)(")')


class Published(msgspec.Struct, kw_only=True):
    """What publishing did; lists are of site paths."""

    index: Path
    """The front page's file."""
    written: list[str]
    unchanged: list[str]
    removed: list[str]
    dead_links: list[str]
    """``folder: url`` of each link in prose that leads nowhere."""


def publish(project_root: Path, build: BuildRun, output: Path) -> Published:
    """Write the pages of a build, and remove those of earlier builds that it no longer has.

    Args:
        project_root: The project; the build's paths count from it.
        build: Every notebook with its prose and how its cells ended.
        output: Folder of the site; made if it does not exist.

    Raises:
        ProjectError: The output folder holds files that no build wrote.
    """
    folder = OutputFolder(output)
    site, files = _plan(project_root, build)
    files.update({path: text.encode() for path, text in _pages(site)})
    changes = folder.write(files)
    return Published(
        index=output / FRONT,
        written=changes.written,
        unchanged=changes.unchanged,
        removed=changes.removed,
        dead_links=sorted(site.links.dead),
    )


def unpublish(output: Path) -> int:
    """Remove what builds wrote to ``output``, nothing else, and return the number of files.

    Raises:
        ProjectError: The folder holds no site.
    """
    return OutputFolder(output).clear() if output.exists() else 0


def _plan(root: Path, build: BuildRun) -> tuple[Site, dict[str, bytes | Path]]:
    """Return the site and its files beside the pages; pages can link to all of them."""
    paths = SitePaths(build.notebooks)
    operators = find_operators(root, paths, build.notebooks)
    artifacts = [found for notebook in build.notebooks for found in notebook_artifacts(root, paths, notebook)]
    summaries = [operator.summary for operator in operators if operator.summary]
    files: dict[str, bytes | Path] = {
        artifact.path: artifact.file for artifact in artifacts if artifact.exists
    }
    for notebook in build.notebooks:
        files.update(_cell_files(root, paths, notebook))
    files |= static_files()
    files["static/highlight.css"] = highlight_styles().encode()
    files["report.json"] = report_json(build.project.title, build.project.repository, summaries)
    pages = {*paths.pages.values(), FRONT, SELFCHECK, *(operator.page for operator in operators)}
    links = Links(root, paths.pages, files.keys() | pages, build.project.repository)
    for artifact in artifacts:
        if artifact.suffix == "svg" and artifact.exists:
            files[artifact.path] = _relinked(artifact, links)
    return Site(build, root, paths, links, operators, make_environment(), read_selfchecks(root)), files


def _cell_files(root: Path, paths: SitePaths, notebook: NotebookRun) -> Iterator[tuple[str, bytes | Path]]:
    for cell in notebook.cells:
        code = cell.code if cell.code.endswith("\n") else f"{cell.code}\n"
        yield paths.script(notebook.path, cell.id), code.encode(errors="replace")
        for name, file in log_files(root, cell).items():
            if is_long(file):
                yield paths.log(notebook.path, cell.id, name), file


def _relinked(artifact: Artifact, links: Links) -> bytes:
    """Return a figure whose links work from where the site keeps it, not from its notebook's page."""
    folder = posixpath.dirname(artifact.notebook)

    def relink(match: re.Match[bytes]) -> bytes:
        target = links.find(posixpath.normpath(posixpath.join(folder, match[2].decode(errors="replace"))))
        if target is None:
            return match[0]
        return match[1] + posixpath.relpath(target, posixpath.dirname(artifact.path)).encode() + match[3]

    return _SVG_LINK.sub(relink, artifact.file.read_bytes())


def _pages(site: Site) -> Iterator[tuple[str, str]]:
    front = front_notebook(site.build)
    operators = {operator.page: operator for operator in site.operators}
    yield FRONT, front_page(site, front)
    for path, operator in operators.items():
        yield path, operator_page(site, operator)
    # A project's own notebook of this name comes before the page that would be made.
    if SELFCHECK not in site.paths.pages.values():
        yield SELFCHECK, selfcheck_page(site)
    for notebook in site.build.notebooks:
        path = site.paths.pages[notebook.path]
        owner = site.operator_of(notebook.path)
        if path == FRONT or path in operators:
            continue
        if owner is not None and notebook in owner.implementations:
            yield path, implementation_page(site, owner, notebook)
        else:
            yield path, notebook_page(site, notebook)
