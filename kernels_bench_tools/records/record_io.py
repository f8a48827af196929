"""Reading and writing files of records: JSON Lines, one record a line.

No other module decodes records. In a committed file, fields that all records of a process share are on its
first record only; :func:`read_records` fills them in.
"""

from __future__ import annotations

import errno
import glob
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from kernels_bench_tools.errors import RecordError
from kernels_bench_tools.file_io import read_file, write_atomically
from kernels_bench_tools.records.build import RESULTS, operator_of
from kernels_bench_tools.records.device import Device, cpu_device
from kernels_bench_tools.records.effect import LISTED, MODEL_LEVEL
from kernels_bench_tools.records.record import (
    REJECTING,
    SCHEMA,
    TICK_MS,
    Effect,
    Environment,
    Judged,
    Latency,
    Milliseconds,
    Provenance,
    Quantities,
    Record,
    Status,
    device_of,
)
from kernels_bench_tools.text import grouped, is_file_name, is_unicode

_FIELDS = Record.__struct_fields__
_ALWAYS_WRITTEN = frozenset(_FIELDS[: _FIELDS.index("status") + 1])
"""Keys that readers of kernels-benchmarks' files expect in every record; others are omitted when empty."""
_NAMESPACES = re.compile(r"^void |\bat::native::|\bc10::|\(anonymous namespace\)::|\bstd::")
_MAX_KERNEL_NAME = 96
_MIN_KERNEL_NAME = 32
_KERNEL_NAMES_BUDGET = 192
"""Characters for all kernel names of a record, unless each would get fewer than ``_MIN_KERNEL_NAME``."""
_MOST_PROBLEMS = 20
"""Lines of a file that are named when they are not records."""
_MOST_DIGITS = 20
"""Of an integer: longer ones cannot be divided."""
_REQUIRED, _USUAL = {"ts", "run", "impl"}, {"wl", "lat_ms"}
"""Keys by which a line is meant as a record: all of the first, or ``impl`` and one of the others."""
_BOM, _CONFLICT = b"\xef\xbb\xbf", (b"<<<<<<<", b"|||||||", b"=======", b">>>>>>>")
NAME_TAG = "impl"
"""Tag of a record of another harness with its own name of the implementation."""
_MIN_SAMPLES, _MAX_SAMPLES = 8, 20
"""Samples of a committed record: one fewer for each kernel that a call launches."""
_LEAST_MS = 1e-9
"""Shorter times are no times: intervals of their ratios could not be computed."""
_LEAST_DIFFERENT = 3
"""Values of samples by which a copy is recognized: a short kernel may take the same few ticks again."""
_ROUNDED = 1e-3
"""Share of a pass by which its prediction may differ from one of rounded times; of 249 committed ones at most 5e-5."""
_RECORDS = "records"
EFFECTS = "effects"
"""Folder of a project with the records of ``kbt effect``."""


class RecordHead(msgspec.Struct, kw_only=True):
    """The fields that identify a record's process; the others are skipped, which decodes three times faster."""

    ts: str = ""
    run: str = ""
    impl: str = ""
    schema: int = 0
    device: Device | None = None
    sentinels: dict[str, list[Milliseconds]] = msgspec.field(default_factory=dict)


_RECORD = msgspec.json.Decoder(Record)
_HEAD = msgspec.json.Decoder(RecordHead)
_ENCODER = msgspec.json.Encoder()


class Owner(NamedTuple):
    """What the records of a cell or of a committed file have to be of."""

    operator: str
    """Its id; empty for any."""
    implementation: str
    devices: Collection[str]
    """Slugs of one or several."""
    device: Device | None = None
    """The device of the build whose cell wrote the records; None for committed ones.

    Records of other harnesses, which name implementations as they like and no CPU, are given the cell's.
    """
    model: str = ""
    """Of a file of :data:`EFFECTS`, whose implementation is then an :func:`effect_name`; empty for other files."""

    def difference(self, record: Record) -> str:
        """Return how a record differs; empty if it does not."""
        if self.model and record.effect is None and record.outcome.ran:
            return "is not of `kbt effect`"
        if record.effect is not None and not self.model and self.device is None:
            return f"is of `kbt effect`, whose records are in {EFFECTS}/"
        device = device_of(record)
        for what, found, expected in (
            *self._names(record),
            # Files of kernels-benchmarks do not name a CPU.
            ("device", device.slug if record.device or device.name != "CPU" else "", self.devices),
        ):
            # torch adds the part of a GPU that it uses to the GPU's name: "NVIDIA H200 MIG 1g.18gb".
            if found and not {found, found.partition("-mig-")[0], ""} & {*expected}:
                return f"is of the {what} {found!r}, not of {' or '.join(map(repr, expected))}"
        return ""

    def _names(self, record: Record) -> list[tuple[str, str, list[str]]]:
        """Return what a record names, and what it has to name."""
        if self.model:
            effect = record.effect
            name = effect_name(record, effect.others if effect else ())
            # A failure does not name those that were replaced together with it.
            if effect is None and self.implementation.startswith(f"{name}+"):
                name = self.implementation
            return [
                ("implementation", name, [self.implementation]),
                ("model", effect.model if effect else "", [self.model]),
            ]
        return [
            # Records have the last part of the operator's id, or all of it.
            ("operator", record.op.rpartition("/")[2], [self.operator.rpartition("/")[2]]),
            (
                "implementation",
                "" if self.device and not record.schema else record.impl,
                [self.implementation],
            ),
        ]


def effect_name(record: Record, others: Iterable[str]) -> str:
    """Return the name of a file of :data:`EFFECTS`: ``OPERATOR--IMPLEMENTATION``, and those of ``others`` after ``+``."""
    return "+".join(map(effect_part, [f"{record.op}/{record.impl}", *others]))


def effect_part(implementation: str) -> str:
    """Return the part of an :func:`effect_name` that stands for ``operator/implementation``."""
    return "--".join(implementation.split("/")[-2:])


def cell_owner(notebook: str, device: Device) -> Owner:
    """Return what the records of a notebook's cells have to be of; they may measure the CPU beside the device."""
    name = PurePosixPath(notebook).stem
    devices = [*dict.fromkeys((device.slug, cpu_device().slug))]
    return Owner(operator_of(notebook), name, devices, device)


def read_records(
    path: Path,
    where: str = "",
    on_problem: Callable[[RecordError], None] | None = None,
    owner: Owner | None = None,
) -> list[Record]:
    """Return the records of a JSONL file, called ``where`` in errors.

    ``on_problem`` is called for a file that cannot be read, and for each line that is no record or not of ``owner``; the
    other records are returned. Without it, the first of these errors is raised, and a last line that was cut off is
    ignored.
    """
    where = where or str(path)
    report = on_problem or _raise
    try:
        lines = _read(path).split(b"\n")
    except OSError as error:
        report(
            RecordError(where, f"cannot be read ({error.strerror})", "A JSONL file of records, and no link")
        )
        return []
    records: dict[int, Record] = {}
    problems: dict[int, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records[number] = _decode(line)
        except ValueError as error:
            if number < len(lines):
                problems[number] = f"is not a record: {error}"
            elif on_problem is not None:
                problems[number] = f"is not a record: it may be cut off ({error})"
    first: dict[str, Record] = {}
    for number, record in records.items():
        if (origin := first.setdefault(record.run, record)) is not record:
            records[number] = _with_shared(record, origin)
    if not problems:  # else a kernel may be among the lines that are not records
        problems = _remove_wrong_predictions(records)
    problems |= _remove_copies(records)
    if owner is not None:
        problems |= _remove_foreign(records, owner)
    for named, (number, what) in enumerate(sorted(problems.items())):
        if named == _MOST_PROBLEMS:
            report(RecordError(where, f"has {len(problems) - named} more lines that are not its records"))
            break
        report(
            RecordError(
                f"{where}:{number}",
                what,
                "Each line is one record as run_benchmark writes it",
                "Remove the line or measure again with `kbt run`",
            )
        )
    return list(records.values())


def _raise(error: RecordError) -> None:
    raise error


def ignore(_: RecordError) -> None:
    """Do nothing: for readers of records whose problems are reported elsewhere."""


def is_plain(path: Path) -> bool:
    """Return whether a JSONL file holds something else than records.

    Its first line is then JSON that is no record, and no line is meant as one, not even a broken one.
    """
    try:
        lines = [line for line in _read(path).split(b"\n") if line.strip()]
    except OSError:
        return False
    return bool(lines) and _is_meant_as_record(lines[0]) is False and not any(map(_is_meant_as_record, lines))


def _is_meant_as_record(line: bytes) -> bool | None:
    """Return whether a line is meant as a record; None for one that may be, but is no JSON."""
    try:
        found = msgspec.json.decode(
            line, type=dict[str, msgspec.Raw] | list[msgspec.Raw] | str | float | bool | None
        )
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return True if b'"impl"' in line else None
    if not isinstance(found, dict):
        return False
    keys = found.keys()
    return keys >= _REQUIRED or ("impl" in keys and bool(_USUAL & keys))


def _rename_for_cell(records: dict[int, Record], implementation: str, device: Device) -> None:
    """Give records of another harness their cell's implementation and CPU; the name that they have becomes a tag.

    Several implementations of one cell are told apart by what follows a colon.
    """
    cpu = device if device.kind == "cpu" else cpu_device()
    foreign = {number: record for number, record in records.items() if not record.schema}
    several = len({record.impl for record in foreign.values()}) > 1
    for number, record in foreign.items():
        name = f"{implementation}:{record.impl}" if several else implementation
        if record.impl != name:
            record = replace(record, impl=name, tags={**record.tags, NAME_TAG: record.impl})
        unnamed = record.device is None and device_of(record).name == "CPU"
        records[number] = replace(record, device=cpu) if unnamed else record


def _remove_foreign(records: dict[int, Record], owner: Owner) -> dict[int, str]:
    """Remove the records that are not of ``owner``; return the reasons by line."""
    if owner.device:
        _rename_for_cell(records, owner.implementation, owner.device)
    known = next(
        (one.device for one in records.values() if one.device and one.device.slug in owner.devices), None
    )
    problems = {}
    for number, record in list(records.items()):
        if record.device is None and record.schema and known is not None:
            # The line of its process that names the device is not a record.
            record = records[number] = replace(record, device=known)
        if difference := owner.difference(record):
            problems[number] = difference
            del records[number]
    return problems


def own_samples(record: Record) -> tuple[str, tuple[float, ...]] | None:
    """Return a workload and samples that no other measurement has; None if there are too few different ones."""
    times = tuple(record.lat_ms.raw_times) if record.lat_ms else ()
    return (record.workload, times) if len({*times}) >= _LEAST_DIFFERENT else None


def _remove_copies(records: dict[int, Record]) -> dict[int, str]:
    """Remove the records with the samples of another process, which would narrow the interval; return the reasons by line."""
    first: dict[tuple[str, tuple[float, ...]], tuple[int, Record]] = {}
    problems = {}
    for number, record in list(records.items()):
        if (samples := own_samples(record)) is None:
            continue
        line, other = first.setdefault(samples, (number, record))
        if other.process != record.process:
            problems[number] = f"has the samples of line {line}, which is of another process"
            del records[number]
    return problems


def _remove_wrong_predictions(records: dict[int, Record]) -> dict[int, str]:
    """Remove the rows whose prediction is not that of their process's kernels; return the reasons by line.

    Which of a kernel's calls are inside of a block is not recorded; all blocks together save at most what all calls do.
    """
    problems = {}
    phases = grouped(
        ((record.run, record.effect.phase), (number, record.effect, record.lat_ms.p50))
        for number, record in records.items()
        if record.effect is not None and record.lat_ms is not None
    )
    for rows in phases.values():
        kernels = [(one, ms) for _, one, ms in rows if one.level < MODEL_LEVEL and one.predicted_ms is None]
        if len({one.level for one, _ in kernels}) != 1:  # a kernel inside of another is not counted
            continue
        of_device = sum(one.calls * (one.baseline.p50 - ms) for one, ms in kernels)
        of_host = sum(
            one.calls * ((one.baseline_host_ms or one.baseline.p50) - (one.host_ms or ms))
            for one, ms in kernels
        )
        at_most = sum(one.calls * abs(one.baseline.p50 - ms) for one, ms in kernels)
        for number, one, _ in rows:
            base, found = one.baseline.p50, -1.0 if one.predicted_ms is None else one.predicted_ms
            expected = [max(base - saved, 0.0) for saved in (of_device, of_host)]
            if one.level == MODEL_LEVEL:
                beyond = min(abs(found - ms) for ms in expected)
            else:
                beyond = 0.0 if found < 0 else abs(base - found) - at_most / one.calls
            if beyond > _ROUNDED * base:
                problems[number] = (
                    "has an effect.predicted_ms that is not that of its kernels' calls and times"
                )
                del records[number]
    return problems


def read_committed(
    path: Path, operator: str, where: str = "", on_problem: Callable[[RecordError], None] | None = None
) -> list[Record]:
    """Return the records of ``results/records/DEVICE/IMPLEMENTATION.jsonl``, checked against the path; see :func:`read_records`."""
    return read_records(path, where, on_problem, Owner(operator, path.stem, [path.parent.name]))


def record_file(operator: Path, device: str, implementation: str) -> Path:
    """Return the committed file of an implementation, in the operator's folder."""
    return operator / RESULTS / _RECORDS / device / f"{implementation}.jsonl"


def record_files(operator: Path, implementation: str = "") -> list[Path]:
    """Return the committed files of an operator, or of one of its implementations, by device."""
    files = (operator / RESULTS / _RECORDS).glob(f"*/{glob.escape(implementation) or '*'}.jsonl")
    return sorted(path for path in files if is_unicode(str(path)))


def effect_file(root: Path, model: str, record: Record, others: Iterable[str]) -> Path:
    """Return the file of a project for a record of ``kbt effect``, whose device is known."""
    return root / EFFECTS / device_of(record).slug / model / f"{effect_name(record, others)}.jsonl"


def read_effects(
    path: Path, where: str = "", on_problem: Callable[[RecordError], None] | None = None
) -> list[Record]:
    """Return the records of ``effects/DEVICE/MODEL/NAME.jsonl``, checked against the path; see :func:`read_records`."""
    owner = Owner("", path.stem, [path.parents[1].name], model=path.parent.name)
    return read_records(path, where, on_problem, owner)


def effect_files(root: Path) -> list[Path]:
    """Return the files of a project that :func:`read_effects` reads."""
    return sorted((root / EFFECTS).glob("*/*/*.jsonl"), key=lambda path: (path.parent, path.stem))


def is_committed(path: Path) -> bool:
    """Return whether a file of records is one of ``records/DEVICE/IMPLEMENTATION.jsonl``."""
    return path.parent.parent.name == _RECORDS


def is_linked(path: Path) -> bool:
    """Return whether a file of records is a symbolic link, or one of the folders that it is committed in."""
    is_effect = [one.name for one in path.parents[2:3]] == [EFFECTS]
    folders = path.parents[:3] if is_committed(path) or is_effect else ()
    return any(one.is_symlink() for one in (path, *folders))


def _read(path: Path) -> bytes:
    if is_linked(path):
        raise OSError(errno.ELOOP, "it is a symbolic link, or in one")
    return read_file(path)


def read_heads(path: Path) -> Iterator[RecordHead]:
    """Yield the head of each record of a file that can be read; see :func:`share_fields` for fields that are empty."""
    try:
        data = _read(path)
    except OSError:
        return
    for line in data.splitlines():
        with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            yield _HEAD.decode(line)


def valid_lines(path: Path) -> bytes:
    """Return the lines of a file that are records, as they are, each with its line feed; empty without a file."""
    found = []
    for line in _read(path).split(b"\n") if path.is_file() else []:
        with suppress(ValueError):
            _decode(line)
            found.append(line + b"\n")
    return b"".join(found)


def encode_record(record: Record) -> bytes:
    """Return the record as one line of JSON with its line feed; empty optional fields are omitted."""
    written = {name: value for name in _FIELDS if (value := getattr(record, name)) or name in _ALWAYS_WRITTEN}
    return _ENCODER.encode(written) + b"\n"


def write_records(path: Path, records: Iterable[Record], *, before: bytes = b"") -> None:
    """Replace a file by the lines ``before`` and the records, atomically; create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if before and not before.endswith(b"\n"):  # cut off by another writer: it must not spoil the next line
        before += b"\n"
    write_atomically(path, before + b"".join(encode_record(record) for record in records))


def append_record(path: Path, record: Record) -> None:
    """Append one record to a file, atomically; create its folder."""
    write_records(path, [record], before=read_file(path) if path.exists() else b"")


def share_fields(records: Iterable[Record]) -> list[Record]:
    """Return records as they are committed: fields that a run's records share are on the first of them only."""
    first: dict[str, Record] = {}
    return [
        record
        if (origin := first.setdefault(record.run, record)) is record
        else _without_shared(record, origin)
        for record in records
    ]


def thin_record(record: Record) -> Record:
    """Return the record with short kernel names, five digits, and fewer samples, but the quantiles of all."""
    longest = max(
        _MIN_KERNEL_NAME, min(_MAX_KERNEL_NAME, _KERNEL_NAMES_BUDGET // max(len(record.kernels), 1))
    )
    kernels = [replace(one, name=_NAMESPACES.sub("", one.name)[:longest]) for one in record.kernels]
    count = max(_MIN_SAMPLES, _MAX_SAMPLES - len(kernels))
    effect = record.effect
    if effect is not None:
        baseline, again = _thinned(effect.baseline, count), effect.again and _thinned(effect.again, count)
        effect = replace(effect, baseline=baseline, again=again)
    latency = record.lat_ms and _thinned(record.lat_ms, count)
    return replace(record, kernels=kernels, lat_ms=latency, effect=effect)


def _thinned(latency: Latency, count: int) -> Latency:
    times = latency.raw_times
    if len(times) > count:
        times = [times[index * len(times) // count] for index in range(count)]
    latency = replace(latency, raw_times=[_rounded(time) for time in times])
    for name in ("p10", "p50", "p90", "mean", "iqr", "ci_low", "ci_high", "tail_ratio", "drift"):
        value = getattr(latency, name)
        setattr(latency, name, None if value is None else _rounded(value))
    return latency


def _decode(line: bytes) -> Record:
    """Return the record on a line; raise a ``ValueError`` that says in one line why it is none."""
    if line.startswith(_CONFLICT):
        raise ValueError("it is a marker of a merge conflict")
    if line.startswith(_BOM):
        raise ValueError("it begins with a byte order mark")
    try:
        record = _decode_fields(line)
        # What msgspec accepts: of a repeated key the last value, and integers of any length.
        json.loads(line, object_pairs_hook=_unique, parse_int=_integer)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            schema = _HEAD.decode(line).schema
            if schema > SCHEMA:
                newer = f"record schema {schema} is newer than {SCHEMA}, which this version reads"
                raise ValueError(newer) from None
        text = str(error)[:300]
        raise ValueError(text if text.isprintable() else ascii(text)[1:-1]) from None
    names = {"impl": [record.impl], "op": record.op.split("/"), "wl.name": [record.wl.get("name", "")]}
    if record.effect is not None:
        names["effect.model"] = [record.effect.model]
        names["effect.others"] = [part for other in record.effect.others for part in other.split("/")] or [""]
    for field, parts in names.items():
        if not all(isinstance(part, str) and is_file_name(part) for part in parts) and (
            parts != [""] or field == "impl"
        ):
            raise ValueError(f"{field} is not a name: {ascii('/'.join(map(str, parts)))[:200]}")
    if record.schema:
        _require_consistent(record)
    if any(0 < time < _LEAST_MS for time in _times(record)):
        raise ValueError(f"it has a time of less than {_LEAST_MS} ms")
    if record.outcome is Status.OK and record.lat_ms is not None and record.lat_ms.p50 <= 0:
        raise ValueError("it is correct, and lat_ms.p50 is 0")
    if record.effect is not None:
        base = record.effect.baseline
        if None in (base.p10, base.p90, base.mean, base.iqr):
            raise ValueError("effect.baseline has no p10, p90, mean or iqr")
        if base.p50 == 0 or (record.lat_ms and record.lat_ms.p50 == 0):
            raise ValueError("it has an effect, and a p50 is 0")
    return record


def _times(record: Record) -> Iterator[float]:
    """Yield the times that intervals are computed from."""
    effect, others = record.effect, record.quantities or Quantities()
    for timing in (others.device_hot, others.host_submit, others.e2e):
        if timing is not None:
            yield timing.p50
    for latency in (record.lat_ms, *((effect.baseline, effect.again) if effect else ())):
        if latency is not None:
            yield from (latency.p50, latency.ci_low or 0.0, *latency.raw_times)


def _require_consistent(record: Record) -> None:
    """Raise a ``ValueError`` for what no measurement leaves, such as a median that was edited alone."""
    flags = [flag.value for flag in record.flags if flag in REJECTING]
    if record.outcome is Status.OK and (flags or record.err):
        raise ValueError(
            f"status 'ok' and {f'the flag {flags[0]!r}' if flags else 'err'} contradict each other"
        )
    if record.outcome is Status.OK and "reason" in record.corr:
        raise ValueError("status 'ok' and corr.reason contradict each other")
    if record.lat_ms is not None and not record.workload:  # it would be the time of all workloads
        raise ValueError("lat_ms and no wl.name contradict each other")
    measured = {"lat_ms": record.lat_ms}
    if (effect := record.effect) is not None:
        measured |= {"effect.baseline": effect.baseline, "effect.again": effect.again}
        _require_consistent_effect(record.workload, effect, list(filter(None, measured.values())))
    # Of these nobody else checked a sample.
    fewest = _MIN_SAMPLES if record.effect or record.judged is Judged.SEPARATELY else 0
    for name, times in measured.items():
        if times is not None:
            _require_quantiles(name, times, fewest)


def _require_consistent_effect(workload: str, effect: Effect, measured: Sequence[Latency]) -> None:
    """Raise a ``ValueError`` if names, numbers of instances or samples are not of one measurement."""
    if workload != effect.workload:
        raise ValueError("wl.name and the model, phase, level or module of effect contradict each other")
    left = effect.replaced - effect.called
    if not effect.called or not min(left, LISTED) == len(effect.missing):
        raise ValueError("effect.replaced, called and missing contradict each other")
    if effect.again is None:
        raise ValueError("effect.again is missing")
    if (effect.predicted_ms is None) is not (effect.level == 1) and effect.level in (1, 3):
        raise ValueError("effect.level and predicted_ms contradict each other")
    total = sum(part.ms for part in effect.parts)
    if effect.parts and effect.module == "device" and not 0.5 <= total / effect.baseline.p50 <= 2:
        raise ValueError("effect.parts and baseline contradict each other")
    times = [tuple(one.raw_times) for one in measured if len({*one.raw_times}) >= _LEAST_DIFFERENT]
    if len({*times}) < len(times):
        raise ValueError("lat_ms, effect.baseline and effect.again have the same raw_times")


def _require_quantiles(name: str, times: Latency, fewest: int) -> None:
    """Raise a ``ValueError`` if quantiles, interval and samples are not of one measurement."""
    samples = times.raw_times
    if not min(times.reps, fewest) <= len(samples) <= times.reps:
        raise ValueError(f"{name} has {len(samples)} raw_times of {times.reps} reps")
    tick = min(times.tick_ms or 0.0, TICK_MS)  # the median interpolates between ticks
    for what, low, high in (
        ("p10 to p90", times.p10, times.p90),
        ("ci_low to ci_high", times.ci_low, times.ci_high),
    ):
        if low is not None and high is not None and not low - tick <= times.p50 <= high + tick:
            raise ValueError(f"{name}.p50 is not from {what}")
    # A few of many may all be on one side of the median, but hardly all beyond the same tenth.
    low, high = (times.p10, times.p90) if len(samples) < times.reps else (times.p50, times.p50)
    if samples and not (min(samples) <= (high or 0.0) + tick and max(samples) >= (low or 0.0) - tick):
        raise ValueError(f"{name}.p50 is not among raw_times")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"it has a key twice: {next(name for name in names if names.count(name) > 1)!r}")
    return found


def finite_json(line: bytes) -> bytes:
    """Return a line with null for NaN and Infinity, which Python's json writes; raise ``ValueError`` if that is no JSON either."""
    try:
        return msgspec.json.encode(json.loads(line))
    except OverflowError as error:
        raise ValueError(str(error)) from error


def _decode_fields(line: bytes) -> Record:
    try:
        return _RECORD.decode(line)
    except msgspec.DecodeError:
        data = msgspec.json.decode(finite_json(line))
        if not isinstance(data, dict) or data.get("schema"):
            raise
        # Of another harness: what it adds stays in the file.
        return msgspec.convert({name: data[name] for name in _FIELDS if name in data}, Record)


def _integer(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"it has an integer of {len(digits)} digits")
    return int(digits)


def _without_shared(record: Record, origin: Record) -> Record:
    """Return the record without the fields in which it equals the first record of its run."""
    shared: dict[str, Any] = {"env": Environment(), "device": None, "sentinels": {}, "ceilings": {}}
    shared = {name: empty for name, empty in shared.items() if getattr(record, name) == getattr(origin, name)}
    if record.provenance == _shared_provenance(origin, record):
        shared["provenance"] = Provenance(seed=record.provenance.seed)
    return replace(record, **shared)


def _with_shared(record: Record, origin: Record) -> Record:
    """Return the record with the fields that :func:`_without_shared` removed."""
    return replace(
        record,
        env=record.env if record.env != Environment() else origin.env,
        device=record.device or origin.device,
        sentinels=record.sentinels or origin.sentinels,
        ceilings=record.ceilings or origin.ceilings,
        provenance=record.provenance if record.provenance.harness else _shared_provenance(origin, record),
    )


def _shared_provenance(origin: Record, record: Record) -> Provenance:
    """Return the provenance that a later record shares with the first of its run, whose packages it omits."""
    return replace(origin.provenance, seed=record.provenance.seed, packages={})


def _rounded(value: float) -> float:
    """Return the value to five digits: a fiftieth of the smallest difference that counts as one."""
    return float(f"{value:.5g}")
