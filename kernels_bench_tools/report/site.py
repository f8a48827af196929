"""Publishing: a build's notebooks and artifacts in, a folder of pages out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from kernels_bench_tools.file_io import read_file
from kernels_bench_tools.records.build import BuildRun, NotebookRun
from kernels_bench_tools.records.code import installed_version
from kernels_bench_tools.records.codec import encode_record, share_fields
from kernels_bench_tools.records.selfcheck import find_selfchecks, read_selfchecks
from kernels_bench_tools.records.summary import Report, Summary
from kernels_bench_tools.report import pages, paths
from kernels_bench_tools.report.artifacts import UNSHOWN, Artifact, linked_files, notebook_artifacts, rendered
from kernels_bench_tools.report.cells import is_long, log_files
from kernels_bench_tools.report.folder import Content, OutputFolder, Published, RenderedFile
from kernels_bench_tools.report.operators import OperatorReport, find_devices, find_operators, model_operators
from kernels_bench_tools.report.page import Links
from kernels_bench_tools.report.pages import Site
from kernels_bench_tools.report.paths import template_folder
from kernels_bench_tools.results.effects import Effects, effects_csv
from kernels_bench_tools.results.models import ModelReport, Models, calls_csv, imports_json
from kernels_bench_tools.results.tables import latest
from kernels_bench_tools.text.hiding import visible, without_private

if TYPE_CHECKING:
    from kernels_bench_tools.results.history.timeline import History


_Renderer = Callable[[], str | bytes]
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
    hashed = blake2b(digest_size=16)
    for part in parts:
        data = part if isinstance(part, bytes) else part.encode(errors="surrogatepass")
        hashed.update(len(data).to_bytes(8, "big"))
        hashed.update(data)
    return hashed.hexdigest()


@cache
def program_key() -> str:
    """Return the key of templates, our own code and models, and the libraries that render."""
    package = Path(__file__).resolve().parents[1]
    models = ("models/configs/*.json", "models/derived/**/*.json", "models/baseline/**/*.py")
    patterns = ("*.py", "records/*.py", "report/*.py", "results/**/*.py", "text/*.py", *models)
    files = [
        *template_folder().glob("*.j2"),
        *(file for pattern in patterns for file in package.glob(pattern)),
    ]
    contents = [file.name.encode() + b"\n" + file.read_bytes() for file in sorted(files)]
    return digest(*contents, *map(installed_version, _LIBRARIES))


def publish(
    root: Path,
    build: BuildRun,
    output: Path | OutputFolder,
    summaries: Mapping[str, Summary] | None = None,
    effects: Effects | None = None,
    history: History | None = None,
) -> Published:
    """Write the pages of a build, and remove those of earlier builds that it no longer has.

    Pages whose inputs did not change are not rendered again. ``root`` is the project, to which the build's paths are relative;
    ``summaries`` are those of operators whose combine cells wrote none, by folder; ``history`` is what the front page
    compares with. ``output`` is as it was before cells ran, if they have; a folder with files that no build wrote is a ``ProjectError``.
    """
    folder = output if isinstance(output, OutputFolder) else OutputFolder(output)
    site_paths = paths.SitePaths(build.notebooks)
    operators = find_operators(root, site_paths, build, summaries or {})
    artifacts = [
        artifact
        for notebook in build.notebooks
        for artifact in notebook_artifacts(root, site_paths, notebook)
    ]
    files: dict[str, Content] = {artifact.path: artifact.file for artifact in artifacts if artifact.exists}
    for notebook in build.notebooks:
        for cell in notebook.cells:
            code = cell.code if cell.code.endswith("\n") else f"{cell.code}\n"
            files[site_paths.script(notebook.path, cell.id)] = without_private(code.encode(errors="replace"))
            for name, file in log_files(root, cell).items():
                if is_long(file):  # the page shows it only in part
                    files[site_paths.log(notebook.path, cell.id, name)] = file
    files |= paths.static_files()
    linked = {
        artifact.path: artifact
        for notebook in build.notebooks
        for artifact in linked_files(root, notebook, build.project.repository)
        if artifact.path not in site_paths.pages and not artifact.file.is_relative_to(folder.root)
    }
    files = {path: artifact.file for path, artifact in linked.items()} | files
    known = {*files, *site_paths.pages.values()}
    of_models = model_operators(root, operators)
    site = Site(
        build=build,
        root=root,
        paths=site_paths,
        links=Links(root, site_paths.pages, known, build.project.repository),
        operators=operators,
        devices=find_devices(operators),
        artifacts=artifacts,
        selfchecks=read_selfchecks(root),
        models=Models({name: operator.summary for name, operator in of_models.items()}),
        model_operators=of_models,
        effects=effects or Effects(),
        history=history,
    )
    renderers = _renderers(site, linked.values())
    # All paths are known before a page is rendered: each page may link to all others.
    known.update(renderers)
    base = digest(
        program_key(),
        *sorted(known),
        *(build.project.title, build.project.repository, str(build.project.raw_html)),
        *(part for device in site.devices for part in (device.device.name, device.path)),
        files_key(root, [*find_selfchecks(root), *site.effects.files]),
    )

    def encoded(path: str, render: _Renderer) -> bytes:
        try:
            content = render()
            # Whatever a cell, a record or a notebook holds.
            return without_private(visible(content).encode() if isinstance(content, str) else content)
        except UNSHOWN as error:
            if path not in {*linked, *(artifact.path for artifact in artifacts)}:
                raise
            return f"kbt cannot publish this file: {type(error).__name__}\n".encode()

    for path, (key, render) in renderers.items():
        files[path] = RenderedFile(digest(base, key), partial(encoded, path, render))
    return folder.write(files, site.links.dead)


def _renderers(site: Site, linked: Iterable[Artifact]) -> dict[str, tuple[str, _Renderer]]:
    """Return by site path how each file is rendered, and the key of what only it and files like it show.

    The page of an implementation has the key of its notebook and of the operator's results, other pages of an operator
    that of all its notebooks, and pages of the whole site that of everything.
    """
    renderers: dict[str, tuple[str, _Renderer]] = {}
    notebooks = {it.path: notebook_key(site.root, it) for it in site.build.notebooks}
    results, operators = {}, {}
    for operator in site.operators:
        results[operator.folder] = digest(
            *(notebooks[it.path] for it in operator.shared_notebooks),
            files_key(site.root, operator.record_files),
            *map(str, operator.refused_files),
            b"" if operator.has_file else msgspec.json.encode(operator.summary),
        )
        operators[operator.folder] = digest(
            results[operator.folder], *(notebooks[it.path] for it in operator.implementations)
        )
    everything = digest(
        *operators.values(),
        *notebooks.values(),
        *([site.history.since, repr(site.history.base)] if site.history else []),
        site.build.project.commit,
        msgspec.json.encode((site.build.left_out, site.build.measures)),
    )
    page: Callable[[Site], str | bytes]
    for path, page in (
        (paths.FRONT, pages.front_page),
        (paths.SELFCHECK, pages.selfcheck_page),
        (paths.STATUS, pages.status_page),
        (paths.DEVICES, pages.devices_page),
        (paths.METHOD, pages.method_page),
        (paths.REPORT, _report_json),
    ):
        renderers[path] = everything, partial(page, site)
    renderers[paths.HIGHLIGHTING] = "", pages.highlighting_styles
    for device in site.devices:
        renderers[device.path] = everything, partial(pages.device_page, site, device)

    measuring = digest(*(operators[it.folder] for it in site.model_operators.values()))
    if site.models.keys:
        renderers[paths.MODELS] = measuring, partial(pages.models_page, site)
    for key in site.models.keys:
        renderers[paths.model_file(key)] = measuring, partial(pages.model_page, site, key)
        renderers[paths.model_file(key, "csv")] = measuring, partial(_model_file, site, key, calls_csv)
        renderers[paths.model_file(key, "json")] = measuring, partial(_model_file, site, key, imports_json)
        if site.effects.files_of(key):
            renderers[paths.model_file(f"{key}-effects", "csv")] = "", partial(_effects_csv, site, key)

    shown = {"index.md"}
    for operator in site.operators:
        key = operators[operator.folder]
        renderers[operator.page] = key, partial(pages.operator_page, site, operator)
        for path in operator.results_pages.values():
            for kind in ("charts", "views"):
                script = partial(pages.panels_script, site, operator, path, kind)
                renderers[paths.script(path, kind)] = key, script
            renderers[paths.script(path, "pairs")] = key, partial(pages.pairs_script, operator, path)
        if operator.figures:
            renderers[paths.script(f"{operator.folder}/front.html", "charts")] = (
                key,
                partial(pages.front_charts, site, operator),
            )
        renderers[paths.operator_records(operator.folder)] = key, partial(_joined_records, operator)
        for kind, path in operator.further_pages.items():
            renderers[path] = key, partial(pages.operator_page, site, operator, kind)
        for notebook in operator.combined:
            renderers[site.paths.pages[notebook.path]] = key, partial(pages.notebook_page, site, notebook)
        for notebook in operator.implementations:
            renderers[site.paths.pages[notebook.path]] = (
                digest(
                    results[operator.folder],
                    notebooks[notebook.path],
                    site.build.project.commit if site.history else "",
                ),
                partial(pages.implementation_page, site, operator, notebook),
            )
        own = (*operator.implementations, *operator.shared_notebooks)
        shown.update(notebook.path for notebook in own)
    for notebook in site.build.notebooks:
        if notebook.path not in shown:
            owner = site.operator_of(notebook.path)
            key = digest(notebooks[notebook.path], operators[owner.folder] if owner else "")
            renderers[site.paths.pages[notebook.path]] = key, partial(pages.notebook_page, site, notebook)
    for artifact in [*(it for it in linked if it.path not in renderers), *site.artifacts]:
        if artifact.is_rendered:
            key = notebooks.get(artifact.notebook) or files_key(site.root, [artifact.file])
            renderers[artifact.path] = key, partial(rendered, artifact, site.links)
    return renderers


def _model_file(site: Site, key: str, write: Callable[[ModelReport], bytes]) -> bytes:
    return write(site.models.reports[key])  # read when a file is rendered


def _effects_csv(site: Site, key: str) -> bytes:
    return effects_csv(site.effects.of(key))


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


def _joined_records(operator: OperatorReport) -> bytes:
    """Return the records that count of an operator, as JSON lines."""
    names = {name for device in operator.counted.devices for name in device.implementations}
    records = (of_device for name in sorted(names) for of_device in operator.counted.of(name).values())
    return b"".join(map(encode_record, share_fields(chain.from_iterable(records))))
