"""Files of other harnesses: huggingface/kernels-benchmarks' records, and JSONL files that hold no records."""

from __future__ import annotations

import json
from collections.abc import Collection
from pathlib import Path

import msgspec

from kernels_bench_tools.records.committed import read_unlinked
from kernels_bench_tools.records.record import Judged, Record

_REQUIRED, _USUAL = {"ts", "run", "impl"}, {"wl", "lat_ms"}
"""Keys by which a line is meant as a record: all of the first, or ``impl`` and one of the others."""


def decode_foreign(line: bytes, problem: msgspec.DecodeError) -> Record:
    """Return the record of another harness without what it adds; raise ``problem`` if the line is of this package."""
    data = msgspec.json.decode(_finite_json(line))
    if not isinstance(data, dict) or data.get("schema"):
        raise problem
    return msgspec.convert({name: data[name] for name in Record.__struct_fields__ if name in data}, Record)


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
            marked = (_marked(line, process) for line in path.read_bytes().split(b"\n"))
            path.write_bytes(b"\n".join(marked))


def _marked(line: bytes, process: int) -> bytes:
    try:
        found = msgspec.json.decode(line, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        try:
            found = msgspec.json.decode(_finite_json(line), type=dict[str, msgspec.Raw])
        except (msgspec.DecodeError, ValueError, RecursionError):  # named where the records are checked
            return line
    known = {} if "schema" in found else {"process": process}
    return msgspec.json.encode({**known, **found, "judged": Judged.NOT.value})


def is_plain(path: Path) -> bool:
    """Return whether a JSONL file holds something else than records.

    Its first line is then JSON that is no record, and no line is meant as one, not even a broken one.
    """
    try:
        lines = [line for line in read_unlinked(path).split(b"\n") if line.strip()]
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
