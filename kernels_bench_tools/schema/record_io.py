"""Reading and writing files of records: JSON Lines, one record a line.

No other module decodes records. In a committed file, fields that all records of a process share are on its
first record only; :func:`read_records` fills them in.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import msgspec
from msgspec.structs import replace

from kernels_bench_tools.errors import RecordError
from kernels_bench_tools.file_io import write_atomically
from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.record import Environment, Provenance, Record

_FIELDS = Record.__struct_fields__
_ALWAYS_WRITTEN = frozenset(_FIELDS[: _FIELDS.index("status") + 1])
"""Keys that readers of kernels-benchmarks' files expect in every record; others are omitted when empty."""
_NAMESPACES = re.compile(r"^void |\bat::native::|\bc10::|\(anonymous namespace\)::|\bstd::")
_MAX_KERNEL_NAME = 96
_MIN_KERNEL_NAME = 32
_KERNEL_NAMES_BUDGET = 192
"""Characters for all kernel names of a record, unless each would get fewer than ``_MIN_KERNEL_NAME``."""
_MIN_SAMPLES, _MAX_SAMPLES = 8, 20
"""Samples of a committed record: one fewer for each kernel that a call launches."""


class RecordHead(msgspec.Struct, kw_only=True):
    """The fields that identify a record's process; the others are skipped, which decodes three times faster."""

    ts: str = ""
    run: str = ""
    impl: str = ""
    device: Device | None = None
    sentinels: dict[str, list[float]] = msgspec.field(default_factory=dict)


_RECORD = msgspec.json.Decoder(Record)
_HEAD = msgspec.json.Decoder(RecordHead)
_ENCODER = msgspec.json.Encoder()


def read_records(path: Path, where: str = "") -> list[Record]:
    """Return the records of a JSONL file, called ``where`` in errors; a last line that was cut off is ignored."""
    where = where or str(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(where, f"cannot be read ({error.strerror})", "A JSONL file of records") from error
    first: dict[str, Record] = {}
    return [
        record if (origin := first.setdefault(record.run, record)) is record else _with_shared(record, origin)
        for record in _decode_lines(data, where)
    ]


def read_heads(path: Path) -> Iterator[RecordHead]:
    """Yield the head of each record of a file that can be read; see :func:`thin_records` for fields that are empty."""
    try:
        data = path.read_bytes()
    except OSError:
        return
    for line in data.splitlines():
        with suppress(msgspec.DecodeError, UnicodeDecodeError):
            yield _HEAD.decode(line)


def valid_lines(path: Path) -> bytes:
    """Return the lines of a file that are records, as they are, each with its line feed; empty without a file."""
    found = []
    for line in path.read_bytes().split(b"\n") if path.is_file() else []:
        with suppress(msgspec.MsgspecError, UnicodeDecodeError):
            _RECORD.decode(line)
            found.append(line + b"\n")
    return b"".join(found)


def encode_record(record: Record) -> bytes:
    """Return the record as one line of JSON with its line feed; empty optional fields are omitted."""
    written = {name: value for name in _FIELDS if (value := getattr(record, name)) or name in _ALWAYS_WRITTEN}
    return _ENCODER.encode(written) + b"\n"


def write_records(path: Path, records: Iterable[Record], *, before: bytes = b"") -> None:
    """Replace a file by the lines ``before`` and the records, atomically; create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, before + b"".join(encode_record(record) for record in records))


def append_record(path: Path, record: Record) -> None:
    """Append one record to a file; create its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(encode_record(record))


def thin_records(records: Iterable[Record]) -> list[Record]:
    """Return records as they are committed: fewer samples, and fields shared by a run on its first record only."""
    first: dict[str, Record] = {}
    thinned = []
    for record in map(thin_record, records):
        origin = first.setdefault(record.run, record)
        thinned.append(record if origin is record else _without_shared(record, origin))
    return thinned


def thin_record(record: Record) -> Record:
    """Return the record with short kernel names, five digits, and fewer samples, but the quantiles of all."""
    longest = max(
        _MIN_KERNEL_NAME, min(_MAX_KERNEL_NAME, _KERNEL_NAMES_BUDGET // max(len(record.kernels), 1))
    )
    kernels = [replace(one, name=_NAMESPACES.sub("", one.name)[:longest]) for one in record.kernels]
    if record.lat_ms is None:
        return replace(record, kernels=kernels)
    times, count = record.lat_ms.raw_times, max(_MIN_SAMPLES, _MAX_SAMPLES - len(kernels))
    if len(times) > count:
        times = [times[index * len(times) // count] for index in range(count)]
    latency = replace(record.lat_ms, raw_times=[_rounded(time) for time in times])
    for name in ("p10", "p50", "p90", "mean", "iqr", "ci_low", "ci_high", "tail_ratio", "drift"):
        value = getattr(latency, name)
        setattr(latency, name, None if value is None else _rounded(value))
    return replace(record, kernels=kernels, lat_ms=latency)


def _decode_lines(data: bytes, where: str) -> Iterator[Record]:
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield _RECORD.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if number == len(lines):
                return
            raise RecordError(
                f"{where}:{number}",
                f"is not a record: {error}",
                "Each line is one JSON object as docs/record.schema.json describes",
                "Remove the line or measure again with `kbt run`",
            ) from error


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
