"""The plan of a site: every file that it will hold, and for each that takes work the key of what it is made from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path

import msgspec

from kernels_bench_tools.report.artifacts import Artifact, notebook_artifacts
from kernels_bench_tools.report.devices import known_devices, read_readings
from kernels_bench_tools.report.frame import Site
from kernels_bench_tools.report.keys import Keys, digest, program_key
from kernels_bench_tools.report.links import Links
from kernels_bench_tools.report.logs import is_long, log_files
from kernels_bench_tools.report.making import Maker
from kernels_bench_tools.report.operators import Operator, find_operators, implementation_id
from kernels_bench_tools.report.output import Content
from kernels_bench_tools.report.paths import SitePaths
from kernels_bench_tools.report.products import Product
from kernels_bench_tools.report.selfchecks import FOLDER as SELFCHECKS
from kernels_bench_tools.report.selfchecks import read_selfchecks
from kernels_bench_tools.report.site_paths import (
    DEVICES,
    FEED,
    FRONT,
    HIGHLIGHTING,
    METHOD,
    NOT_FOUND,
    REPORT,
    SELFCHECK,
    STATUS,
    backward_page,
    matrix_page,
    operator_badge,
    operator_feed,
    operator_records,
)
from kernels_bench_tools.report.static import static_files
from kernels_bench_tools.schema.build import BuildRun, NotebookRun
from kernels_bench_tools.schema.summary import Report


def plan_site(root: Path, build: BuildRun, previous: Report | None = None) -> tuple[Site, dict[str, Content]]:
    """Return the site of a build and everything that its folder will hold, by site path."""
    paths = SitePaths(build.notebooks)
    operators = find_operators(root, paths, build.notebooks)
    artifacts = [found for notebook in build.notebooks for found in notebook_artifacts(root, paths, notebook)]
    files: dict[str, Content] = {artifact.path: artifact.file for artifact in artifacts if artifact.exists}
    for notebook in build.notebooks:
        files.update(_cell_files(root, paths, notebook))
    files |= static_files()
    devices = known_devices(operators)
    # Pages are known before any is made: each may link to all others.
    places = {*paths.pages.values(), *_own_places(operators), *(one.path for one in devices)}
    site = Site(
        build=build,
        root=root,
        paths=paths,
        links=Links(root, paths.pages, files.keys() | places, build.project.repository),
        operators=operators,
        devices=devices,
        selfchecks=read_selfchecks(root),
        previous=previous,
        read_readings=lambda: read_readings(root, operators, artifacts),
    )
    planner = _Planner(site, Keys(root), digest(*sorted(files.keys() | places)))
    files |= planner.products(artifacts)
    return site, files


def _own_places(operators: Sequence[Operator]) -> Iterator[str]:
    """Yield the site paths that no notebook stands for."""
    yield from (FRONT, SELFCHECK, DEVICES, METHOD, STATUS, NOT_FOUND, REPORT, FEED, HIGHLIGHTING)
    for operator in operators:
        yield operator.page
        yield operator_feed(operator.folder)
        yield operator_badge(operator.folder)
        yield operator_records(operator.folder)
        if operator.views:
            yield matrix_page(operator.folder)
        if operator.has_backward_page:
            yield backward_page(operator.folder)


def _cell_files(root: Path, paths: SitePaths, notebook: NotebookRun) -> Iterator[tuple[str, Content]]:
    for cell in notebook.cells:
        code = cell.code if cell.code.endswith("\n") else f"{cell.code}\n"
        yield paths.script(notebook.path, cell.id), code.encode(errors="replace")
        for name, file in log_files(root, cell).items():
            if is_long(file):
                yield paths.log(notebook.path, cell.id, name), file


class _Planner:
    """Gives every product of a site its key."""

    def __init__(self, site: Site, keys: Keys, structure: str) -> None:
        self._site, self._keys, self._make = site, keys, Maker(site)
        project = site.build.project
        devices = (part for one in site.devices for part in (one.device.name, one.path))
        self._base = digest(
            program_key(), structure, project.title, project.repository, str(project.raw_html), *devices
        )
        self._facts = {operator.folder: keys.facts(operator) for operator in site.operators}

    def products(self, artifacts: Sequence[Artifact]) -> dict[str, Product]:
        """Return all products by site path; what a notebook stands for comes before what would be made there."""
        site = self._site
        found = dict(self._sitewide())
        for operator in site.operators:
            found.update(self._of_operator(operator))
        for artifact in artifacts:
            if artifact.suffix == "svg" and artifact.exists:
                key = self._keys.file(str(artifact.file))
                found[artifact.path] = self._product(partial(self._make.figure, artifact), key)
        for notebook in site.build.notebooks:
            path, owner = site.paths.pages[notebook.path], site.operator_of(notebook.path)
            if path != FRONT and (owner is None or path != owner.page):
                found[path] = self._of_notebook(notebook, owner)
        return found

    def _sitewide(self) -> Iterator[tuple[str, Product]]:
        site, make, keys = self._site, self._make, self._keys
        everything = digest(*self._facts.values(), *map(keys.text, site.build.notebooks))
        checks = keys.files(sorted((site.root / SELFCHECKS).glob("*.json")))
        records = digest(*map(keys.records, site.operators), *map(keys.notebook, site.build.notebooks))
        previous = digest(msgspec.json.encode(site.previous)) if site.previous else ""
        yield FRONT, self._product(make.front, everything, site.build.project.commit, previous)
        yield SELFCHECK, self._product(make.selfcheck, checks)
        yield STATUS, self._product(make.status, everything)
        yield DEVICES, self._product(make.devices, everything)
        yield METHOD, self._product(make.method)
        yield NOT_FOUND, self._product(make.not_found, everything)
        yield FEED, self._product(make.feed, everything)
        yield REPORT, self._product(make.report, everything)
        yield HIGHLIGHTING, self._product(make.highlighting)
        for known in site.devices:
            yield known.path, self._product(partial(make.device, known), everything, records, checks)

    def _of_operator(self, operator: Operator) -> Iterator[tuple[str, Product]]:
        make, facts, folder = self._make, self._facts[operator.folder], operator.folder
        own = [*operator.implementations, *operator.combined, *([operator.index] if operator.index else [])]
        texts = digest(*map(self._keys.notebook, own))
        records = self._keys.records(operator)
        yield operator.page, self._product(partial(make.operator, operator), facts, texts, records)
        yield operator_feed(folder), self._product(partial(make.feed, operator), facts)
        yield operator_badge(folder), self._product(partial(make.badge, operator), facts)
        yield operator_records(folder), self._product(partial(make.records, operator), texts, records)
        if operator.views:
            yield matrix_page(folder), self._product(partial(make.matrix, operator), facts, texts)
        if operator.has_backward_page:
            yield (
                backward_page(folder),
                self._product(partial(make.backward, operator), facts, texts, records),
            )

    def _of_notebook(self, notebook: NotebookRun, owner: Operator | None) -> Product:
        key = self._keys.notebook(notebook)
        if owner is None:
            return self._product(partial(self._make.notebook, notebook), key)
        facts = self._facts[owner.folder]
        if not owner.is_implementation(notebook):
            return self._product(partial(self._make.notebook, notebook), key, facts)
        records = self._keys.records(owner, implementation_id(notebook))
        return self._product(partial(self._make.implementation, owner, notebook), key, facts, records)

    def _product(self, make: Callable[[], bytes], *parts: str) -> Product:
        return Product(digest(self._base, *parts), make)
