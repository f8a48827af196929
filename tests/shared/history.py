"""A repository whose commits have records, made from a few words."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from devices import H200
from msgspec.structs import replace
from projects import git

from kernels_bench_tools.records.codec import write_records
from kernels_bench_tools.records.notebook import RESULTS
from kernels_bench_tools.records.record import Environment, Latency, Provenance, Record, Timer

FILE = f"op/{RESULTS}/records/{H200.slug}/mine.jsonl"
TORCH, DRIVER = "2.12.0", "580.1"


def rows(
    run: str, *times: float, workload: str = "a", torch: str = TORCH, copy: float = 0.5, **provenance: Any
) -> list[Record]:
    """Return a row of one process for each time."""
    given = {"code_digest": "c1", "operator_digest": "o1", "harness_digest": "h1", "harness": "1"}
    return [
        Record(
            ts=f"2026-11-2{run[-1]}T10:00:0{process}+00:00",
            run=f"{run}-{process}",
            impl="mine",
            op="op",
            wl={"name": workload, "size": 8},
            env=Environment(torch=torch, triton="3.6.0", driver=DRIVER),
            lat_ms=Latency(p50=time, raw_times=[time] * 8, reps=8, timer=Timer.CUPTI),
            ok=True,
            schema=1,
            device=H200,
            process=process,
            sentinels={"copy": [copy]},
            provenance=Provenance(**(given | provenance)),
        )
        for process, time in enumerate(times)
    ]


def make_repository(folder: Path, versions: Sequence[Sequence[Record]], path: str = FILE) -> Path:
    """Return a repository with a project, and a commit for each version of a file of records."""
    (folder / "op/impls").mkdir(parents=True)
    (folder / "pyproject.toml").write_text('[tool.kbt]\ntitle = "T"\n')
    (folder / "op/impls/mine.md").write_text("# Mine\n\n```python id=benchmark outputs=op.jsonl\n1\n```\n")
    git(folder, "init", "-q")
    for number, records in enumerate(versions):
        write_records(folder / path, records)
        git(folder, "add", ".")
        git(folder, "commit", "-qm", f"version {number}")
    return folder


def with_status(records: Sequence[Record], **fields: Any) -> list[Record]:
    return [replace(record, lat_ms=None, ok=False, **fields) for record in records]
