"""What a record holds, and how large it gets."""

from pathlib import Path

import msgspec
import pytest
from norms import torch_layer_norm

from kernels_bench_tools import run_benchmark
from kernels_bench_tools.measure.task import RecordFile, without_shared
from kernels_bench_tools.records.codec import encode_record, read_records, thin_record, write_records
from kernels_bench_tools.records.record import (
    Failure,
    Record,
    Status,
)

LIMIT = 2048


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> Record:
    file = tmp_path_factory.mktemp("measured") / "layer_norm.jsonl"
    (record,) = run_benchmark("layer_norm", torch_layer_norm, workloads="smoke", device="cpu", output=file)
    return record


def in_a_checkout(record: Record) -> Record:
    """Return the record as a notebook's cell writes it, and without what only running tests imports."""
    provenance = msgspec.structs.replace(
        record.provenance,
        notebook="layer_norm/impls/torch_layer_norm.md",
        notebook_digest="a" * 64,
        cell="benchmark",
        commit="b" * 40,
        dirty=False,
        environment="uv",
        packages={name: record.provenance.packages[name] for name in ("msgspec", "numpy", "torch")},
        hub=[],
    )
    # Timers note a thread that waited for a core, as it does when other tests run.
    tags = {name: value for name, value in record.tags.items() if name != "timer_note"}
    return msgspec.structs.replace(record, provenance=provenance, tags=tags)


def test_a_committed_record_is_small(measured: Record) -> None:
    committed = encode_record(thin_record(without_shared(in_a_checkout(measured))))

    assert len(committed) < LIMIT, committed.decode()


def test_shared_fields_are_written_once_per_process(measured: Record) -> None:
    failed = msgspec.structs.replace(
        measured, status=Status.ERROR, ok=False, lat_ms=None, err=Failure(type="ValueError", msg="")
    )
    file = RecordFile(Path("r.jsonl"))

    written = [file.append(record) for record in (failed, measured, measured)]

    assert [bool(record.trust) for record in written] == [True, True, False]
    assert [bool(record.provenance.packages) for record in written] == [True, True, False]
    assert read_records(Path("r.jsonl")) == written


def test_completing_a_file_keeps_what_other_runs_wrote(measured: Record) -> None:
    path = Path("several.jsonl")
    other = msgspec.structs.replace(measured, run="another")
    write_records(path, [other])
    file = RecordFile(path)
    file.append(measured)
    file.append(measured)

    complete = file.complete({"copy": [0.5, 0.51]}, {"copy": 4270.123})

    peaks = complete[0].ceilings  # in the file on the first record, restored on reading
    assert read_records(path) == [other, complete[0], msgspec.structs.replace(complete[1], ceilings=peaks)]
    assert complete[1].trust == ""
    assert [record.sentinels for record in complete] == [{"copy": [0.5, 0.51]}] * 2
    assert [record.ceilings for record in complete] == [{"copy": 4270.1}, {}]
    assert not list(Path().glob(".several*"))
