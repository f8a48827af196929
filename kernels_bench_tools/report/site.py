"""Publishing: a build's notebooks and artifacts in, a folder of pages out."""

from __future__ import annotations

from pathlib import Path

import msgspec

from kernels_bench_tools.report.output import OutputFolder
from kernels_bench_tools.report.plan import plan_site
from kernels_bench_tools.report.site_paths import FRONT
from kernels_bench_tools.schema.build import BuildRun
from kernels_bench_tools.schema.summary import Report


class Published(msgspec.Struct, kw_only=True):
    """What publishing did; lists are of site paths."""

    index: Path
    """The front page's file."""
    written: list[str]
    unchanged: list[str]
    removed: list[str]
    dead_links: list[str]
    """``folder: url`` of each link in prose that leads nowhere."""


def publish(project_root: Path, build: BuildRun, output: Path, previous: Report | None = None) -> Published:
    """Write the pages of a build, and remove those of earlier builds that it no longer has.

    A page of which nothing changed is neither made nor written again.

    Args:
        project_root: The project; the build's paths count from it.
        build: Every notebook with its prose and how its cells ended.
        output: Folder of the site; made if it does not exist.
        previous: An earlier build's: the front page tells what has changed since.

    Raises:
        ProjectError: The output folder holds files that no build wrote.
    """
    folder = OutputFolder(output)
    site, files = plan_site(project_root, build, previous)
    changes = folder.write(files, site.links.dead)
    return Published(
        index=output / FRONT,
        written=changes.written,
        unchanged=changes.unchanged,
        removed=changes.removed,
        dead_links=changes.dead,
    )


def unpublish(output: Path) -> int:
    """Remove what builds wrote to ``output``, nothing else, and return the number of files.

    Raises:
        ProjectError: The folder holds no site.
    """
    return OutputFolder(output).clear() if output.exists() else 0
