"""The outputs of a cell: regular files with printable names, and nothing else; records are checked, completed and merged.

Links are not followed. A cell can read every file that kbt can, so nothing more is done against files from elsewhere.
"""

from __future__ import annotations

import os
import stat
import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from kernels_bench_tools.errors import RecordError
from kernels_bench_tools.file_io import copy_file, open_regular, read_file, write_atomically
from kernels_bench_tools.notebooks.project import is_pattern, matches
from kernels_bench_tools.records.codec import ignore, read_records, valid_lines, write_records
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.foreign import is_plain, near_records
from kernels_bench_tools.records.outcome import Outcome, outcome_of
from kernels_bench_tools.records.record import SCHEMA, Environment, Failure, Flag, Record, Status
from kernels_bench_tools.records.request import CellContext
from kernels_bench_tools.run.cache.store import Draft, Entry, StoredResult
from kernels_bench_tools.text.numbers import size as readable_size
from kernels_bench_tools.text.tables import grouped

MOST_FILES = 10_000
DEEPEST_FOLDER = 20
LONGEST_NAME, LONGEST_PATH = 200, 1000
"""Bytes. File systems allow 255 and 4096, but copies have prefixes and suffixes."""
_CHUNK = 2**20


@dataclass
class Collected:
    kept: list[str] = field(default_factory=list)
    refused: dict[str, str] = field(default_factory=dict)
    """Files that were not kept although they match ``outputs=``: name, as ASCII, to the reason."""
    missing: list[str] = field(default_factory=list)
    """Names in ``outputs=`` that do not exist, or were refused."""
    others: list[str] = field(default_factory=list)
    """JSONL files that ``outputs=`` does not name, as ASCII."""
    excess: str = ""
    """Which limit was exceeded; empty if none was."""


def collect_outputs(
    folder: Path, outputs: Sequence[str], artifacts: Path, limit: int, judged: Mapping[str, str]
) -> Collected:
    """Copy the outputs of a cell into ``artifacts``: at most ``limit`` bytes, small files first.

    ``folder`` is the cell's; without ``outputs``, all files are kept that are not hidden.
    ``judged`` has the text of files that take the place of the cell's files and folders with these names.
    A full disk is an ``OSError``.
    """
    if folder.is_symlink():  # a cell may have replaced its folder, or removed it
        folder.unlink()
    folder.mkdir(exist_ok=True)
    collected, sizes = Collected(), dict[str, int]()
    for name, size in _scan(folder, outputs):
        if isinstance(size, str):
            collected.refused[ascii(name)] = size
        else:
            sizes[name] = size
    written = {*(path.name for path in folder.iterdir()), *judged}
    collected.others = sorted(
        ascii(name)[1:-1] for name in written if name.endswith(".jsonl") and not _is_output(name, outputs)
    )
    room = limit
    for name, text in judged.items():
        if _is_output(name, outputs):
            write_atomically(artifacts / name, text.encode(), sync=False)
            collected.refused.pop(ascii(name), None)
            collected.kept.append(name)
            room -= len(text)
    replaced = {*collected.kept}
    sizes = {name: size for name, size in sizes.items() if name.partition("/")[0] not in replaced}
    for name, size in sorted(sizes.items(), key=lambda file: (file[1], file[0])):
        if size > room:
            total, most = readable_size(sum(sizes.values())), readable_size(limit)
            collected.excess = f"its files total {total}; the limit is {most}"
            collected.refused[ascii(name)] = f"it is {readable_size(size)} large"
        elif len(collected.kept) == MOST_FILES:
            collected.excess = f"it wrote {len(sizes)} files; the limit is {MOST_FILES}"
            break
        else:
            try:
                _copy(folder / name, artifacts / name, size)
            except PermissionError:
                collected.refused[ascii(name)] = "it cannot be read"
            else:
                collected.kept.append(name)
                room -= size
    collected.kept.sort()
    collected.missing = [name for name in outputs if not is_pattern(name) and name not in collected.kept]
    return collected


def _scan(
    folder: Path, outputs: Sequence[str], prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, int | str]]:
    """Yield the name of each file to be kept, with its size or why it is refused."""
    try:
        with os.scandir(folder) as entries:
            listed = sorted(entries, key=lambda entry: os.fsencode(entry.name))
        for entry in listed:
            name = prefix + entry.name
            if entry.name.startswith(".") or entry.name == "__pycache__":
                continue
            if entry.is_dir(follow_symlinks=False) and depth < DEEPEST_FOLDER:
                yield from _scan(folder / entry.name, outputs, f"{name}/", depth + 1)
            elif _is_output(name, outputs):
                about = entry.stat(follow_symlinks=False)
                yield name, _why_refused(name, about.st_mode) or about.st_size
    except OSError as error:
        yield prefix.rstrip("/"), f"it cannot be read ({error.strerror})"


def _is_output(name: str, outputs: Sequence[str]) -> bool:
    return not outputs or any(matches(name, output) for output in outputs)


def _why_refused(name: str, mode: int) -> str:
    if stat.S_ISLNK(mode):
        return "it is a symbolic link"
    if stat.S_ISDIR(mode):
        return f"it is more than {DEEPEST_FOLDER} folders deep"
    if not stat.S_ISREG(mode):
        return "it is not a regular file"
    if not name.isprintable():  # also marks that change the writing direction
        return "its name contains unprintable characters"
    if len(os.fsencode(name)) > LONGEST_PATH or len(os.fsencode(name.rpartition("/")[2])) > LONGEST_NAME:
        return "its name is too long"
    return ""


def _copy(source: Path, target: Path, size: int) -> None:
    """Copy a file, at most as many bytes as it had when it was found."""
    target.parent.mkdir(parents=True, exist_ok=True)
    with open_regular(source) as file, open_regular(target, "wb") as copy:
        try:
            while size > 0 and (data := file.read(min(size, _CHUNK))):
                copy.write(data)
                size -= len(data)
        except OSError:
            target.unlink()
            raise


def _written(folder: Path, output: str) -> list[Path]:
    files = sorted(folder.rglob("*.jsonl"))
    return [path for path in files if matches(str(path.relative_to(folder)), output)]


def check_records(
    folder: Path, outputs: Sequence[str], *, plain: bool = False, empty: bool = False, notes: list[str]
) -> str:
    """Return what is wrong with the record files among the artifacts in ``folder``; empty if nothing is.

    ``plain`` is whether files may hold something else than records, and ``empty`` whether they may hold nothing.
    Lines of such files that are meant as records are added to ``notes``.
    """
    for output in (output for output in outputs if output.endswith(".jsonl")):
        paths = _written(folder, output)
        if not paths:
            return f"wrote no {output}"
        for path in paths:
            name = path.relative_to(folder).as_posix()
            if empty and not path.stat().st_size:
                continue
            if plain and is_plain(path):
                notes += [f"{name}:{number} is not a record: {why}" for number, why in near_records(path)]
                continue
            problems: list[RecordError] = []
            try:
                records = read_records(path, name, problems.append if plain else None)
            except RecordError as error:
                return f"{error.where} {error.what}"
            if problems and (not records or any(record.schema for record in records)):
                return f"{problems[0].where} {problems[0].what}"
            if not records:
                return f"{name} contains no records"
            notes += [f"{problem.where} {problem.what}" for problem in problems]
    return ""


def read_outcome(folder: Path) -> Outcome:
    """Return how the workloads in the artifacts of a cell, or of one of its processes, ended."""
    return outcome_of(record for _, records in _record_files(folder) for record in records)


def read_times(folder: Path) -> dict[str, list[float]]:
    """Return the sentinels in the artifacts of one process; empty if its records have none."""
    longest: dict[tuple[str, str], list[float]] = {}
    for _, records in _record_files(folder):
        for record in records:
            for name, times in record.sentinels.items():
                known = longest.setdefault((record.run, name), times)
                # A record written while its process still runs has the first of the two values only.
                if len(times) > len(known):
                    longest[record.run, name] = times
    return grouped((name, time) for (_, name), times in longest.items() for time in times if time > 0)


def flag_records(folder: Path) -> None:
    """Add ``Flag.SENTINEL`` to the records in the artifacts of a process that have measurements."""
    for path, records in _record_files(folder):
        for record in records:
            if record.outcome.ran and Flag.SENTINEL not in record.flags:
                record.flags = [*record.flags, Flag.SENTINEL]
        write_records(path, records)


def _record_files(folder: Path) -> Iterator[tuple[Path, list[Record]]]:
    for path in sorted(folder.rglob("*.jsonl")):
        yield path, read_records(path, on_problem=ignore)


def add_failure(
    folder: Path,
    outputs: Sequence[str],
    context: CellContext,
    device: Device,
    status: Status,
    failure: Failure,
) -> None:
    """Append the reason of a failure to the cell's record file in ``folder``, and drop lines that are no records.

    The added record has no workload: it stands for all workloads that have no record. A file of something else stays.
    """
    output = next(output for output in outputs if output.endswith(".jsonl"))
    if is_pattern(output):
        name = f"{context.operator.rpartition('/')[2] or context.implementation}.jsonl"
        path = min(_written(folder, output), default=folder / name)
    else:
        path = folder / output
    if path.is_file() and is_plain(path):
        return
    known = read_records(path, on_problem=ignore) if path.is_file() else []
    record = Record(
        ts=datetime.now(UTC).isoformat(timespec="seconds"),
        run=next((record.run for record in known if record.run), "") or uuid.uuid4().hex,
        impl=context.implementation,
        tags={"family": context.family} if context.family else {},
        env=Environment(driver=device.driver, gpu=device.name if device.kind != "cpu" else ""),
        err=failure,
        schema=SCHEMA,
        op=context.operator,
        status=status,
        device=device,
        process=context.process,
        provenance=context.provenance(),
    )
    write_records(path, [record], before=valid_lines(path))


def merge_processes(draft: Draft, runs: Sequence[Entry], processes: int, seconds: float) -> StoredResult:
    """Merge the runs of a cell, in order, into one draft; return the result of the first that failed, if one did.

    Records of all processes are kept in the order of the processes; other outputs are those of the first.
    """
    folders = [run.artifacts for run in runs]
    _merge_records(draft.artifacts, folders)
    for path in folders[0].rglob("*"):
        if path.is_file() and path.suffix != ".jsonl":
            copy = draft.artifacts / path.relative_to(folders[0])
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy_file(path, copy)
    _merge_logs(draft.stdout, [run.stdout for run in runs], processes)
    _merge_logs(draft.stderr, [run.stderr for run in runs], processes)
    result = next((run.result for run in runs if run.result.status is not Status.OK), runs[0].result)
    transient = any(run.result.transient for run in runs)
    return msgspec.structs.replace(result, seconds=round(seconds, 3), transient=transient)


def _merge_records(target: Path, folders: Sequence[Path]) -> None:
    names = dict.fromkeys(
        path.relative_to(folder).as_posix() for folder in folders for path in sorted(folder.rglob("*.jsonl"))
    )
    for name in names:
        path = target / name
        path.parent.mkdir(parents=True, exist_ok=True)
        sources = [folder / name for folder in folders if (folder / name).is_file()]
        if len(sources) == 1 or is_plain(sources[0]):
            copy_file(sources[0], path)
        else:
            write_atomically(path, b"".join(map(valid_lines, sources)), sync=False)


def _merge_logs(path: Path, logs: Sequence[Path], processes: int) -> None:
    """Write the logs one after the other, separated by a line with the number of the process."""
    texts = [read_file(log) if log.is_file() else b"" for log in logs]  # another cell may have removed it
    if not any(texts):  # an empty log is not shown
        return
    merged = texts[0]
    for number, text in enumerate(texts[1:], start=2):
        line_feed = b"" if not merged or merged.endswith(b"\n") else b"\n"
        merged += line_feed + f"--- process {number} of {processes}\n".encode() + text
    write_atomically(path, merged, sync=False)
