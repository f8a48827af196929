"""Files of other harnesses: huggingface/kernels-benchmarks' records, and JSONL files that hold no records."""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, get_type_hints

import msgspec

from kernels_bench_tools.file_io import read_file, write_atomically
from kernels_bench_tools.records.committed import read_unlinked
from kernels_bench_tools.records.record import SCHEMA, Judged, Latency, Record

_TIMES = ("p50", "median", "mean")
"""What may be the time of a call, the first that a line has."""
_NEAR = {"impl", "lat_ms", "wl"}
"""Keys by which a line is meant as a record."""
_FIELDS, _OF_LATENCY = (get_type_hints(kind, include_extras=True) for kind in (Record, Latency))


def decode_foreign(line: bytes, problem: msgspec.DecodeError | None = None) -> Record:
    """Return the record of another harness without what it adds; raise ``problem`` if the line is of this package.

    It needs ``impl``, ``wl.name`` and a time in ``lat_ms``, or a reason why it has none; a ``ValueError`` says what is
    missing, or that the line is of a later version.
    """
    data = msgspec.json.decode(_finite_json(line))
    schema = data.get("schema") if isinstance(data, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise ValueError(f"record schema {schema} is newer than {SCHEMA}, which this version reads")
    if not isinstance(data, dict) or schema:
        raise problem or ValueError("it is not a record of another harness")
    workload, times, failed = data.get("wl"), data.get("lat_ms"), data.get("ok") is False or data.get("err")
    if not isinstance(data.get("impl"), str):
        raise ValueError("it has no impl")
    if times is not None and not (isinstance(workload, dict) and isinstance(workload.get("name"), str)):
        raise ValueError("it has no wl.name")
    if data.get("err") and not data.get("status"):
        times = data["lat_ms"] = None
    if times is not None or not (failed or data.get("status")):
        data["lat_ms"] = _latency(times)
        data.setdefault("ok", True)
    if isinstance(data.get("err"), str):
        data["err"] = {"type": "Error", "msg": data["err"]}
    return msgspec.convert({"ts": "", "run": "", **_valid(data, _FIELDS)}, Record)


def _latency(times: object) -> Latency:
    given = times if isinstance(times, dict) else {}
    median = next((given[name] for name in _TIMES if given.get(name) is not None), None)
    if not isinstance(median, int | float) or isinstance(median, bool):
        raise ValueError(f"lat_ms has no numeric {', '.join(_TIMES[:-1])} or {_TIMES[-1]}")
    valid = _valid(given, _OF_LATENCY)
    reps = max(1, len(valid.get("raw_times", ())))
    return msgspec.convert({"reps": reps, **valid, "p50": median}, Latency)


def _valid(data: dict[str, Any], types: dict[str, Any]) -> dict[str, Any]:
    """Return the fields with values of their types."""
    valid = {}
    for name in types.keys() & data.keys():
        with suppress(msgspec.ValidationError):
            msgspec.convert(data[name], types[name])
            valid[name] = data[name]
    return valid


def _finite_json(line: bytes) -> bytes:
    """Return a line with null for NaN and Infinity, which Python's json writes; raise ``ValueError`` if that is no JSON either."""
    try:
        return msgspec.json.encode(json.loads(line))
    except OverflowError as error:
        raise ValueError(str(error)) from error


def mark_unjudged(folder: Path, except_for: Collection[str], process: int) -> None:
    """Say in the records that a cell wrote by itself that nobody judged them, and in which process.

    Other harnesses do not know of several processes.
    """
    for path in folder.rglob("*.jsonl"):
        if path.relative_to(folder).as_posix() not in except_for and not is_plain(path):
            marked = (_marked(line, process) for line in read_file(path).split(b"\n"))
            write_atomically(path, b"\n".join(marked), sync=False)


def _marked(line: bytes, process: int) -> bytes:
    try:
        fields = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            fields = msgspec.json.decode(_finite_json(line), type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, ValueError, RecursionError):  # named where the records are checked
            return line
    number = {} if "schema" in fields else {"process": process}
    return msgspec.json.encode({**number, **fields, "judged": Judged.NOT.value})


def is_plain(path: Path) -> bool:
    """Return whether a JSONL file holds something else than records: its first line is JSON, and none is a record."""
    try:
        lines = [line for line in read_unlinked(path).split(b"\n") if line.strip()]
    except OSError:
        return False
    return bool(lines) and _is_record(lines[0]) is False and not any(map(_is_record, lines))


def near_records(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the number of each line of a plain file that is meant as a record, and why it is none."""
    for number, line in enumerate(read_unlinked(path).split(b"\n"), 1):
        with suppress(ValueError, RecursionError):
            if isinstance(data := json.loads(line), dict) and _NEAR & data.keys():
                try:
                    decode_foreign(line)
                except (msgspec.DecodeError, ValueError) as error:
                    yield number, str(error)


def _is_record(line: bytes) -> bool | None:
    """Return whether a line is a record, or one of this package with mistakes; None for one that is no JSON."""
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return None
    with suppress(msgspec.DecodeError, ValueError, RecursionError):
        decode_foreign(line)
        return True
    return isinstance(data, dict) and bool(data.get("schema"))
