"""What a build prints on stderr while it runs."""

import pytest

from kernels_bench_tools.cli.progress import PlainProgress
from kernels_bench_tools.records.build import CellRun
from kernels_bench_tools.records.record import Status

A, B, C = (f"op/impls/{name}.md:benchmark" for name in "abc")


def ended(status: Status = Status.OK, reason: str = "", exit_code: int | None = 0) -> CellRun:
    return CellRun(id="a", code="", line=1, status=status, reason=reason, seconds=2.0, exit_code=exit_code)


def test_cells_are_numbered_in_the_order_in_which_they_start(capsys: pytest.CaptureFixture[str]) -> None:
    told = PlainProgress()
    told.build_started({A: 1.0, B: 1.0, C: 1.0})
    told.process_started(A, 0, 2)
    told.process_ended(A, waits=True)
    told.process_started(B, 0, 2)
    told.process_started(A, 1, 2)
    told.process_ended(A, waits=False)
    told.cell_finished(A, ended())

    assert capsys.readouterr().err.splitlines() == [
        "3 cells to run",
        f"  [1/3] {A}  running, process 1 of 2",
        f"  [1/3] {A}  process 1 of 2 ended, waiting for other cells",
        f"  [2/3] {B}  running, process 1 of 2",
        f"  [1/3] {A}  running, process 2 of 2",
        f"✓ {A}  2.0 s",
    ]


def test_figures_of_the_first_process_are_shown(capsys: pytest.CaptureFixture[str]) -> None:
    told = PlainProgress(figures_of=["op/impls/a.md"])
    for name, process in ((A, 0), (B, 0), (A, 1)):
        told.process_started(name, process, 2)
        told.cell_output(name, "workload    median       ±     n     GB/s")
        told.cell_output(name, "S128  0.3253 ms   1.0 %  1920     17.3  ok")
        told.cell_output(name, "S256                                     incorrect: by far")
        told.process_ended(name, waits=False)

    assert [line for line in capsys.readouterr().err.splitlines() if "running" not in line] == [
        "  S128  0.3253 ms"
    ]
