"""States of a project, in git, in a report or as files: the measurements of their rows, and the steps between them."""

from __future__ import annotations

import gc
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec

from kernels_bench_tools.errors import ProjectError, RecordError
from kernels_bench_tools.file_io import read_struct
from kernels_bench_tools.git import Commit, Repository
from kernels_bench_tools.own_process import PACKAGE_FOLDER
from kernels_bench_tools.records.code import has_other_code
from kernels_bench_tools.records.codec import decode_records, ignore
from kernels_bench_tools.records.committed import Owner, owner_of, read_unlinked, record_files
from kernels_bench_tools.records.notebook import IMPLEMENTATIONS, RESULTS, is_implementation, operator_of
from kernels_bench_tools.records.record import Record, device_of
from kernels_bench_tools.records.summary import ChangeKind, Report
from kernels_bench_tools.results.history.causes import (
    Measurement,
    RowName,
    Version,
    measurement_of,
    points_of,
    rows_of,
)
from kernels_bench_tools.results.history.changes import Step, compare_rows, decide_changes
from kernels_bench_tools.text.tables import grouped


def record_paths(operator: str, implementation: str = "") -> str:
    """Return the pathspec of the committed records of an operator, or of one of its implementations."""
    return f":(glob){operator}/{RESULTS}/records/*/{implementation or '*'}.jsonl"


@contextmanager
def _no_collection() -> Iterator[None]:
    """Records are many and in no circles: looking for those would double the time of reading them."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


@_no_collection()
def read_history(repository: Repository, paths: Collection[str]) -> list[Step]:
    """Return the steps of rows in the history of the commit that is checked out, by row and time, each judged.

    The first step of a row has no measurement before it. What a commit only wrote anew, such as digests, is no step.
    ``paths`` are pathspecs of record files.
    """
    files: dict[str, list[tuple[Commit, str]]] = {}
    for commit in repository.log(*paths) if paths else ():
        for path, content in commit.files.items():
            if content and _owner(path):
                files.setdefault(path, []).append((commit, content))
    contents = repository.read([content for versions in files.values() for _, content in versions])
    rows: dict[RowName, list[Version]] = {}
    for path, versions in files.items():
        rows |= _versions(path, versions, contents)
    harness = harness_then(repository, chain.from_iterable(rows.values()))
    steps: list[Step] = []
    for row in sorted(rows):
        before: Measurement | None = None
        for version in rows[row]:
            after = measurement_of(version, harness.get(version.origin, ""))
            steps.append(Step(row, before, after, version.commit))
            before = after
    decide_changes(steps, steps)
    return steps


def _versions(
    path: str, versions: Sequence[tuple[Commit, str]], contents: Iterator[bytes]
) -> dict[RowName, list[Version]]:
    """Return the measurements of each row of a file, oldest first."""
    owner, known = _owner(path), dict[bytes, Record]()
    assert owner is not None
    # By the runs that measured it: a commit that writes other fields of the same measurement corrects them.
    rows: dict[str, dict[tuple[tuple[str, int], ...], Version]] = {}
    for commit, _ in versions:
        records, here = decode_records(next(contents), path, ignore, owner, known), Version((), {}, commit)
        for workload, version in rows_of(records).items():
            runs = tuple((record.run, record.process) for record in version.records)
            of_row = rows.setdefault(workload, {})
            of_row[runs] = Version(version.records, version.packages, of_row.get(runs, here).commit)
    name = (owner.operator, owner.implementation, next(iter(owner.devices)))
    return {RowName(*name, workload): list(of_row.values()) for workload, of_row in rows.items()}


def harness_then(repository: Repository, versions: Iterable[Version]) -> dict[str, str]:
    """Return what measured by commit, for records that lack its digest; nothing of one that comes from elsewhere, as a package."""
    measure = PACKAGE_FOLDER / "measure"
    if not measure.is_relative_to(repository.top):
        return {}
    path = measure.relative_to(repository.top).as_posix()
    commits = sorted({version.origin for version in versions} - {""})
    names = repository.names([f"{commit}:{path}" for commit in commits])
    return {asked.partition(":")[0]: name for asked, name in names.items()}


def read_report(path: Path) -> Report:
    """Return the report in a ``report.json`` of an earlier build.

    Raises:
        ProjectError: It cannot be read, or has another format.
    """
    try:
        return read_struct(path, Report)
    except OSError as error:
        what = f"cannot be read ({error.strerror})"
    except msgspec.DecodeError as error:
        what = f"is not a report that this version can read: {error}"
    raise ProjectError(str(path), what, "The report.json of an earlier build")


class Place(NamedTuple):
    root: Path
    operators: Sequence[str]
    """The ids of its operators."""
    on_problem: Callable[[RecordError], None]
    """Gets what is wrong with records."""
    read_digests: Callable[[str, bytes], Mapping[str, str]]
    """Returns the digest of each cell's code, given a notebook's path and content."""


class _State(NamedTuple):
    files: Mapping[str, bytes] = {}
    """Files of records, and notebooks of implementations, by path."""
    points: Mapping[RowName, Measurement] = {}


def compare_states(place: Place, base: str, head: str) -> list[Step]:
    """Return the rows that differ between two states, each judged, the most important first.

    A state is a revision, a ``report.json``, a folder of records, or, without a name, the project's files as they are.
    Rows that were not measured again are left out, unless their code is another one.
    """
    repository = repository_of(place, base, head)
    sides = [read_state(place, repository, name) for name in (base, head)]
    equal = {path for path, data in sides[0].files.items() if sides[1].files.get(path) == data}
    before, after = (measured_rows(place, repository, side, equal) for side in sides)
    changed = {record_paths(row.operator, row.implementation) for row in before.keys() | after.keys()}
    history = read_history(repository, changed) if repository else []
    return sorted([*compare_rows(before, after, history), *_stale(place, *sides)], key=Step.order)


def repository_of(place: Place, *states: str) -> Repository | None:
    """Return the repository of the project; None if it has none, and no state is a revision."""
    try:
        return Repository(place.root)
    except ProjectError:
        if any(name and not Path(name).exists() for name in states):
            raise
        return None


def measured_rows(
    place: Place, repository: Repository | None, state: _State, skipped: Collection[str] = ()
) -> dict[RowName, Measurement]:
    rows = _rows_of_files(state.files, skipped, place.on_problem)
    harness = harness_then(repository, rows.values()) if repository else {}
    return {
        **state.points,
        **{row: measurement_of(it, harness.get(it.origin, "")) for row, it in rows.items()},
    }


def _stale(place: Place, base: _State, head: _State) -> Iterator[Step]:
    """Yield the rows of notebooks that differ whose records are not of their code."""
    for path, data in head.files.items():
        if path.endswith(".md") and base.files.get(path) != data:
            folder, digests = f"{operator_of(path)}/{RESULTS}/records/", place.read_digests(path, data)
            own = {
                file: records
                for file, records in head.files.items()
                if file.startswith(folder) and file.endswith(f"/{PurePosixPath(path).stem}.jsonl")
            }
            for row, version in _rows_of_files(own, (), place.on_problem).items():
                if has_other_code(version.records[0].provenance, digests):
                    yield Step(row, None, measurement_of(version), kind=ChangeKind.STALE)


def read_state(place: Place, repository: Repository | None, name: str) -> _State:
    path = Path(name)
    if name and path.is_file():
        return _State(points=points_of(read_report(path).operators))
    if name and path.is_dir():
        return _state(path, path.rglob("*.jsonl"))
    if not name:
        folders = [place.root / operator for operator in place.operators]
        notebooks = chain.from_iterable(folder.glob(f"{IMPLEMENTATIONS}/*.md") for folder in folders)
        return _state(place.root, [*chain.from_iterable(map(record_files, folders)), *notebooks])
    assert repository
    contents = {
        path: content
        for path, content in repository.files(repository.resolve(name)).items()
        if _owner(path) or (path.endswith(".md") and is_implementation(path))
    }
    return _State(dict(zip(contents, repository.read([*contents.values()]), strict=True)))


def _state(root: Path, files: Iterable[Path]) -> _State:
    return _State({file.relative_to(root).as_posix(): read_unlinked(file) for file in sorted(files)})


def _owner(path: str) -> Owner | None:
    """Return whose records a file has; None for any other file, such as one of effects."""
    owner = owner_of(path)
    return owner if owner and not owner.model else None


def _rows_of_files(
    files: Mapping[str, bytes], equal: Collection[str], on_problem: Callable[[RecordError], None]
) -> dict[RowName, Version]:
    """Return the rows in files of records, without those of the files that are ``equal`` on both sides."""
    rows: dict[RowName, Version] = {}
    for path, data in files.items():
        owner = _owner(path)
        is_new = path.endswith(".jsonl") and path not in equal
        records = decode_records(data, path, on_problem, owner) if is_new else []
        of_device = grouped(((it.op, it.impl, device_of(it).slug), it) for it in records)
        for (operator, implementation, device), own in of_device.items():
            name = owner.operator if owner else operator, implementation, device
            rows |= {RowName(*name, workload): version for workload, version in rows_of(own).items()}
    return rows
