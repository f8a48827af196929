"""The self-check on a CUDA device; skipped where there is none."""

import shutil
from pathlib import Path
from statistics import median

import pytest
from projects import ROOT

from kernels_bench_tools.file_io import read_struct
from kernels_bench_tools.records.selfcheck import SelfCheck
from kernels_bench_tools.selfcheck import checks
from kernels_bench_tools.selfcheck.__main__ import main
from kernels_bench_tools.selfcheck.cases import EMPTY_KERNEL, PLAIN, SLOWED, find_cases
from kernels_bench_tools.selfcheck.ncu import NcuError, run_ncu

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


@pytest.fixture(autouse=True)
def _package_for_children(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let processes import the package where it is not installed; ``kbt selfcheck`` sets the variable, too."""
    monkeypatch.setenv("PYTHONPATH", str(ROOT))


def test_null_kernel_overhead() -> None:
    floors = checks.measure_floors("cuda")

    assert 0.3 < floors["null_kernel"] < 2
    assert floors["null_kernel"] < floors["null_kernel_e2e"]


def test_fresh_processes_agree_and_detect_two_percent() -> None:
    series = checks.series_of_processes(checks.ENOUGH_PROCESSES, "cuda", quick=True)
    medians = [one.median_us for one in series[PLAIN.name]]
    # A GPU whose memory is twice as fast is still in the range.
    assert 40 < median(medians) < 400
    assert (checks.variation(medians) or 1) <= 0.003, medians

    # Six processes make few different trios: one that is 0.5 % off is in half of them. The self-check has ten.
    pairs = checks.pairs_of_processes(series, [(SLOWED.name, PLAIN.name)])
    found = checks.check_slowdown(pairs, "cuda", 0.6)

    assert found.passed, found


def test_cases_span_two_microseconds_to_several_milliseconds() -> None:
    found = [checks.measure_case(case, "cuda") for case in find_cases("cuda", quick=False)]

    assert all(one.kernels for one in found)
    times = sorted(one.ours_us for one in found)
    assert times[1] < 5  # the first is the empty kernel
    assert times[-1] > 5000


@pytest.mark.skipif(shutil.which("ncu") is None, reason="needs Nsight Compute")
@pytest.mark.parametrize(
    ("name", "control"), [("layer_norm 8192x4096", "all"), ("SwiGLU 2048x11008", "none")]
)
def test_nsight_compute_agrees(name: str, control: str) -> None:
    try:
        theirs = run_ncu([EMPTY_KERNEL.name, name], control, "ncu")
    except NcuError as error:
        pytest.skip(str(error))

    (case,) = (case for case in find_cases("cuda", quick=False) if case.name == name)
    ours = checks.measure_case(case, "cuda")
    assert theirs[name] - ours.kernels * theirs[EMPTY_KERNEL.name] <= ours.ours_us <= theirs[name] * 1.02


def test_the_quick_self_check_runs(tmp_path: Path) -> None:
    output = tmp_path / "selfcheck.json"

    main(output, "", 2, quick=True)

    found = read_struct(output, SelfCheck)
    failed = [check for check in found.checks if not check.passed]
    assert found.device.kind == "cuda"
    assert {check.name for check in failed} <= {"processes"}, failed
