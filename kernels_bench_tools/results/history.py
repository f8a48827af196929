"""What differs between two measurements of a row, whether its time does, and the measurements that git has of rows.

A row is an implementation on a workload on a device. Its time changed if both intervals are apart, by more than 0.5 % and than
the row's own noise: the 95 % quantile of its changes while nothing else changed. Of many rows that are compared at
once, Benjamini and Hochberg's correction keeps the share of false changes at most 5 %.
"""

from __future__ import annotations

import gc
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from math import ceil, hypot, log
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from kernels_bench_tools.errors import ProjectError, RecordError
from kernels_bench_tools.estimate import Estimate
from kernels_bench_tools.file_io import read_struct
from kernels_bench_tools.git import Commit, Repository
from kernels_bench_tools.own_process import PACKAGE_FOLDER
from kernels_bench_tools.records.code import has_other_code
from kernels_bench_tools.records.codec import decode_records, ignore
from kernels_bench_tools.records.committed import Owner, owner_of, read_unlinked, record_files
from kernels_bench_tools.records.notebook import IMPLEMENTATIONS, RESULTS, is_implementation, operator_of
from kernels_bench_tools.records.record import Environment, Provenance, Record, Status, device_of
from kernels_bench_tools.records.summary import (
    FEWEST_PROCESSES,
    SMALLEST_EFFECT,
    CauseKind,
    ChangeKind,
    Report,
    Summary,
    results_of,
)
from kernels_bench_tools.results.processes import by_workload, estimate, is_disturbed
from kernels_bench_tools.results.speedup import apart, readings
from kernels_bench_tools.stats import ratio_of, student, student_tail
from kernels_bench_tools.text import deviation, grouped, milliseconds, words

_NO_AXES = frozenset({"name", "set", "mode", "device", "seed"})
FALSE_CHANGES = 0.05
"""Share of the changes that are reported which may be none."""
_NOISE, _PAIRS = 0.95, 20
"""The quantile of a row's differences that is its noise, and of how many, the latest."""
_DIGEST = 8
_SUPPORT = frozenset(
    words(
        "annotated-doc anyio attrs certifi charset-normalizer click cloudpickle colorama contourpy cycler execnet filelock"
        " fonttools fsspec h11 hf-xet httpcore httpcore2 httpx httpx2 huggingface_hub idna iniconfig jinja2 joblib"
        " kiwisolver markdown-it-py markupsafe matplotlib mdurl mpmath msgspec narwhals networkx nvidia-ml-py opt_einsum"
        " packaging pandas pillow pip pluggy protobuf psutil pygments pyparsing pytest python-dateutil pyyaml regex"
        " requests rich setuptools shellingham six sympy tqdm truststore typer typing_extensions urllib3 wheel"
    )
)
"""Packages that a cell may import and that have no kernels; torch and Triton are in the environment."""


class Cause(NamedTuple):
    kind: CauseKind
    detail: str = ""

    @property
    def short(self) -> str:
        """What differs, in the words of a sentence."""
        return self.detail if self.kind is CauseKind.TOOLCHAIN else self.kind.label

    def __str__(self) -> str:
        named = self.detail and self.kind in {CauseKind.TOOLCHAIN, CauseKind.DEVICE}
        return f"{self.kind.label}: {self.detail}" if named else self.kind.label


TIMED = frozenset({ChangeKind.SLOWER, ChangeKind.FASTER})
CHANGED = TIMED | {ChangeKind.FAILS, ChangeKind.PASSES, ChangeKind.STALE}


class RowName(NamedTuple):
    operator: str
    implementation: str
    device: str
    workload: str
    version: str = ""
    """Which of several is compared with one."""


Facts = Mapping[CauseKind, Mapping[str, str | float]]
"""What a time depends on, by name; what is not known is missing, and the readings are those of the device."""


@dataclass(frozen=True)
class Measured:
    status: Status
    estimate: Estimate | None
    """The time in ms."""
    processes: int
    time: str
    """When it was measured."""
    facts: Facts
    on_cpu: bool = False


def causes(before: Measured, after: Measured) -> list[Cause]:
    """Return what differs between two measurements, as far as both tell; that nothing does if nothing does."""
    found = []
    for kind in CauseKind:
        old, new = before.facts.get(kind, {}), after.facts.get(kind, {})
        if kind is CauseKind.CODE and "code" in old and "code" in new:
            old = {"code": old["code"]}  # else of the whole notebook, for old records
        if kind is CauseKind.DEVICE:
            numbers = [{name: float(value) for name, value in one.items()} for one in (old, new)]
            shares = apart(*numbers, on_cpu=after.on_cpu)
            most = sorted(shares, key=lambda name: -abs(shares[name]))[:1]
            changed = [f"{name} {deviation(shares[name])}" for name in most]
        else:
            changed = [
                f"{name} {old[name]} → {value}"
                for name, value in new.items()
                if old.get(name, value) != value
            ]
        if changed:
            found.append(Cause(kind, ", ".join(changed)))
    return found or [Cause(CauseKind.NOTHING)]


def measured(version: Version, harness: str = "") -> Measured:
    """Return what the processes of a row measured; old records lack what measured, see :func:`harness_then`."""
    records = version.records
    first = next((record for record in records if record.outcome.ran), records[0])
    axes = {name: value for name, value in first.wl.items() if name not in _NO_AXES}
    timing = {"timer": first.lat_ms.timer.label, "cache": first.lat_ms.cache.label} if first.lat_ms else {}
    facts = _facts(first.env, replace(first.provenance, packages=version.packages), axes, timing, harness)
    status = max((record.outcome for record in records), key=lambda it: it.severity)
    if status is Status.OK and any(map(is_disturbed, records)):
        status = Status.DISTURBED
    on_cpu = first.device is not None and first.device.kind == "cpu"
    facts[CauseKind.DEVICE] = readings(records)
    return Measured(status, estimate(records), len(records), first.ts, facts, on_cpu)


def points_of(summaries: Iterable[Summary]) -> dict[RowName, Measured]:
    found = {}
    for operator, view, row, about, point in results_of(summaries):
        if about.name and point.status is not Status.ABSENT:
            axes = {**about.axes, "dtype": about.dtype}
            timing = {"timer": point.timer.label, "cache": point.cache.label} if point.p50_ms else {}
            facts = _facts(row.environment, row.provenance, axes, timing, "")
            facts[CauseKind.DEVICE] = {f"peak {name}": value for name, value in view.ceilings.items()}
            of_point = (point.status, point.latency, point.processes, point.measured)
            name = RowName(operator, row.implementation, view.device.slug, point.workload)
            found[name] = Measured(*of_point, facts, view.device.kind == "cpu")
    return found


def _facts(
    env: Environment,
    then: Provenance,
    axes: Mapping[str, object],
    timing: Mapping[str, str],
    tree: str,
) -> dict[CauseKind, Mapping[str, str | float]]:
    toolchain = {
        name: version
        for name, version in then.packages.items()
        if name.lower() not in _SUPPORT and name not in {"torch", "triton"}
    }
    toolchain |= {"torch": env.torch, "Triton": env.triton, "CUDA": env.cuda, "driver": env.driver}
    toolchain |= {one.repo: (one.commit or one.digest)[:_DIGEST] for one in then.hub}
    harness = {"version": then.harness, "modules": then.harness_digest[:_DIGEST], **timing}
    if not then.harness_digest:
        harness["tree"] = tree[:_DIGEST]
    return {
        CauseKind.CODE: _known(
            {"code": then.code_digest[:_DIGEST], "notebook": then.notebook_digest[:_DIGEST]}
        ),
        CauseKind.OPERATOR: _known(
            {"module": then.operator_digest[:_DIGEST], **{name: str(axes[name]) for name in axes}}
        ),
        CauseKind.TOOLCHAIN: _known(toolchain),
        CauseKind.HARNESS: _known(harness),
    }


def _known(values: Mapping[str, str]) -> dict[str, str]:
    return {name: value for name, value in values.items() if value}


@dataclass
class Step:
    """Two successive measurements of a row, or two that are compared."""

    row: RowName
    before: Measured | None
    after: Measured | None
    commit: Commit | None = None
    """Which brought ``after``."""
    causes: list[Cause] = field(default_factory=list)
    kind: ChangeKind = ChangeKind.SAME
    ratio: Estimate | None = None
    """The time after over the time before, with its interval."""
    floor: float = SMALLEST_EFFECT
    """Smaller relative differences are the row's noise."""

    def __post_init__(self) -> None:
        if self.before and self.after:
            self.causes = causes(self.before, self.after)
            if len(self.times) > 1:
                self.ratio = ratio_of(*reversed(self.times))

    @property
    def times(self) -> list[Estimate]:
        """The times before and after, as far as they are known."""
        return [side.estimate for side in (self.before, self.after) if side and side.estimate]

    def order(self) -> tuple[int, RowName]:
        """The most important change first."""
        return list(ChangeKind).index(self.kind), self.row

    def is_apart(self, other: Step) -> bool:
        """Return whether both of this step's measurements were before both of another's, or after them."""
        if other is self or not (self.before and self.after and other.before and other.after):
            return other is not self
        return self.after.time <= other.before.time or self.before.time >= other.after.time

    @property
    def unexplained(self) -> bool:
        """Whether the time changed although nothing else did."""
        return self.kind in TIMED and self.causes[0].kind is CauseKind.NOTHING

    @property
    def why(self) -> str:
        """What differs, in one line."""
        return "nothing changed, time did" if self.unexplained else "; ".join(map(str, self.causes))

    def __str__(self) -> str:
        """The measurement, and what it changed, in one line."""
        parts = [f"{self.commit.name[:8]} {self.commit.subject}"] if self.commit else []
        parts += [f"{milliseconds(time.value)} ms" for time in self.times[-1:]]
        parts += [f"{deviation(self.ratio.value - 1)}, {self.kind.label}"] if self.ratio else []
        return "; ".join(filter(None, [*parts, self.why]))

    def as_data(self) -> dict[str, Any]:
        data: dict[str, Any] = {**self.row._asdict(), "change": self.kind, "floor": self.floor}
        data |= {
            "causes": [one._asdict() for one in self.causes],
            **_with_ends("difference", self.ratio, 1.0),
        }
        for name, side in (("base", self.before), ("head", self.after)):
            if side:
                about = {"status": side.status, "measured": side.time, "processes": side.processes}
                data[name] = about | _with_ends("ms", side.estimate)
        if self.commit:
            data |= {
                "commit": self.commit.name,
                "subject": self.commit.subject,
                "committed": self.commit.time,
            }
        return data


def _with_ends(name: str, value: Estimate | None, less: float = 0.0) -> dict[str, float]:
    """Return an estimate as fields, without the ends of an interval that is not known."""
    known = value[: 3 if value.known else 1] if value else ()
    return {
        f"{name}{ending}": each - less for ending, each in zip(("", "_low", "_high"), known, strict=False)
    }


def judge(steps: Sequence[Step], history: Iterable[Step] = ()) -> Sequence[Step]:
    """Set what became of each row, and return the steps.

    The noise of rows is that of ``history``, without what overlaps in time with a step.
    """
    quiet = (one for one in history if one.ratio and one.causes[0].kind is CauseKind.NOTHING)
    floors = {row: found[-_PAIRS:] for row, found in grouped((one.row, one) for one in quiet).items()}
    tested: list[tuple[float, Step]] = []
    for step in steps:
        old, new = step.before, step.after
        noise = sorted(
            abs(log(one.ratio.value)) for one in floors.get(step.row, ()) if one.ratio and one.is_apart(step)
        )
        step.floor = max([SMALLEST_EFFECT, *noise[ceil(_NOISE * len(noise)) - 1 :][:1]])
        if old is None or new is None:
            step.kind = ChangeKind.GONE if new is None else ChangeKind.NEW
        elif Status.DISTURBED in {old.status, new.status}:
            step.kind = ChangeKind.UNSURE
        elif (old.status is Status.OK) != (new.status is Status.OK):
            step.kind = ChangeKind.FAILS if old.status is Status.OK else ChangeKind.PASSES
        elif old.status is not Status.OK or step.ratio is None:
            step.kind = ChangeKind.SAME
        elif min(old.processes, new.processes) < FEWEST_PROCESSES or not step.ratio.known:
            step.kind = ChangeKind.UNSURE
        else:
            step.kind = ChangeKind.SAME
            tested.append((_chance(step), step))
    tested.sort(key=lambda one: one[0])
    ranks = (
        rank for rank, (chance, _) in enumerate(tested, 1) if chance <= FALSE_CHANGES * rank / len(tested)
    )
    for _, step in tested[: max(ranks, default=0)]:
        old_time, new_time = step.times
        is_apart = new_time.low > old_time.high or new_time.high < old_time.low
        if is_apart and abs(log(new_time.value / old_time.value)) > step.floor:
            step.kind = ChangeKind.SLOWER if new_time.value > old_time.value else ChangeKind.FASTER
    return steps


def compare_rows(
    before: Mapping[RowName, Measured], after: Mapping[RowName, Measured], history: Iterable[Step]
) -> list[Step]:
    """Return the rows with a time that two states have, judged and in order, without what is the same measurement."""
    steps = []
    for row in before.keys() | after.keys():
        old, new = before.get(row), after.get(row)
        if not (old and new) or (old.status, old.estimate) != (new.status, new.estimate):
            steps.append(Step(row, old, new))
    return sorted(judge([step for step in steps if step.times], history), key=Step.order)


def _chance(step: Step) -> float:
    """Return how likely such a difference is if there is none: Welch's test of the processes' log-medians."""
    old, new = step.times
    freedom = [side.processes - 1 for side in (step.before, step.after) if side]
    spreads = [
        log(time.high / time.low) / 2 / student(free) for time, free in zip((old, new), freedom, strict=True)
    ]
    spread = hypot(*spreads)
    if not spread:
        return float(old.value == new.value)
    parts = sum(one**4 / free for one, free in zip(spreads, freedom, strict=True))
    return student_tail(abs(log(new.value / old.value)) / spread, round(spread**4 / parts))


@dataclass(frozen=True)
class Version:
    """The records of a row at one time."""

    records: Sequence[Record]
    packages: Mapping[str, str]
    commit: Commit | None = None
    """Which brought them."""

    @property
    def origin(self) -> str:
        """The commit whose files measured it; empty if it is not known."""
        then = self.records[0].provenance
        return "" if then.dirty else then.commit


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
    contents = repository.read([content for found in files.values() for _, content in found])
    rows = {row: found for path in files for row, found in _versions(path, files[path], contents).items()}
    harness = harness_then(repository, chain.from_iterable(rows.values()))
    steps: list[Step] = []
    for row in sorted(rows):
        before: Measured | None = None
        for version in rows[row]:
            after = measured(version, harness.get(version.origin, ""))
            steps.append(Step(row, before, after, version.commit))
            before = after
    judge(steps, steps)
    return steps


def _versions(
    path: str, versions: Sequence[tuple[Commit, str]], contents: Iterator[bytes]
) -> dict[RowName, list[Version]]:
    """Return the measurements of each row of a file, oldest first."""
    owner, known = _owner(path), dict[bytes, Record]()
    assert owner is not None
    # By the runs that measured it: a commit that writes other fields of the same measurement corrects them.
    found: dict[str, dict[tuple[tuple[str, int], ...], Version]] = {}
    for commit, _ in versions:
        records, here = decode_records(next(contents), path, ignore, owner, known), Version((), {}, commit)
        for workload, version in rows_of(records).items():
            runs = tuple((record.run, record.process) for record in version.records)
            of_row = found.setdefault(workload, {})
            of_row[runs] = Version(version.records, version.packages, of_row.get(runs, here).commit)
    name = (owner.operator, owner.implementation, next(iter(owner.devices)))
    return {RowName(*name, workload): list(of_row.values()) for workload, of_row in found.items()}


def harness_then(repository: Repository, versions: Iterable[Version]) -> dict[str, str]:
    """Return what measured by commit, for records that lack its digest; nothing of one that comes from elsewhere, as a package."""
    measure = PACKAGE_FOLDER / "measure"
    if not measure.is_relative_to(repository.top):
        return {}
    path = measure.relative_to(repository.top).as_posix()
    names = repository.names(
        [f"{commit}:{path}" for commit in sorted({one.origin for one in versions}) if commit]
    )
    return {asked.partition(":")[0]: name for asked, name in names.items()}


def rows_of(records: Sequence[Record]) -> dict[str, Version]:
    packages = {record.run: record.provenance.packages for record in reversed(records)}
    return {name: Version(own, packages[own[0].run]) for name, own in by_workload(records)[0].items()}


def told(steps: Iterable[Step]) -> str:
    """Return in one line how many rows changed, and by what."""
    parts, of_kind = [], grouped((step.kind, step) for step in steps)
    for kind in ChangeKind:
        found = of_kind.get(kind, [])
        causes = (
            "unexplained" if one.unexplained else f"by {one.causes[0].short}"
            for one in found
            if kind in TIMED
        )
        why = Counter(causes).most_common()
        by = ", ".join(f"{count} {text}" if len(why) > 1 else text for text, count in why)
        if found or kind in TIMED:
            parts.append(f"{len(found)} {kind.label}" + (f" ({by})" if by else ""))
    return ", ".join(parts)


class Mark(NamedTuple):
    """A measurement in the chart of a row, by place in percent of its width and height from the upper left."""

    step: Step
    left: float
    right: float
    middle: float
    low: float
    high: float


@dataclass(frozen=True)
class History:
    """What the report shows of changes over time."""

    since: str
    """The state with which the report is compared."""
    base: Mapping[RowName, Measured]
    """Its rows."""
    steps: Sequence[Step]

    def changes(self, summaries: Iterable[Summary]) -> tuple[str, list[Step]]:
        """Return how many rows of a report changed since, in one line, and those that did."""
        steps = compare_rows(self.base, points_of(summaries), self.steps)
        return told(steps), [step for step in steps if step.kind in CHANGED]

    @cached_property
    def of(self) -> Mapping[tuple[str, str], Sequence[Step]]:
        """The steps of each implementation, by its operator and its name."""
        return grouped(((one.row.operator, one.row.implementation), one) for one in self.steps)

    def charts(self, operator: str, implementation: str) -> dict[str, dict[str, list[Mark]]]:
        """Return the measurements of an implementation by device and workload, as far as they are several."""
        timed = [
            one for one in self.of.get((operator, implementation), ()) if one.after and one.after.estimate
        ]
        found: dict[str, dict[str, list[Mark]]] = {}
        for row, steps in grouped((one.row, one) for one in timed).items():
            times = [step.times[-1] for step in steps]
            places = [[log(end) for end in (time if time.known else [time.value] * 3)] for time in times]
            top, bottom = max(map(max, places)), min(map(min, places))
            height, width = max(top - bottom, 2 * SMALLEST_EFFECT) / 100, 100 / len(steps)
            marks = []
            for at, (step, place) in enumerate(zip(steps, places, strict=True)):
                ends = (width * at, width * (at + 1), *((top - one) / height for one in place))
                marks.append(Mark(step, *(round(end, 2) for end in ends)))
            if len(marks) > 1:
                found.setdefault(row.device, {})[row.workload] = marks
        return found


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
            folder, digests = f"{operator_of(path)}/{RESULTS}/records/", place.read_digests(path, data)
            own = {
                one: records
                for one, records in head.files.items()
                if one.startswith(folder) and one.endswith(f"/{PurePosixPath(path).stem}.jsonl")
            }
            for row, version in _rows_of_files(own, (), place.on_problem).items():
                if has_other_code(version.records[0].provenance, digests):
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
        if _owner(path) or (path.endswith(".md") and is_implementation(path))
    }
    return _State(dict(zip(found, repository.read([*found.values()]), strict=True)))


def _state(root: Path, files: Iterable[Path]) -> _State:
    return _State({one.relative_to(root).as_posix(): read_unlinked(one) for one in sorted(files)})


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
        own = grouped(((one.op, one.impl, device_of(one).slug), one) for one in records)
        for (operator, implementation, device), found in own.items():
            name = owner.operator if owner else operator, implementation, device
            rows |= {RowName(*name, workload): one for workload, one in rows_of(found).items()}
    return rows
