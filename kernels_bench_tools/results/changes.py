"""Changes between two states of a project: revisions, reports, folders of records, and the files as they are."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
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
from kernels_bench_tools.records.committed import read_unlinked, record_file, record_files
from kernels_bench_tools.records.record import Status, device_of
from kernels_bench_tools.records.summary import (
    ChangeKind,
    DeviceSummary,
    Estimate,
    Report,
    Row,
    Summary,
    geometric_mean,
)
from kernels_bench_tools.results.history import (
    Measured,
    RowName,
    Step,
    Version,
    judge,
    measured,
    measured_point,
    modules_then,
    owner_of,
    read_history,
    rows_of,
)
from kernels_bench_tools.results.tables import view_title
from kernels_bench_tools.text import grouped, times


class Change(NamedTuple):
    kind: ChangeKind
    operator: str
    row: Row
    place: str
    """Operator, device and view."""
    view: DeviceSummary | None
    """None of a row that is gone."""
    detail: str = ""


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


def changes_since(previous: Report, summaries: Sequence[Summary]) -> list[Change]:
    """Return how rows differ from those of an earlier report, the most important first.

    Rows that had a time and no longer exist are returned once for each device.
    """
    before = {key: (summary, view, row) for key, summary, view, row in _rows(previous.operators)}
    earlier = dict(_points(previous.operators))
    steps = [Step(name, earlier.get(name), point) for name, point in _points(summaries)]
    judged = {step.row: step for step in judge(steps)}
    found, now = [], set()
    for key, summary, view, row in _rows(summaries):
        now.add(key)
        operator, device, implementation = key
        kind, detail = _compare(
            [judged[RowName(operator, implementation, device, point.workload)] for point in row.points], row
        )
        if kind is not None:
            place = f"{summary.title}, {view.device.name}, {view_title(view)}"
            found.append(Change(kind, summary.operator, row, place, view, detail))
    for key in before.keys() - now:
        summary, view, row = before[key]
        if row.passed:
            place = f"{summary.title}, {view.device.name}"
            found.append(Change(ChangeKind.GONE, summary.operator, row, place, None))
    order = list(ChangeKind)
    return sorted(found, key=lambda change: (order.index(change.kind), change.place, change.row.title))


def _points(summaries: Iterable[Summary]) -> Iterator[tuple[RowName, Measured]]:
    for (operator, device, implementation), _, view, row in _rows(summaries):
        for point in row.points:
            yield RowName(operator, implementation, device, point.workload), measured_point(view, row, point)


def _rows(summaries: Iterable[Summary]) -> Iterator[tuple[tuple[str, str, str], Summary, DeviceSummary, Row]]:
    for summary in summaries:
        for view in summary.devices:
            for row in view.rows:
                yield (summary.operator, view.device.slug, row.implementation), summary, view, row


def _compare(steps: Sequence[Step], row: Row) -> tuple[ChangeKind | None, str]:
    pairs = list(zip(steps, row.points, strict=True))
    passed_before = [one for one in pairs if one[0].before and one[0].before.status is Status.OK]
    for _, now in passed_before:
        if now.status is not Status.OK:
            return ChangeKind.FAILS, f"{now.workload}: {now.reason or now.status.value}"
    if not passed_before:
        if all(now.status is not Status.OK for now in row.points):
            return None, ""
        speed = f"speed-up {times(row.speedup)}" if row.speedup is not None and not row.baseline else ""
        return (ChangeKind.PASSES if any(step.before for step in steps) else ChangeKind.NEW), speed
    # Only significant differences count, and a slowdown is not hidden by others.
    ratios = {
        kind: [1 / step.ratio.value for step in steps if step.kind is kind and step.ratio]
        for kind in (ChangeKind.SLOWER, ChangeKind.FASTER)
    }
    slower, faster = ratios.values()
    if not (shown := slower or faster):
        return None, ""
    detail = f"{times(geometric_mean(shown))}; significant on {len(shown)} of {len(passed_before)} workloads"
    if slower and faster:
        detail += f"; {times(geometric_mean(faster))} on {len(faster)}"
    return (ChangeKind.SLOWER if slower else ChangeKind.FASTER), detail


class Place(NamedTuple):
    """Where states of a project are found."""

    root: Path
    operators: Sequence[str]
    """The ids of its operators."""
    operators_folder: Path
    """The folder with the modules of its own operators."""
    on_problem: Callable[[RecordError], None]
    """Gets what is wrong with records."""
    read_code: Callable[[str, bytes], Mapping[str, str]]
    """Returns the code of each cell of a notebook."""


class _State(NamedTuple):
    """What one of two states has of rows."""

    files: Mapping[str, bytes] = {}
    """Files of records, and notebooks of implementations, by path."""
    points: Mapping[RowName, Measured] = {}


def compare_states(place: Place, base: str, head: str, history: Sequence[Step] | None = None) -> list[Step]:
    """Return the rows that differ between two states, each judged, the most important first.

    A state is a revision, a ``report.json``, a folder of records, or, without a name, the project's files as they are.
    Rows that were not measured again are left out, unless their code is another one. ``history`` is that of all rows, if it was read before.
    """
    repository: Repository | None = None
    try:
        repository = Repository(place.root)
    except ProjectError:
        if any(name and not Path(name).exists() for name in (base, head)):
            raise
    sides = [_read_state(place, repository, name) for name in (base, head)]
    equal = {path for path, data in sides[0].files.items() if sides[1].files.get(path) == data}
    found = [_rows_of_files(side.files, equal, place.on_problem) for side in sides]
    of_both = {row: [side[row] for side in found if row in side] for row in found[0].keys() | found[1].keys()}
    modules = modules_then(repository, place.operators_folder, of_both) if repository else {}
    before, after = (
        {
            **side.points,
            **{row: measured(one, modules.get((row.operator, one.origin))) for row, one in own.items()},
        }
        for side, own in zip(sides, found, strict=True)
    )
    steps = [Step(row, before.get(row), after.get(row)) for row in sorted(before.keys() | after.keys())]
    steps = [
        one
        for one in steps
        if not (one.before and one.after and _identity(one.before) == _identity(one.after))
    ]
    files = {
        record_file(Path(row.operator), row.device, row.implementation) for row in (one.row for one in steps)
    }
    paths = [f":(literal){path.as_posix()}" for path in files]
    if history is None:
        history = read_history(repository, place.operators_folder, paths) if repository else []
    order = list(ChangeKind)
    steps = [*judge(steps, history), *_stale(place, *sides)]
    return sorted(steps, key=lambda step: (order.index(step.kind), step.row))


def _identity(one: Measured) -> tuple[str, Estimate | None]:
    return one.time, one.estimate


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
        return _State(points=dict(_points(read_report(path).operators)))
    if name and path.is_dir():
        return _State(
            {one.relative_to(path).as_posix(): read_unlinked(one) for one in sorted(path.rglob("*.jsonl"))}
        )
    if not name:
        folders = [place.root / operator for operator in place.operators]
        files = [
            one
            for folder in folders
            for one in (*record_files(folder), *folder.glob(f"{IMPLEMENTATIONS}/*.md"))
        ]
        return _State({one.relative_to(place.root).as_posix(): read_unlinked(one) for one in files})
    assert repository is not None
    found = {
        path: content
        for path, content in repository.files(repository.resolve(name)).items()
        if owner_of(path) or (path.endswith(".md") and is_implementation(path))
    }
    return _State(dict(zip(found, repository.read([*found.values()]), strict=True)))


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
            named = owner.operator if owner else operator
            rows |= {
                RowName(named, implementation, device, name): one for name, one in rows_of(found).items()
            }
    return rows
