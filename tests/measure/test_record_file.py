"""What a record holds, how large it gets, and its line."""

from pathlib import Path
from typing import Any

import msgspec
import pytest
from norms import torch_layer_norm

from kernels_bench_tools import run_benchmark
from kernels_bench_tools.measure.task import RecordFile, heading, result_line, without_shared
from kernels_bench_tools.records.codec import encode_record, read_records, thin_record, write_records
from kernels_bench_tools.records.record import (
    Failure,
    Flag,
    Latency,
    Quantities,
    Record,
    Roofline,
    Status,
    Timing,
    Work,
)

LIMIT = 2**11 + 2**6


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
    environment = msgspec.structs.replace(record.env, triton="", kernels="")
    return msgspec.structs.replace(record, provenance=provenance, tags=tags, env=environment, flags=[])


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


LATENCY = Latency(p10=0.2, p50=0.2, p90=0.2, mean=0.2, iqr=0.0, reps=60, ci_low=0.199, ci_high=0.2004)
WORK = Work(bytes_read=4 * 10**8, bytes_written=4 * 10**8, flops=1)
ROOFLINE = Roofline(ceiling="copy", value=4270, fraction=0.937)


def line_of(status: Status, **fields: Any) -> str:
    return result_line(Record(ts="", run="", impl="x", status=status, ok=status is Status.OK, **fields))


def test_a_line_has_every_figure_below_its_title_and_the_flags() -> None:
    quantities = Quantities(host_submit=Timing(p50=0.0123), e2e=Timing(p50=0.2345))

    line = line_of(
        Status.OK, lat_ms=LATENCY, work=WORK, quantities=quantities, roofline=ROOFLINE, flags=[Flag.DRIFT]
    )

    assert " ".join(line.split()) == "0.2000 ms 0.5 % 60 4000.0 94% copy 0.01230 0.2345 ok [drift]"
    head = heading()
    assert head.index("of peak") + len("of peak") == line.index("94% copy") + len("94% copy")


@pytest.mark.parametrize(
    ("status", "fields", "expected"),
    [
        # A wrong result has a time and no rate.
        (
            Status.INCORRECT,
            {"lat_ms": LATENCY, "work": WORK, "roofline": ROOFLINE},
            "0.2000 ms 0.5 % 60 incorrect: 3 NaN",
        ),
        (Status.OOM, {}, "oom: 3 NaN"),
    ],
)
def test_a_line_of_a_failure_has_the_reason(status: Status, fields: dict[str, Any], expected: str) -> None:
    assert " ".join(line_of(status, err=Failure(type="", msg="3 NaN"), **fields).split()) == expected
