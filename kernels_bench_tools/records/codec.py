"""Files of records, JSON Lines: no other module decodes or encodes a record.

In a committed file, fields that all records of a process share are on its first record only; :func:`read_records` fills
them in.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import replace

from kernels_bench_tools.errors import RecordError
from kernels_bench_tools.file_io import read_file, write_atomically
from kernels_bench_tools.records.committed import Owner, owner_of, read_unlinked
from kernels_bench_tools.records.foreign import decode_foreign
from kernels_bench_tools.records.record import (
    REJECTING,
    Environment,
    Latency,
    Provenance,
    Quantities,
    Record,
    Status,
)
from kernels_bench_tools.records.request import RANDOM
from kernels_bench_tools.text.names import is_file_name

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
_CONFLICT = (b"<<<<<<<", b"|||||||", b"=======", b">>>>>>>")
_MIN_SAMPLES, _MAX_SAMPLES = 8, 20
"""Samples of a committed record: one fewer for each kernel that a call launches."""
_NOT_OF_DRAWN = (
    *("absmax", "compile_ms", "corr", "peak_bytes", "work", "kernels", "quantities", "first_call", "clocks"),
    *("regime", "roofline", "span_ms"),
)
"""Fields that a committed record of a drawn workload does not have."""
_LEAST_MS = 1e-9
"""Shorter times are no times: intervals of their ratios could not be computed."""


_RECORD = msgspec.json.Decoder(Record)
_ENCODER = msgspec.json.Encoder()


def read_records(
    path: Path,
    where: str = "",
    on_problem: Callable[[RecordError], None] | None = None,
    owner: Owner | None = None,
) -> list[Record]:
    """Return the records of a JSONL file, called ``where`` in errors.

    ``on_problem`` is called for a file that cannot be read, and for each line that is no record or not of ``owner``; the
    other records are returned. Without it, the first of these errors is raised, and a last line that was cut off is
    ignored, one that is no JSON.
    """
    where = where or str(path)
    try:
        data = read_unlinked(path)
    except OSError as error:
        (on_problem or refuse)(_unreadable(where, error))
        return []
    return decode_records(data, where, on_problem, owner)


def decode_records(
    data: bytes,
    where: str,
    on_problem: Callable[[RecordError], None] | None = None,
    owner: Owner | None = None,
    known: dict[bytes, Record] | None = None,
) -> list[Record]:
    """Return the records in the bytes of a JSONL file, as :func:`read_records` does.

    ``known`` has lines that were decoded before, of earlier versions of the file, and gets the others.
    """
    report = on_problem or refuse
    lines = data.split(b"\n")
    known = {} if known is None else known
    records: dict[int, Record] = {}
    problems: dict[int, str] = {}
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            records[number] = known[line] if line in known else known.setdefault(line, _decode(line))
        except ValueError as error:
            is_cut_off = number == len(lines) and not _is_json(line)
            if not is_cut_off or on_problem is not None:
                why = f"it may be cut off ({error})" if is_cut_off else error
                problems[number] = f"is not a record: {why}"
    first: dict[str, Record] = {}
    for number, record in records.items():
        if (origin := first.setdefault(record.run, record)) is not record:
            records[number] = _with_shared(record, origin)
    if owner is not None:
        problems |= owner.claim(records)
    for named, (number, what) in enumerate(sorted(problems.items())):
        if named == _MOST_PROBLEMS:
            report(RecordError(where, f"has {len(problems) - named} more lines like these"))
            break
        expected, remedy = "Each line is one record", "Remove the line or measure again with `kbt run`"
        report(RecordError(f"{where}:{number}", what, expected, remedy))
    return list(records.values())


class _Decoded(NamedTuple):
    data: bytes
    records: Sequence[Record]
    problems: Sequence[RecordError]


_decoded: dict[Path, _Decoded] = {}


def read_committed(root: Path, path: Path, on_problem: Callable[[RecordError], None]) -> Sequence[Record]:
    """Return the records of a committed file of a project, checked against its path; see :func:`read_records`.

    A file is decoded once, until its content changes: many pages and tables show the same records.
    """
    where = path.relative_to(root).as_posix()
    try:
        data = read_unlinked(path)
    except OSError as error:
        on_problem(_unreadable(where, error))
        return ()
    known = _decoded.get(path)
    if known is None or known.data != data:
        problems: list[RecordError] = []
        records = decode_records(data, where, problems.append, owner_of(where))
        known = _decoded[path] = _Decoded(data, tuple(records), problems)
    for problem in known.problems:
        on_problem(problem)
    return known.records


def _unreadable(where: str, error: OSError) -> RecordError:
    what = f"cannot be read ({error.strerror})"
    return RecordError(where, what, "A JSONL file of records, not a link")


def refuse(error: RecordError) -> None:
    """Raise the first problem: for those who replace a file, and would drop what they cannot read."""
    raise error


def ignore(_: RecordError) -> None:
    """Do nothing: for readers of records whose problems are reported elsewhere."""


def valid_lines(path: Path) -> bytes:
    """Return the lines of a file that are records, as they are, each with its line feed; empty without a file."""
    valid = []
    for line in read_unlinked(path).split(b"\n") if path.is_file() else []:
        with suppress(ValueError):
            _decode(line)
            valid.append(line + b"\n")
    return b"".join(valid)


def _is_json(line: bytes) -> bool:
    try:
        msgspec.json.decode(line)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        return isinstance(error, RecursionError)
    return True


def _decode(line: bytes) -> Record:
    """Return the record on a line; raise a ``ValueError`` that says in one line why it is none."""
    if line.startswith(_CONFLICT):
        raise ValueError("it is a merge conflict marker")
    try:
        try:
            record = _RECORD.decode(line)
            record = record if record.schema else decode_foreign(line)
        except msgspec.DecodeError as error:
            record = decode_foreign(line, error)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (msgspec.MsgspecError, ValueError) as error:
        text = str(error)[:300]
        raise ValueError(text if text.isprintable() else ascii(text)[1:-1]) from None
    effect, name = record.effect, record.wl.get("name", "")
    parts = {"impl": [record.impl], "op": record.op.split("/") if record.op else []}
    parts["wl.name"] = [] if name == "" else [name if isinstance(name, str) else ""]
    if effect is not None:
        parts["effect.model"] = [effect.model] if effect.model else []
        parts["effect.others"] = [part for other in effect.others for part in other.split("/")]
    for field, names in parts.items():  # which become parts of paths
        if not all(map(is_file_name, names)):
            raise ValueError(
                f"{field} is not a valid name: {ascii(name if field == 'wl.name' else '/'.join(names))[:200]}"
            )
    ran = list(filter(None, [record.lat_ms, *((effect.baseline, effect.again) if effect else ())]))
    others = record.quantities or Quantities()
    timings = (getattr(others, name) for name in Quantities.__struct_fields__)
    times = [timing.p50 for timing in timings if timing is not None]
    times += [time for latency in ran for time in (latency.p50, latency.ci_low or 0.0, *latency.raw_times)]
    if record.schema and record.outcome is Status.OK and (flags := REJECTING.intersection(record.flags)):
        raise ValueError(f"status 'ok' and the flag {min(flags).value!r} contradict each other")
    if record.schema and record.lat_ms is not None and not record.workload:
        raise ValueError("it has a time but no wl.name")
    if any(0 < time < _LEAST_MS for time in times):
        raise ValueError(f"it has a time of less than {_LEAST_MS} ms")
    if (record.outcome is Status.OK or effect) and any(latency.p50 <= 0 for latency in ran):
        raise ValueError("its status is ok but its p50 is 0")
    return record


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
    write_records(path, [record], before=read_file(path) if path.exists() else b"")


_SHARED: dict[str, Any] = {"env": Environment(), "device": None, "sentinels": {}, "ceilings": {}}
"""Fields that the records of a run share, with what they are where they are left out."""


def share_fields(records: Iterable[Record]) -> list[Record]:
    """Return records as they are committed: fields that a run's records share are on the first of them only."""
    first: dict[str, Record] = {}
    written = []
    for record in records:
        if (origin := first.setdefault(record.run, record)) is not record:
            left_out = {n: empty for n, empty in _SHARED.items() if getattr(record, n) == getattr(origin, n)}
            if record.provenance == _shared_provenance(origin, record):
                left_out["provenance"] = Provenance(seed=record.provenance.seed)
            record = replace(record, **left_out)
        written.append(record)
    return written


def _with_shared(record: Record, origin: Record) -> Record:
    """Return the record with the fields that :func:`share_fields` left out."""
    known = {n: getattr(origin, n) for n, empty in _SHARED.items() if getattr(record, n) == empty}
    if not record.provenance.harness:
        known["provenance"] = _shared_provenance(origin, record)
    return replace(record, **known)


def _shared_provenance(origin: Record, record: Record) -> Provenance:
    """Return the provenance that a later record shares with the first of its run, whose packages it omits."""
    return replace(origin.provenance, seed=record.provenance.seed, packages={})


def thin_record(record: Record) -> Record:
    """Return the record with short kernel names, five digits, and fewer samples, but the quantiles of all.

    Of a drawn workload, of which many are only compared as a whole, there are the quantiles alone.
    """
    if str(record.wl.get("set", "")).startswith(RANDOM):
        empty = Record(ts="", run="", impl="")
        record = replace(record, **{name: getattr(empty, name) for name in _NOT_OF_DRAWN})
        latency = record.lat_ms and replace(_thinned(record.lat_ms, 0), raw_times=[])
        return replace(record, lat_ms=latency)
    longest = max(
        _MIN_KERNEL_NAME, min(_MAX_KERNEL_NAME, _KERNEL_NAMES_BUDGET // max(len(record.kernels), 1))
    )
    kernels = [replace(kernel, name=_NAMESPACES.sub("", kernel.name)[:longest]) for kernel in record.kernels]
    count = max(_MIN_SAMPLES, _MAX_SAMPLES - len(kernels))
    effect = record.effect
    if effect is not None:
        baseline, again = _thinned(effect.baseline, count), effect.again and _thinned(effect.again, count)
        effect = replace(effect, baseline=baseline, again=again)
    latency = record.lat_ms and _thinned(record.lat_ms, count)
    return replace(record, kernels=kernels, lat_ms=latency, effect=effect)


def _thinned(latency: Latency, count: int) -> Latency:
    """Return a latency with that many samples, to five digits: a fiftieth of the smallest difference that counts."""

    def rounded(value: float | None) -> Any:
        return None if value is None else float(f"{value:.5g}")

    names = ("p10", "p50", "p90", "mean", "iqr", "ci_low", "ci_high", "tail_ratio", "drift")
    times = latency.raw_times
    if len(times) > count:
        times = [times[index * len(times) // count] for index in range(count)]
    return replace(
        latency, raw_times=[*map(rounded, times)], **{name: rounded(getattr(latency, name)) for name in names}
    )
