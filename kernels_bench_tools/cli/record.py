"""``kbt record``: copy measured records into the project, to be committed."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from math import inf
from pathlib import Path
from typing import Annotated, NamedTuple

import typer
from msgspec.structs import replace

from kernels_bench_tools.cli import USER_MISTAKE
from kernels_bench_tools.cli.output import last_build, note_problem, processes_suffix
from kernels_bench_tools.cli.progress import PlainProgress
from kernels_bench_tools.errors import ProjectError, RecordError
from kernels_bench_tools.notebooks.project import Project, find_project, operators
from kernels_bench_tools.records.codec import read_records, refuse, share_fields, thin_record, write_records
from kernels_bench_tools.records.committed import Owner, cell_owner, effect_file, is_linked, record_file
from kernels_bench_tools.records.foreign import is_plain
from kernels_bench_tools.records.record import Record
from kernels_bench_tools.run.cache.store import CellCache
from kernels_bench_tools.run.locks import project_lock
from kernels_bench_tools.text.tables import grouped


class Merged(NamedTuple):
    kept: list[Record]
    """Earlier rows."""
    taken: list[Record]
    """New rows."""
    less: set[str]
    """Workloads, or phases, measured now with fewer layers or in fewer processes, with the same code: kept."""


def merge_rows(before: Sequence[Record], now: Sequence[Record], *, force: bool) -> Merged:
    """Return which rows of a file are kept, and which new ones are taken; all of the new ones with ``force``."""
    counted = _with_earlier_runs(before, now)
    before = [] if force else before
    earlier_extent = _extents(before)
    less = {
        part
        for (part, code), extent in _extents(now).items()
        if extent < earlier_extent.get((part, code), (0, 0))
    }
    earlier, again = measured_parts(before), measured_parts(now) - less
    named = {part_of(entry) for entry in now} - less
    kept = [
        entry
        for entry in before
        if part_of(entry) not in again and (part_of(entry) in earlier or part_of(entry) not in named | {""})
    ]
    # A failure is recorded only for a workload that was never measured.
    failures = named - again - earlier - ({""} if earlier else set())
    return Merged(kept, [entry for entry in counted if part_of(entry) in again | failures], less)


def part_of(record: Record) -> str:
    """Return what is replaced as a whole: the phase of an effect, else the workload."""
    return record.effect.phase if record.effect else record.workload


def measured_parts(records: Iterable[Record]) -> set[str]:
    return {part_of(entry) for entry in records if entry.outcome.ran}


def _extents(records: Iterable[Record]) -> dict[tuple[str, str], tuple[float, int]]:
    """Return how many layers, and processes, measured each workload, or phase, with each code."""
    rows = grouped(
        ((part_of(entry), entry.provenance.code_digest), entry) for entry in records if entry.outcome.ran
    )
    return {
        key: (
            entries[-1].effect.layers or inf if entries[-1].effect else 0,
            len({(entry.run, entry.process) for entry in entries}),
        )
        for key, entries in rows.items()
    }


def _with_earlier_runs(before: Iterable[Record], now: Sequence[Record]) -> list[Record]:
    """Return the new records; the first of each workload and process has the number of runs that it replaces."""
    of_run = {(entry.workload, entry.process, entry.run): entry.earlier_runs for entry in before}
    new_runs = {entry.run for entry in now}
    replaced = {
        key: sum(runs)
        for key, runs in grouped(
            ((workload, process), 1 + earlier)
            for (workload, process, run), earlier in of_run.items()
            if run not in new_runs
        ).items()
    }
    return [
        replace(
            entry,
            earlier_runs=max(entry.earlier_runs, of_run.get((entry.workload, entry.process, entry.run), 0))
            + replaced.pop((entry.workload, entry.process), 0),
        )
        for entry in now
    ]


Destination = dict[Path, list[Record]]
SourceFile = tuple[Path, Owner | None]
"""A file, and what its records have to be of, if that is known."""


def record(
    paths: Annotated[list[Path] | None, typer.Argument()] = None, force: bool = False, full: bool = False
) -> int:
    """Copy measured records into the project, to be committed.

    Writes OPERATOR/results/records/DEVICE/IMPLEMENTATION.jsonl with the rows of all processes. Replaces only rows of
    workloads that were measured again. An earlier row is kept if the new one is missing, failed, or was measured in fewer
    processes with the same code, unless --force is given. Records of `kbt effect` go to effects/DEVICE/MODEL/: a new phase
    replaces an earlier one, unless it was measured with fewer layers.

    Args:
        paths (PATH): JSONL files, or folders of them, from another machine. [default: the records of the last
            build, even if it was interrupted]
        force: Replace whole files, even measured rows by failures.
        full: Keep all samples and digits. [default: 20 samples per row]
    """
    project = find_project()
    # A build would replace what is read, and of two commands that change a file one would lose its rows.
    with project_lock(project, PlainProgress()):
        destinations = _destinations(project, _sources(project, paths or []))
        if not destinations and paths:
            where, expected = ", ".join(map(str, paths)), "A JSONL file of records, or a folder of them"
            raise ProjectError(where, "has no records", expected)
        if not destinations:
            what = "no cell wrote records of `run_benchmark`"
            raise ProjectError("record", what, "", "Run `kbt build` first")
        return keep_records(project, destinations, force=force, full=full)


def keep_records(
    project: Project, destinations: Destination, *, force: bool = False, full: bool = False
) -> int:
    """Merge records into their files, print what is in them, and return the exit code; needs the project's lock."""
    unreadable = 0
    for path in filter(is_linked, destinations):
        what = "is a symbolic link, or in a folder that is one"
        raise RecordError(str(path), what, "A file of this project", "Replace the link by its target")
    for path, records in sorted(destinations.items()):
        try:
            before = read_records(path, project.relative(path), refuse) if path.is_file() else []
        except RecordError as error:
            if not force:
                print(error, file=sys.stderr)
                unreadable = USER_MISTAKE
                continue
            before = []
        kept, taken, less = merge_rows(before, records, force=force)
        effect = any(entry.effect for entry in records)
        than = f"measured {'with fewer layers or ' if effect else ''}in fewer processes than before"
        if not taken:
            why = than if less else "nothing was measured again"
            how = "remove the file to replace it" if effect else "`kbt record --force` replaces it"
            print(f"kept {project.relative(path)}: {why} ({how})")
            continue
        write_records(path, share_fields(kept + (taken if full else list(map(thin_record, taken)))))
        named = {part_of(entry) for entry in taken} - {""} or {""}
        what = "phases" if effect else "workloads"
        measured = f"{len(measured_parts(taken))} of {len(named)} {what} measured{processes_suffix(taken)}"
        others = len({part_of(entry) for entry in kept})
        why = f" ({len(less)} {than})" if less else ""
        print(f"{project.relative(path)}: {measured}{f', {others} kept{why}' if others else ''}")
    return unreadable


def _sources(project: Project, paths: Iterable[Path]) -> Iterator[SourceFile]:
    """Yield the files that were given, or those that cells of the last build have written."""
    for path in paths:
        if not path.exists():
            expected = "A JSONL file or a folder of them"
            raise ProjectError(str(path), "does not exist", expected, "Check the path")
        for file in sorted(path.rglob("*.jsonl")) if path.is_dir() else [path.resolve()]:
            yield file, None
    build, cache = None if paths else last_build(project), CellCache(project.state)
    for notebook in build.notebooks if build else ():
        for cell in notebook.cells:
            # For an interrupted cell, not the artifacts of an earlier build.
            for artifact in cell.unfinished or cell.artifacts.values():
                path = project.root / artifact
                if not build or path.suffix != ".jsonl" or is_plain(path):
                    continue
                # The list of results may have been changed, too.
                inside = path.is_relative_to(cache.folder) and ".." not in path.parts
                if not inside or cache.find(path.relative_to(cache.folder).parts[0]) is None:
                    what = "its result is not as the build stored it"
                    note_problem(RecordError(f"{notebook.path}:{cell.id}", what, "", "Build again"))
                else:
                    yield path, cell_owner(notebook.path, build.device)


def _destinations(project: Project, sources: Iterable[SourceFile]) -> Destination:
    folders = {name: paths[0].parents[1] for name, paths in operators(project).items()}
    # Records have the operator's name, which is the last part of an id with folders.
    folders = {name.rpartition("/")[2]: folder for name, folder in folders.items()} | folders
    destinations: Destination = defaultdict(list)
    for source, owner in sources:
        records = read_records(source, on_problem=note_problem, owner=owner)
        if not all(entry.op for entry in records):
            where = f"{owner.operator}/{owner.implementation}" if owner else str(source)
            note_problem(RecordError(where, "has records of another harness, which name no operator"))
        for entry in (entry for entry in records if entry.op):
            if entry.op not in folders:
                what = f"has a record of the operator {entry.op!r}, which this project does not have"
                expected = f"One of {', '.join(folders)}"
                raise RecordError(str(source), what, expected, "Record it in its own project")
            if entry.device is None:
                expected = "A record of this version"
                raise RecordError(str(source), "has a record without a device", expected, "Measure it again")
            if entry.effect:
                path = effect_file(project.root, entry.effect.model, entry, entry.effect.others)
            else:
                # Of a notebook, those of its own folder: several folders may have implementations of one operator.
                name = owner.operator if owner and owner.operator in folders else entry.op
                path = record_file(folders[name], entry.device.slug, entry.impl)
            destinations[path].append(entry)
    return destinations
