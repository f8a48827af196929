"""``kbt serve``: show the report in a browser and rebuild it when files change."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from kernels_bench_tools.cli import INTERRUPTED
from kernels_bench_tools.cli.build import SITE, build_report, print_build_failures
from kernels_bench_tools.cli.build_options import takes_build_options
from kernels_bench_tools.cli.options import Paths
from kernels_bench_tools.cli.output import note_unused, summarize_build
from kernels_bench_tools.errors import KbtError, ProjectError
from kernels_bench_tools.notebooks.project import find_project, find_project_of
from kernels_bench_tools.report.folder import MANIFEST
from kernels_bench_tools.run.locks import signals_as_interrupt
from kernels_bench_tools.run.options import BuildOptions
from kernels_bench_tools.serve.server import Server, Watcher
from kernels_bench_tools.text.words import abbreviated


@takes_build_options("env no_measure workloads")
def serve(
    paths: Paths = None,
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535)] = 8000,
    *,
    options: BuildOptions,
    no_build: bool = False,
) -> int:
    """Show the report in a browser and rebuild it when files change.

    Serves http://127.0.0.1:PORT until Ctrl-C. After each build, open pages reload and keep their scroll position. Errors
    are shown in the terminal and in open pages, above the last good report. Edited prose runs no cell. A change during a
    build starts another build after it.

    Measures in one process, as `kbt run` does; `kbt build` uses several.

    Args:
        port: Port to listen on; 0 for any free port.
        no_build: Do not build; show site/ as other commands write it.
    """
    project = find_project_of(paths or ())
    project.find_notebooks([path.partition(":")[0] for path in paths or ()])
    site = project.root / SITE
    if no_build and not (site / "index.html").is_file():
        raise ProjectError(str(site), "has no report", "A built site", "Run `kbt build` first")
    if no_build:
        unused = {
            "PATH": paths,
            "--env": options.environment != "uv",
            "--workloads": options.request.workloads,
        }
        note_unused(unused, "with --no-build, which runs nothing")
    options = replace(options, quick=True)
    try:
        with signals_as_interrupt(), Server(port, site) as server:
            print(server.url, flush=True)
            watcher = Watcher(site) if no_build else None
            while watcher and watcher.wait():
                server.update(new_report=True)
            _rebuild(project.root, paths or [], options, server)
    except KeyboardInterrupt:
        print("kbt: interrupted. Finished results are kept; the report is in site/.", file=sys.stderr)
    return INTERRUPTED


def _rebuild(root: Path, targets: list[str], options: BuildOptions, server: Server) -> None:
    """Build now and after each change, until interrupted."""
    # Created before the first build, so that changes during it are found.
    watcher = Watcher(root, lambda folder: folder == server.site or (folder / MANIFEST).is_file())
    while True:
        server.update(busy="Building …")
        try:
            project = find_project(root)  # again, because its settings may have changed
            result, published = build_report(
                project,
                targets,
                options,
                on_published=lambda: server.update(busy="Building …", new_report=True),
            )
            print(summarize_build(result), file=sys.stderr, flush=True)
            print_build_failures(result, published, strict=False)
            wrong = "\n".join(problem for problems in result.left_out.values() for problem in problems)
            server.update(new_report=bool(published.written or published.removed), error=wrong)
        except (KbtError, OSError) as error:
            print(f"kbt: {error}", file=sys.stderr, flush=True)
            server.update(error=str(error))
        print(f"changed: {abbreviated(watcher.wait())}", file=sys.stderr, flush=True)
