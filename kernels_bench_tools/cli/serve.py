"""``kbt serve``: the report in a browser on this machine, kept up to date with what is edited."""

from __future__ import annotations

import sys
import threading
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

import typer

from kernels_bench_tools.cli import INTERRUPTED
from kernels_bench_tools.cli.build import finished_cells, summarize_build
from kernels_bench_tools.cli.options import Env, EnvironmentChoice, Paths, Workloads
from kernels_bench_tools.cli.physics import complain_of_impossible
from kernels_bench_tools.cli.progress import PlainProgress, make_progress
from kernels_bench_tools.errors import KbtError, ProjectError
from kernels_bench_tools.notebooks.project import Project, find_project
from kernels_bench_tools.report.output import MANIFEST
from kernels_bench_tools.report.site import publish
from kernels_bench_tools.run.build import BuildOptions
from kernels_bench_tools.run.build import build as run_notebooks
from kernels_bench_tools.run.locks import ended_like_interrupted, project_lock
from kernels_bench_tools.schema.build import BuildRun
from kernels_bench_tools.serve.edits import Edits
from kernels_bench_tools.serve.live import Live
from kernels_bench_tools.serve.watch import Watcher

_SHOWN_EDITS = 3


def serve(
    paths: Paths = None,
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535, help="0 takes a free one.")] = 8000,
    env: Env = EnvironmentChoice.UV,
    workloads: Workloads = "",
    no_build: Annotated[
        bool,
        typer.Option("--no-build", help="Run nothing: show the report as other commands leave it in site/."),
    ] = False,
) -> int:
    """Build, show the report on http://127.0.0.1:PORT, and keep it up to date while you edit. Ctrl-C ends it.

    Whenever a file of the project changes, what it concerns is built again, and open pages reload where they
    were. Edited prose runs no cell. Of a build that is running, an edit stops only the cells that it outdates;
    the next build follows it. What is wrong is said here and in the open pages, over the last good report.

    Cells that measure run in one process, as for `kbt run`; `kbt build` measures thoroughly. A cell that failed
    is tried again once something about it was edited.
    """
    from kernels_bench_tools.serve.server import serving  # no other verb needs a web server

    project, live = find_project(Path.cwd()), Live()
    site = project.root / "site"
    if no_build and not (site / "index.html").is_file():
        raise ProjectError(str(site), "holds no report", "A built site", "Run `kbt build` first")
    options = BuildOptions(environment=env.value, workloads=workloads, quick=True)
    try:
        with ended_like_interrupted(), serving(port, site, live) as server:
            print(server.url, flush=True)
            if no_build:
                _follow(site, live)
            else:
                _Session(project, paths or [], options, site, live).run()
    except KeyboardInterrupt:
        print("kbt: interrupted. What was finished is kept, and the report is in site/.", file=sys.stderr)
    return INTERRUPTED


def _follow(site: Path, live: Live) -> None:
    """Let open pages know when other commands change the report, until interrupted."""
    for _ in Watcher(site).changes(threading.Event()):
        live.tell(new_report=True)


@dataclass
class _Session:
    """Builds after each edit, one at a time."""

    project: Project
    targets: list[str]
    options: BuildOptions
    site: Path
    live: Live
    _dead_links: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Build until interrupted."""
        edits = Edits(self.project.root, self.options.environment, self._tell_of_edits)
        # Made before the first build, so that what is edited during it is noticed.
        watcher = Watcher(self.project.root, lambda folder: folder == self.site or _is_site(folder))
        stop = threading.Event()
        thread = threading.Thread(target=_watch, args=(watcher, stop, edits), daemon=True)
        thread.start()
        try:
            self._build(edits, self.options)
            while True:
                self._say(f"edited: {_in_short(edits.wait())}")
                self._build(edits, replace(self.options, retry=False))
        finally:
            stop.set()
            thread.join()

    def _build(self, edits: Edits, options: BuildOptions) -> None:
        self.live.tell(busy="Building …")
        try:
            # Until the pages are made of what the cells left, as another build would replace it.
            with project_lock(self.project, PlainProgress()):
                result = self._run(edits, options)
                if result is not None:
                    self._publish(self.project, result)
        except (KbtError, OSError) as error:
            print(f"kbt: {error}", file=sys.stderr, flush=True)
            self.live.tell(error=str(error))

    def _run(self, edits: Edits, options: BuildOptions) -> BuildRun | None:
        """Run what is stale; return None if what came of it is outdated already."""
        try:
            self.project = edits.begin()
            with make_progress() as progress:
                result = run_notebooks(
                    self.project, self.targets, options, progress, outdated=edits.is_outdated
                )
        finally:
            outdated = edits.end()
        return None if outdated else result

    def _publish(self, project: Project, result: BuildRun) -> None:
        published = publish(project.root, result, self.site)
        for link in published.dead_links:
            if link not in self._dead_links:
                self._say(f"note: a link leads nowhere: {link}")
        self._dead_links = set(published.dead_links)
        self._say(summarize_build(result))
        complain_of_impossible(project, finished_cells(result))
        self.live.tell(new_report=bool(published.written or published.removed))

    def _tell_of_edits(self, paths: list[str]) -> None:
        self.live.tell(busy=f"{_in_short(paths)} changed; the next build follows this one")

    @staticmethod
    def _say(text: str) -> None:
        print(text, file=sys.stderr, flush=True)


def _watch(watcher: Watcher, stop: threading.Event, edits: Edits) -> None:
    try:
        for paths in watcher.changes(stop):
            edits.note(paths)
    except KbtError as error:
        edits.fail(error)


def _is_site(folder: Path) -> bool:
    return (folder / MANIFEST).is_file()


def _in_short(paths: list[str]) -> str:
    more = len(paths) - _SHOWN_EDITS
    return ", ".join(paths[:_SHOWN_EDITS]) + (f" and {more} more" if more > 0 else "")
