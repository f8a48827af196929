"""Records of measuring cells that did not end well: what they wrote is kept, and why they ended is added."""

from __future__ import annotations

import uuid
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from kernels_bench_tools.errors import RecordError
from kernels_bench_tools.notebooks.paths import is_pattern
from kernels_bench_tools.schema.build import CellContext
from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.record import SCHEMA, Environment, Failure, Record, Status
from kernels_bench_tools.schema.record_io import append_record, read_records, valid_lines


def check_records(folder: Path, outputs: Sequence[str]) -> str:
    """Return what is wrong with the files of records in ``folder``; empty if nothing is.

    Args:
        folder: The cell's artifacts.
        outputs: Its ``outputs=``.
    """
    for output in (output for output in outputs if output.endswith(".jsonl")):
        paths = sorted(folder.glob(output))
        if not paths:
            return f"wrote no {output}"
        for path in paths:
            name = path.relative_to(folder).as_posix()
            try:
                records = read_records(path, name)
            except RecordError as error:
                return f"{error.where} {error.what}"
            if not records:
                return f"{name} holds no record"
    return ""


def measured_nothing(folder: Path) -> bool:
    """Return whether the records of a process that ended well all say that it is unsupported here.

    Args:
        folder: The process's artifacts.
    """
    records = [record for path in folder.rglob("*.jsonl") for record in read_records(path)]
    return all(record.outcome is Status.UNSUPPORTED for record in records)


def add_failure(
    folder: Path,
    outputs: Sequence[str],
    *,
    context: CellContext,
    device: Device,
    status: Status,
    failure: Failure,
) -> None:
    """Make the file of records whole, and say at its end why there are no more.

    Lines that are no records are dropped. The added record has no workload: it speaks for all that the
    others do not.

    Args:
        folder: The cell's artifacts.
        outputs: Its ``outputs=``, one of which ends in ``.jsonl``.
        context: What the cell was told about itself.
        device: The device of this build.
        status: How the cell ended.
        failure: Why.
    """
    path = folder / _file_name(folder, outputs, context)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(valid_lines(path))
    written = read_records(path)
    record = Record(
        ts=datetime.now(UTC).isoformat(timespec="seconds"),
        run=written[0].run if written else uuid.uuid4().hex,
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
    append_record(path, record)


def _file_name(folder: Path, outputs: Sequence[str], context: CellContext) -> str:
    output = next(output for output in outputs if output.endswith(".jsonl"))
    if not is_pattern(output):
        return output
    written = sorted(path.relative_to(folder).as_posix() for path in folder.glob(output))
    return written[0] if written else f"{context.operator.rpartition('/')[2] or context.implementation}.jsonl"
