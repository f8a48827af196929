"""Publishing: a build's notebooks and artifacts in, a folder of pages out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path

import msgspec

from kernels_bench_tools.file_io import read_file
from kernels_bench_tools.records.build import BuildRun, NotebookRun, Unfinished
from kernels_bench_tools.records.codec import read_heads
from kernels_bench_tools.records.foreign import is_plain
from kernels_bench_tools.records.summary import Report, Summary
from kernels_bench_tools.report import pages
from kernels_bench_tools.report.artifacts import notebook_artifacts, relinked
from kernels_bench_tools.report.cells import is_long, log_files
from kernels_bench_tools.report.devices import find_devices
from kernels_bench_tools.report.effects import Effects
from kernels_bench_tools.report.imports import imports_json
from kernels_bench_tools.report.layout import Site
from kernels_bench_tools.report.operators import (
    OperatorReport,
    find_operators,
    implementation_id,
    model_operators,
)
from kernels_bench_tools.report.output.folder import Content, OutputFolder, Published
from kernels_bench_tools.report.output.keys import (
    digest,
    files_key,
    notebook_key,
    operator_keys,
    program_key,
)
from kernels_bench_tools.report.output.parallel import RenderedFile
from kernels_bench_tools.report.page import Links
from kernels_bench_tools.report.paths import (
    DEVICES,
    FRONT,
    HIGHLIGHTING,
    METHOD,
    MODELS,
    NOT_FOUND,
    REPORT,
    SELFCHECK,
    STATUS,
    SitePaths,
    effects_file,
    model_file,
    operator_records,
    static_files,
)
from kernels_bench_tools.report.selfchecks import find_selfchecks, read_selfchecks
from kernels_bench_tools.results.models import Models, calls_csv
from kernels_bench_tools.results.tables import latest
from kernels_bench_tools.text import visible, without_homes


def publish(
    root: Path,
    build: BuildRun,
    output: Path,
    previous: Report | None = None,
    summaries: Mapping[str, Summary] | None = None,
    unfinished: Mapping[str, Unfinished] | None = None,
    effects: Effects | None = None,
) -> Published:
    """Write the pages of a build, and remove those of earlier builds that it no longer has.

    Pages whose inputs did not change are not rendered again.

    Args:
        root: The project; the build's paths are relative to it.
        build: Every notebook with its prose and the results of its cells.
        output: Folder of the site; created if it does not exist.
        previous: Report of an earlier build; the front page lists what changed since.
        summaries: Of operators whose combine cells wrote none, by folder.
        unfinished: How far the build is if it is still running, by operator and as ``""`` for all of it.
        effects: What implementations change in models.

    Raises:
        ProjectError: The output folder holds files that no build wrote.
    """
    folder = OutputFolder(output)
    paths = SitePaths(build.notebooks)
    operators = find_operators(root, paths, build.notebooks, summaries)
    artifacts = [found for notebook in build.notebooks for found in notebook_artifacts(root, paths, notebook)]
    files: dict[str, Content] = {artifact.path: artifact.file for artifact in artifacts if artifact.exists}
    for notebook in build.notebooks:
        files.update(_cell_files(root, paths, notebook))
    files |= static_files()
    known = {*files, *paths.pages.values()}
    of_models = model_operators(root, operators)
    site = Site(
        build=build,
        root=root,
        paths=paths,
        links=Links(root, paths.pages, known, build.project.repository),
        operators=operators,
        devices=find_devices(operators),
        artifacts=artifacts,
        selfchecks=read_selfchecks(root),
        models=Models({name: operator.summary for name, operator in of_models.items()}),
        model_operators=of_models,
        effects=effects or Effects(),
        previous=previous,
        unfinished=unfinished or {},
    )
    renderers = _renderers(site)
    # All paths are known before a page is rendered: each page may link to all others.
    known.update(renderers)
    base = _base_key(site, known)
    for path, (key, render) in renderers.items():
        files[path] = RenderedFile(digest(base, key), partial(_encoded, render))
    return folder.write(files, site.links.dead)


def _cell_files(root: Path, paths: SitePaths, notebook: NotebookRun) -> Iterator[tuple[str, Content]]:
    """Yield the code of each cell, and its logs that the page shows only in part."""
    for cell in notebook.cells:
        code = cell.code if cell.code.endswith("\n") else f"{cell.code}\n"
        yield paths.script(notebook.path, cell.id), code.encode(errors="replace")
        for name, file in log_files(root, cell).items():
            if is_long(file):
                yield paths.log(notebook.path, cell.id, name), file


_TEXTS = {"csv", "json", "jsonl", "log", "md", "txt"}
"""Files of cells that are copied without the names of home folders."""
_Renderer = Callable[[], str | bytes]


def _base_key(site: Site, paths: Iterable[str]) -> str:
    """Return the part of all keys that is the same: it has the site's paths, because pages link to each other."""
    project = site.build.project
    devices = (part for one in site.devices for part in (one.device.name, one.path))
    return digest(
        program_key(), *sorted(paths), project.title, project.repository, str(project.raw_html), *devices
    )


def _renderers(site: Site) -> dict[str, tuple[str, _Renderer]]:
    """Return by site path the key of each file that is rendered, and how it is rendered.

    Pages of the whole site share one key, and an operator's pages another. The page of an implementation has the key of
    its notebook and of the operator's results; any other notebook and figure has that of its notebook.
    """
    found: dict[str, tuple[str, _Renderer]] = {}

    def add(key: str, renderers: Iterable[tuple[str, _Renderer]]) -> None:
        found.update((path, (key, render)) for path, render in renderers)

    notebooks = {one.path: notebook_key(site.root, one) for one in site.build.notebooks}
    operators = {one.folder: operator_keys(site.root, one, notebooks) for one in site.operators}
    everything = digest(
        *(keys.operator for keys in operators.values()),
        *notebooks.values(),
        files_key(site.root, find_selfchecks(site.root)),
        files_key(site.root, site.effects.files),
        msgspec.json.encode(site.previous),
        site.build.project.commit,
        _unfinished_key(site, ""),
    )
    add(everything, _site_pages(site))
    measuring = digest(*(operators[one.folder].operator for one in site.model_operators.values()))
    if site.models.keys:
        add(measuring, [(MODELS, partial(pages.models_page, site))])
    for key in site.models.keys:
        add(digest(measuring, files_key(site.root, site.effects.files_of(key))), _model_pages(site, key))
    for operator in site.operators:
        keys = operators[operator.folder]
        # Without results, the implementations' effects are listed.
        listed = files_key(site.root, () if operator.views else site.effects.files)
        key = digest(keys.operator, _unfinished_key(site, operator.folder), listed)
        add(key, _operator_pages(site, operator))
        for notebook in operator.implementations:
            page = partial(pages.implementation_page, site, operator, notebook)
            effects = site.effects.files_with(operator.folder, implementation_id(notebook))
            key = digest(keys.implementations[notebook.path], files_key(site.root, effects))
            add(key, [(site.paths.pages[notebook.path], page)])
    for artifact in site.artifacts:
        if artifact.exists and (artifact.suffix == "svg" or artifact.suffix in _TEXTS):
            svg = artifact.suffix == "svg"
            render = partial(relinked, artifact, site.links) if svg else artifact.file.read_bytes
            add(notebooks[artifact.notebook], [(artifact.path, render)])
    own = {FRONT, *(path for operator in site.operators for path in _notebook_paths(site, operator))}
    for notebook in site.build.notebooks:
        path, owner = site.paths.pages[notebook.path], site.operator_of(notebook.path)
        # A notebook replaces a generated page of the same path.
        if path not in own:
            key = digest(notebooks[notebook.path], operators[owner.folder].operator if owner else "")
            add(key, [(path, partial(pages.notebook_page, site, notebook))])
    return found


def _unfinished_key(site: Site, operator: str) -> bytes:
    return msgspec.json.encode(site.unfinished.get(operator))


def _encoded(render: _Renderer) -> bytes:
    content = render()
    # Whatever a cell, a record or a notebook holds.
    return without_homes(visible(content).encode() if isinstance(content, str) else content)


def _notebook_paths(site: Site, operator: OperatorReport) -> Iterator[str]:
    """Yield the pages of an operator that show one of its notebooks."""
    yield operator.page
    for notebook in (*operator.implementations, *operator.combined):
        yield site.paths.pages[notebook.path]


def _site_pages(site: Site) -> Iterator[tuple[str, _Renderer]]:
    yield FRONT, partial(pages.front_page, site)
    yield SELFCHECK, partial(pages.selfcheck_page, site)
    yield STATUS, partial(pages.status_page, site)
    yield DEVICES, partial(pages.devices_page, site)
    yield METHOD, partial(pages.method_page, site)
    yield NOT_FOUND, partial(pages.not_found_page, site)
    yield REPORT, partial(_report_json, site)
    yield HIGHLIGHTING, pages.highlighting_styles
    for device in site.devices:
        yield device.path, partial(pages.device_page, site, device)


def _model_pages(site: Site, key: str) -> Iterator[tuple[str, _Renderer]]:
    yield model_file(key), partial(pages.model_page, site, key)
    models, effects = site.models, site.effects  # read when a file is rendered
    yield model_file(key, "csv"), lambda: calls_csv(models.reports[key])
    yield model_file(key, "json"), lambda: imports_json(models.reports[key])
    if effects.files_of(key):
        yield effects_file(key), lambda: effects.csv(effects.of(key))


def _operator_pages(site: Site, operator: OperatorReport) -> Iterator[tuple[str, _Renderer]]:
    yield operator.page, partial(pages.operator_page, site, operator)
    yield operator_records(operator.folder), partial(_joined_records, site, operator)
    for kind, path in operator.further_pages.items():
        yield path, partial(pages.results_page, site, operator, kind)
    for notebook in operator.combined:
        yield site.paths.pages[notebook.path], partial(pages.notebook_page, site, notebook)


def _report_json(site: Site) -> bytes:
    """Return the report as JSON; the same summaries give the same bytes."""
    summaries = [operator.summary for operator in site.operators if operator.summary]
    report = Report(
        title=site.build.project.title,
        repository=site.build.project.repository,
        measured=latest(view for summary in summaries for view in summary.devices),
        models=site.models.keys,
        operators=summaries,
    )
    return msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n"


def _joined_records(site: Site, operator: OperatorReport) -> bytes:
    """Return all records of an operator's summary, as JSON lines.

    Records of this build replace the committed ones of the same implementation and device, as in the summary.
    """
    own = [
        artifact.file
        for notebook in operator.implementations
        for artifact in notebook_artifacts(site.root, site.paths, notebook)
        if artifact.suffix == "jsonl" and artifact.exists and not is_plain(artifact.file)
    ]
    now = {(head.impl, head.device.slug) for file in own for head in read_heads(file) if head.device}
    committed = [file for file in operator.record_files if (file.stem, file.parent.name) not in now]
    return b"".join(_ended(read_file(file)) for file in [*own, *committed])


def _ended(data: bytes) -> bytes:
    return data if not data or data.endswith(b"\n") else data + b"\n"
