"""Changes between two states of a project: revisions, reports, folders of records, and the files as they are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path, PurePosixPath
from typing import NamedTuple

import msgspec

from kernels_bench_tools.errors import ProjectError, RecordError
from kernels_bench_tools.file_io import read_struct
from kernels_bench_tools.git import Repository
from kernels_bench_tools.records.build import (
    IMPLEMENTATIONS,
    RESULTS,
    has_other_code,
    is_implementation,
    operator_of,
)
from kernels_bench_tools.records.codec import decode_records
from kernels_bench_tools.records.committed import read_unlinked, record_files
from kernels_bench_tools.records.record import device_of
from kernels_bench_tools.records.summary import ChangeKind, Report
from kernels_bench_tools.results.history import (
    History,
    Measured,
    RowName,
    Step,
    Version,
    compare_rows,
    harness_then,
    measured,
    owner_of,
    points_of,
    read_history,
    record_paths,
    rows_of,
)
from kernels_bench_tools.text import grouped


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
    read_code: Callable[[str, bytes], Mapping[str, str]]
    """Returns the code of each cell of a notebook."""


class _State(NamedTuple):
    files: Mapping[str, bytes] = {}
    """Files of records, and notebooks of implementations, by path."""
    points: Mapping[RowName, Measured] = {}


def compare_states(place: Place, base: str, head: str) -> list[Step]:
    """Return the rows that differ between two states, each judged, the most important first.

    A state is a revision, a ``report.json``, a folder of records, or, without a name, the project's files as they are.
    Rows that were not measured again are left out, unless their code is another one.
    """
    repository = _repository(place, base, head)
    sides = [_read_state(place, repository, name) for name in (base, head)]
    equal = {path for path, data in sides[0].files.items() if sides[1].files.get(path) == data}
    before, after = (_measured_rows(place, repository, side, equal) for side in sides)
    changed = {record_paths(row.operator, row.implementation) for row in before.keys() | after.keys()}
    history = read_history(repository, changed) if repository else []
    return sorted([*compare_rows(before, after, history), *_stale(place, *sides)], key=Step.order)


def find_history(place: Place, since: str) -> History:
    """Return how times changed from commit to commit, and the rows of a state."""
    repository = _repository(place, since)
    paths = [record_paths(operator) for operator in place.operators]
    steps = read_history(repository, paths) if repository else []
    base = _measured_rows(place, repository, _read_state(place, repository, since))
    report = Path(since).is_file() and f"the report of {read_report(Path(since)).measured[:10]}"
    return History(report or since, base, steps)


def _repository(place: Place, *states: str) -> Repository | None:
    """Return the repository of the project; None if it has none, and no state is a revision."""
    try:
        return Repository(place.root)
    except ProjectError:
        if any(name and not Path(name).exists() for name in states):
            raise
        return None


def _measured_rows(
    place: Place, repository: Repository | None, state: _State, skipped: Collection[str] = ()
) -> dict[RowName, Measured]:
    rows = _rows_of_files(state.files, skipped, place.on_problem)
    harness = harness_then(repository, rows.values()) if repository else {}
    return {**state.points, **{row: measured(one, harness.get(one.origin, "")) for row, one in rows.items()}}


def _stale(place: Place, base: _State, head: _State) -> Iterator[Step]:
    """Yield the rows of notebooks that differ whose records are not of their code."""
    for path, data in head.files.items():
        if path.endswith(".md") and base.files.get(path) != data:
            folder, code = f"{operator_of(path)}/{RESULTS}/records/", place.read_code(path, data)
            own = {
                one: records
                for one, records in head.files.items()
                if one.startswith(folder) and one.endswith(f"/{PurePosixPath(path).stem}.jsonl")
            }
            for row, version in _rows_of_files(own, (), place.on_problem).items():
                if has_other_code(version.records[0].provenance, code):
                    yield Step(row, None, measured(version), kind=ChangeKind.STALE)


def _read_state(place: Place, repository: Repository | None, name: str) -> _State:
    path = Path(name)
    if name and path.is_file():
        return _State(points=points_of(read_report(path).operators))
    if name and path.is_dir():
        return _state(path, path.rglob("*.jsonl"))
    if not name:
        folders = [place.root / operator for operator in place.operators]
        notebooks = (one for folder in folders for one in folder.glob(f"{IMPLEMENTATIONS}/*.md"))
        return _state(place.root, [*chain.from_iterable(map(record_files, folders)), *notebooks])
    assert repository
    found = {
        path: content
        for path, content in repository.files(repository.resolve(name)).items()
        if owner_of(path) or (path.endswith(".md") and is_implementation(path))
    }
    return _State(dict(zip(found, repository.read([*found.values()]), strict=True)))


def _state(root: Path, files: Iterable[Path]) -> _State:
    return _State({one.relative_to(root).as_posix(): read_unlinked(one) for one in sorted(files)})


def _rows_of_files(
    files: Mapping[str, bytes], equal: Collection[str], on_problem: Callable[[RecordError], None]
) -> dict[RowName, Version]:
    """Return the rows in files of records, without those of the files that are ``equal`` on both sides."""
    rows: dict[RowName, Version] = {}
    for path, data in files.items():
        owner = owner_of(path)
        is_new = path.endswith(".jsonl") and path not in equal
        records = decode_records(data, path, on_problem, owner) if is_new else []
        own = grouped(((one.op, one.impl, device_of(one).slug), one) for one in records)
        for (operator, implementation, device), found in own.items():
            name = owner.operator if owner else operator, implementation, device
            rows |= {RowName(*name, workload): one for workload, one in rows_of(found).items()}
    return rows
