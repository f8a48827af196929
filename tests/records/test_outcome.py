"""The status of a cell follows from its records."""

import pytest
from made_records import record as made_record

from kernels_bench_tools.records.build import CellRun
from kernels_bench_tools.records.outcome import cell_status, outcome_of, reason_of
from kernels_bench_tools.records.record import Failure, Flag, Record, Status


def record(status: Status, workload: str = "w", process: int = 0, flags: tuple[Flag, ...] = ()) -> Record:
    wl = {"name": workload} if workload else {}
    return made_record(
        "x", 1.0 if status.ran else None, status=status, wl=wl, process=process, flags=list(flags)
    )


@pytest.mark.parametrize(
    ("statuses", "expected"),
    [
        ("ok unsupported", "ok"),
        ("unsupported unsupported", "unsupported"),
        ("ok rejected", "rejected"),
        ("rejected exceeds_physics", "exceeds_physics"),
        ("exceeds_physics incorrect ok", "incorrect"),
        ("incorrect error", "error"),
        ("oom incorrect", "oom"),
        ("crashed error", "crashed"),
    ],
)
def test_the_worst_workload_decides(statuses: str, expected: str) -> None:
    records = [record(Status(name), f"w{number}") for number, name in enumerate(statuses.split())]

    assert cell_status(outcome_of(records).reasons) == expected


def test_a_workload_has_the_worst_status_of_its_processes() -> None:
    found = outcome_of([record(Status.OK), record(Status.INCORRECT, process=1), record(Status.OK, "v")])

    assert found.workloads == {Status.INCORRECT: 1, Status.OK: 1}


def test_the_last_of_several_records_of_a_process_counts() -> None:
    assert outcome_of([record(Status.INCORRECT), record(Status.OK)]).workloads == {Status.OK: 1}


def test_a_record_without_a_workload_is_no_workload() -> None:
    found = outcome_of([record(Status.OK), record(Status.CRASHED, "")])

    assert found.workloads == {Status.OK: 1}
    assert cell_status(found.reasons) is Status.CRASHED


def test_a_disturbed_workload_is_not_wrong() -> None:
    found = outcome_of([record(Status.OK, flags=(Flag.DISTURBED,)), record(Status.OK, "v")])

    assert (found.workloads, found.disturbed) == ({Status.OK: 2}, 1)


def test_of_several_reasons_to_reject_a_record_all_are_named() -> None:
    flags = [Flag.STALE_OUTPUT, Flag.FALLBACK]
    rejected = record(Status.REJECTED, flags=(*flags, Flag.DRIFT))
    rejected.err = Failure(type="Rejected", msg=f"{flags[0].value}: the first was wrong")

    named = {flag for flag in Flag if flag.label in reason_of(rejected)}

    assert named == {*flags}


def test_the_counts_of_a_cell_say_what_they_count() -> None:
    def counts(disturbed: int = 0, status: Status = Status.OK, **workloads: int) -> str:
        found = {Status(name): count for name, count in workloads.items()}
        return CellRun(id="x", code="", line=1, status=status, workloads=found, disturbed=disturbed).counts

    assert counts(ok=3) == ""
    assert counts(ok=3, disturbed=2) == "2 of 3 workloads disturbed by other programs"
    assert counts(ok=2, unsupported=1, disturbed=2) == "1 unsupported, 2 disturbed of 3 workloads"
    assert counts(status=Status.INCORRECT, ok=1, incorrect=2) == "2 of 3 workloads"
