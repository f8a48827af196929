"""``kbt record``: keep measurements with the project."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from kernels_bench_tools.cli.tables import tell_processes
from kernels_bench_tools.errors import ProjectError, RecordError
from kernels_bench_tools.file_io import read_struct
from kernels_bench_tools.notebooks.project import Project, find_project, operators
from kernels_bench_tools.schema.build import BuildRun
from kernels_bench_tools.schema.record import Record
from kernels_bench_tools.schema.record_io import read_records, thin_records, write_records

Destination = dict[Path, list[Record]]


def record(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="PATH",
            help="JSONL files, or folders of them, brought from another machine. "
            "[default: what the last build left, also if it was interrupted]",
        ),
    ] = None,
    force: Annotated[
        bool, typer.Option("--force", help="Replace files whole, also measured rows by failures.")
    ] = False,
    full: Annotated[
        bool, typer.Option("--full", help="Keep every sample and digit. [default: 20 samples of each row]")
    ] = False,
) -> None:
    """Copy records to OPERATOR/results/records/DEVICE/IMPLEMENTATION.jsonl, to be committed.

    Each file holds all processes of one implementation. Only the rows of workloads that are measured now are
    replaced: what was measured before and is not now, or fails now, is kept, unless --force is given.
    """
    project = find_project(Path.cwd())
    sources = _files(paths) if paths else _last_build(project)
    destinations = _destinations(project, sources)
    if not destinations:
        raise ProjectError(
            "record", "found no records", "Records of a build, or JSONL files", "Run `kbt build` first"
        )
    for path, records in sorted(destinations.items()):
        before = read_records(path) if path.is_file() and not force else []
        kept, taken = _joined(before, records)
        if not taken:
            print(f"kept {project.relative(path)}: nothing of it is measured again (--force replaces it)")
            continue
        write_records(path, kept + (taken if full else thin_records(taken)))
        named = {entry.workload for entry in taken} - {""} or {""}
        told = f"{len(_measured(taken))} of {len(named)} workloads measured{tell_processes(taken)}"
        beside = len({entry.workload for entry in kept})
        print(f"{project.relative(path)}: {told}{f', {beside} kept' if beside else ''}")


def _files(paths: Iterable[Path]) -> list[Path]:
    files: list[Path] = []
    for path in paths:
        if path.is_dir():
            files += sorted(path.rglob("*.jsonl"))
        elif path.is_file():
            files.append(path)
        else:
            raise ProjectError(
                str(path), "does not exist", "A JSONL file or a folder of them", "Check the path"
            )
    return files


def _last_build(project: Project) -> list[Path]:
    state = project.state / "build.json"
    if not state.is_file():
        return []
    return [
        project.root / artifact
        for notebook in read_struct(state, BuildRun).notebooks
        for cell in notebook.cells
        # Of a cell that was interrupted, not what an earlier build left.
        for artifact in cell.unfinished or cell.artifacts.values()
        if artifact.endswith(".jsonl")
    ]


def _destinations(project: Project, sources: Iterable[Path]) -> Destination:
    folders = {name: paths[0].parents[1] for name, paths in operators(project).items()}
    # Records have the operator's name, which is the last part of an id with folders.
    folders = {name.rpartition("/")[2]: folder for name, folder in folders.items()} | folders
    found: Destination = defaultdict(list)
    for source in sources:
        for entry in read_records(source):
            if entry.op not in folders:
                raise RecordError(
                    str(source),
                    f"has a record of the operator {entry.op!r}, which this project does not have",
                    f"One of {', '.join(folders)}",
                    "Record it in its own project",
                )
            if entry.device is None:
                raise RecordError(
                    str(source),
                    "has a record without a device",
                    "A record of this version",
                    "Measure it again",
                )
            folder = folders[entry.op] / "results" / "records" / entry.device.slug
            found[folder / f"{entry.impl}.jsonl"].append(entry)
    return found


def _joined(before: list[Record], now: list[Record]) -> tuple[list[Record], list[Record]]:
    """Return which earlier rows stay, as they are, and which rows of now go beside them."""
    earlier, again = _measured(before), _measured(now)
    named = {entry.workload for entry in now}
    kept = [
        entry
        for entry in before
        if entry.workload not in again and (entry.workload in earlier or entry.workload not in named | {""})
    ]
    # Where nothing ran, that is news only for what has never been measured.
    failures = named - again - earlier - ({""} if earlier else set())
    return kept, [entry for entry in now if entry.workload in again | failures]


def _measured(records: Iterable[Record]) -> set[str]:
    """Return the workloads that ran, in however many processes."""
    return {entry.workload for entry in records if entry.outcome.ran}
