"""What a device lacks of an operator's results, and how long it takes to measure them."""

from typing import Any

import msgspec
import pytest
from devices import H200
from made_records import SHAPES, record

from kernels_bench_tools.records.device import cuda_device
from kernels_bench_tools.records.notebook import FrontMatter
from kernels_bench_tools.records.record import Provenance, Record, Status
from kernels_bench_tools.records.request import Request
from kernels_bench_tools.results.counted import Counted, Source
from kernels_bench_tools.results.needed import PROCESS_SECONDS, RESULT_SECONDS, Needed, needed

H100 = cuda_device("NVIDIA H100")
DIGESTS = {name: {"benchmark": "now"} for name in ("base", "mine", "other")}


def source(
    name: str, *, digest: str = "now", processes: int = 3, of_set: str = "default", **fields: Any
) -> Source:
    """Make records of two workloads, of which each process writes one every two seconds."""

    def made(process: int, at: int) -> Record:
        provenance = Provenance(cell="benchmark", code_digest=digest)
        ts = f"2026-11-20T10:{10 * process:02}:{2 * at:02}+00:00"
        values = {
            "provenance": provenance,
            "ts": ts,
            "run": f"{name} {process}",
            "process": process,
            **fields,
        }
        time = None if fields.get("status") is Status.UNSUPPORTED else 0.1
        one = record(name, time, SHAPES[at], **values)
        return msgspec.structs.replace(one, wl=one.wl | {"set": of_set})

    records = [made(process, at) for process in range(processes) for at in range(2)]
    return Source(records=records, implementation=name, front=FrontMatter(baseline=name == "base"))


def lacking(*sources: Source, request: Request = Request(), processes: int = 3) -> Needed:  # noqa: B008 - frozen
    return needed("layer_norm", Counted(sources), DIGESTS, H200, request, processes)


BASE = source("base")


@pytest.mark.parametrize(
    ("sources", "results"),
    [
        ([source("mine")], 0),
        ([source("mine", digest="before")], 2),
        ([source("mine", processes=2)], 2),
        ([source("mine", device=H100)], 2),
        ([source("mine", status=Status.UNSUPPORTED)], 0),
        ([source("mine"), source("mine", digest="before", of_set="smoke")], 0),
    ],
    ids=["all there", "code changed", "two processes", "not measured here", "unsupported", "another set"],
)
def test_results_that_are_missing_stale_or_without_a_verdict_are_needed(
    sources: list[Source], results: int
) -> None:
    assert lacking(BASE, *sources).results == results


def test_results_of_another_session_are_needed() -> None:
    later = [
        msgspec.structs.replace(one, ts=one.ts.replace("-20T", "-28T")) for one in source("mine").records
    ]

    assert lacking(BASE, Source(records=later, implementation="mine")).results == 2


def test_a_device_without_results_needs_as_many_as_the_one_that_has_most() -> None:
    elsewhere = [source(name, device=H100) for name in DIGESTS]

    assert lacking(*elsewhere).results == 6
    assert lacking().results == 3
    assert lacking(*elsewhere, request=Request(workloads="smoke")).results == 3


def test_measuring_takes_as_long_as_the_records_say_and_each_process_its_start() -> None:
    assert lacking(BASE, source("mine")).seconds == 3 * (4 * 2.0 + 3 * PROCESS_SECONDS)
    assert lacking(processes=1).seconds == 3 * RESULT_SECONDS + 3 * PROCESS_SECONDS
    unknown = source("base", ts="yesterday")
    assert lacking(unknown, processes=1).seconds == 2 * RESULT_SECONDS + 3 * PROCESS_SECONDS
