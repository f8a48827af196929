"""The self-check on a CUDA device; skipped where there is none."""

import shutil
import sys
from pathlib import Path
from statistics import median

import pytest
import torch

from kernels_bench_tools.file_io import read_struct
from kernels_bench_tools.records.selfcheck import SelfCheck
from kernels_bench_tools.selfcheck.__main__ import main
from kernels_bench_tools.selfcheck.agreement import other_methods
from kernels_bench_tools.selfcheck.cases import find_cases, slowed_case
from kernels_bench_tools.selfcheck.ncu import NcuError, run_ncu
from kernels_bench_tools.selfcheck.processes import (
    ENOUGH_PROCESSES,
    check_slowdown,
    pairs_of_processes,
    series_of_processes,
    variation,
)
from kernels_bench_tools.selfcheck.timers import (
    check_cold_and_hot,
    check_copies,
    check_flushes,
    check_linearity,
    check_slow_host,
    make_draw,
    measure_floors,
)

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


def test_a_spinning_kernel_s_time_is_proportional_to_its_cycles() -> None:
    check = check_linearity("cuda")

    assert check.passed, check


def test_null_kernel_overhead() -> None:
    floors = measure_floors("cuda")

    assert 0.3 < floors["null_kernel"] < 2
    assert floors["null_kernel"] < floors["null_kernel_e2e"]


def test_a_copy_s_time_is_linear_in_its_bytes() -> None:
    check = check_copies("cuda")

    assert check.passed, check


def test_a_slow_host_does_not_change_the_device_time() -> None:
    check = check_slow_host("cuda")

    assert check.passed, check


def test_cold_calls_have_cold_caches() -> None:
    check = check_cold_and_hot("cuda")

    assert check.passed, check


def test_a_read_flush_adds_no_time() -> None:
    check = check_flushes("cuda")

    assert check.passed, check


def test_fresh_processes_agree_and_detect_two_percent() -> None:
    series = series_of_processes(ENOUGH_PROCESSES, quick=True)
    plain, slow = slowed_case("cuda").name, slowed_case("cuda", 2).name
    medians = [one.median_us for one in series[plain]]
    pairs = pairs_of_processes(series, [(slow, plain)], 50)
    # A GPU whose memory is twice as fast is still in the range.
    assert 40 < median(medians) < 400
    assert (variation(medians) or 1) <= 0.003, medians

    # Six processes make few different trios: one that is 0.5 % off is in half of them. The self-check has ten.
    found = check_slowdown(pairs, "cuda", 2, 0.6)

    assert found.passed, found


def test_every_case_runs_and_launches_kernels() -> None:
    with torch.no_grad():
        for case in find_cases("cuda", quick=False):
            draw = make_draw(case.function, case.inputs("cuda"), "cuda")
            assert median(draw(3)) > 0.5, case.name
            del draw
            torch.cuda.empty_cache()


def test_cases_span_two_microseconds_to_several_milliseconds() -> None:
    with torch.no_grad():
        cases = find_cases("cuda", quick=False)
        times = [median(make_draw(case.function, case.inputs("cuda"), "cuda")(3)) for case in cases]

    assert sorted(times)[1] < 5  # the first is the empty kernel
    assert max(times) > 5000


def test_other_methods_report_a_time() -> None:
    found = other_methods(torch.neg, (torch.zeros(2**20, device="cuda"),), "cuda")

    assert {"timer", "do_bench", "do_bench_cudagraph"} == set(found)
    assert all(1 < us < 10_000 for us in found.values())


@pytest.mark.skipif(shutil.which("ncu") is None, reason="needs Nsight Compute")
def test_nsight_compute_agrees_on_one_kernel_and_on_several() -> None:
    cases = {case.name: case for case in find_cases("cuda", quick=False)}
    names = ("layer_norm 8192x4096", "SwiGLU 2048x11008")
    try:
        theirs = run_ncu(names[:1], names[1:], "ncu")
    except NcuError as error:
        pytest.skip(str(error))

    for name in names:
        draw = make_draw(cases[name].function, cases[name].inputs("cuda"), "cuda")
        empty = theirs.empty_single if name in names[:1] else 2 * theirs.empty_several
        assert theirs.calls[name] - empty <= median(draw(120)) <= theirs.calls[name] * 1.02, name


def test_the_quick_self_check_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "selfcheck.json"

    code = main(["--quick", "--ncu", "", "--processes", "2", "--output", str(output)])

    found = read_struct(output, SelfCheck)
    failed = [check for check in found.checks if not check.passed]
    print(capsys.readouterr().out, file=sys.stderr)
    assert (code == 0) == (not failed)
    assert found.device.kind == "cuda"
    assert found.ceilings["copy"] > 100
    assert all(kernel.kernels > 0 and "timer" in kernel.methods for kernel in found.kernels)
    assert {check.name for check in failed} <= {"processes", "cost", "slowdown_1_percent"}, failed
