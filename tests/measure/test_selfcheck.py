"""The self-check: its parts on what is known, and the whole of it on this machine."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch

from kernels_bench_tools.file_io import read_struct
from kernels_bench_tools.records.device import cpu_device
from kernels_bench_tools.records.record import Environment
from kernels_bench_tools.records.selfcheck import KernelAgreement, SelfCheck
from kernels_bench_tools.selfcheck.__main__ import table_lines
from kernels_bench_tools.selfcheck.agreement import check_cost, check_ncu, check_processes, other_methods
from kernels_bench_tools.selfcheck.cases import find_cases
from kernels_bench_tools.selfcheck.ncu import NcuError, read_durations, run_ncu, split_cases
from kernels_bench_tools.selfcheck.processes import variation
from kernels_bench_tools.selfcheck.timers import check_linearity, end_to_end_us, fit_line, make_draw

NCU_OUTPUT = """\
==PROF== Connected to process 4711 (/usr/bin/python3.12)
==PROF== Profiling "spin_kernel" - 0: 0%....50%....100% - 1 pass
"ID","Process ID","Process Name","Host Name","Kernel Name","Context","Stream","Block Size","Grid Size","Device","CC","Section Name","Metric Name","Metric Unit","Metric Value"
"0","4711","python3.12","127.0.0.1","at::cuda::(anonymous namespace)::spin_kernel(long)","1","7","(1, 1, 1)","(1, 1, 1)","0","9.0","Command line profiler metrics","gpu__time_duration.sum","ns","1,408"
"1","4711","python3.12","127.0.0.1","void silu<float>(T1 *, ""x"")","1","7","(128, 1, 1)","(96, 1, 1)","0","9.0","Command line profiler metrics","gpu__time_duration.sum","ns","2,016"
"2","4711","python3.12","127.0.0.1","void mul<float>()","1","7","(128, 1, 1)","(96, 1, 1)","0","9.0","Command line profiler metrics","gpu__time_duration.sum","us","3.5"
==PROF== Disconnected from process 4711
"""


def agreement(name: str = "a", ours: float = 10.0, **more: Any) -> KernelAgreement:
    return KernelAgreement(name=name, ours_us=ours, ci_low_us=ours, ci_high_us=ours, kernels=1, **more)


def test_durations_are_read_from_ncu_s_output() -> None:
    kernels = read_durations(NCU_OUTPUT.splitlines())

    assert [us for _, us in kernels] == pytest.approx([1.408, 2.016, 3.5])
    assert kernels[1][0] == 'void silu<float>(T1 *, "x")'


def test_a_call_s_kernels_are_summed_and_the_median_call_counts() -> None:
    kernels = [("spin_kernel", 1.0), *(("k", us) for us in (1, 2, 10, 20, 3, 4)), ("spin_kernel", 1.0)]
    kernels += [("k", us) for us in (5.0, 9.0, 7.0)]

    assert split_cases(kernels, ["two kernels", "one"], calls=3) == {"two kernels": 7, "one": 7}


@pytest.mark.parametrize(
    ("kernels", "names"),
    [
        ([("spin_kernel", 1.0), ("k", 1.0), ("k", 1.0)], ["a"]),
        ([("spin_kernel", 1.0)], ["a"]),
        ([("spin_kernel", 1.0), ("k", 1.0), ("k", 1.0), ("k", 1.0)], ["a", "b"]),
    ],
)
def test_kernels_lost_by_ncu_are_an_error(kernels: Any, names: list[str]) -> None:
    with pytest.raises(NcuError, match="it saw"):
        split_cases(kernels, names, calls=3)


def test_a_missing_ncu_is_a_one_line_error() -> None:
    with pytest.raises(NcuError, match="/nowhere/ncu cannot be started"):
        run_ncu(["a"], [], "/nowhere/ncu")


def test_ncu_without_the_right_to_read_counters_gives_its_reason(tmp_path: Path) -> None:
    ncu = tmp_path / "ncu"
    ncu.write_text("#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM'\nexit 1\n")
    ncu.chmod(0o755)

    with pytest.raises(NcuError, match="exit code 1: ==ERROR== ERR_NVGPUCTRPERM"):
        run_ncu(["a"], [], str(ncu))


def test_a_line_is_fitted() -> None:
    slope, intercept, r_squared = fit_line([1, 2, 3, 4], [5, 7, 9, 11])

    assert (slope, intercept, r_squared) == pytest.approx((2, 3, 1))
    assert fit_line([1, 2, 3, 4], [1, 9, 1, 9])[2] < 0.5


def test_time_is_proportional_to_a_loop_on_the_cpu() -> None:
    check = check_linearity("cpu")

    assert check.name == "linearity"
    assert float(check.found.split()[1].rstrip(",")) > 0.9


@pytest.mark.parametrize(("ours", "passed"), [(100.0, True), (101.9, True), (102.1, False), (97.0, False)])
def test_a_time_further_from_ncu_than_the_bound_fails(ours: float, passed: bool) -> None:
    check = check_ncu([agreement("far", ours, ncu_us=100.0)], quick=True)

    assert check.passed is passed
    assert ("far" in check.detail) is not passed


def test_short_kernels_may_be_a_third_of_a_microsecond_off() -> None:
    assert check_ncu([agreement(ours=2.29, ncu_us=2.0)], quick=True).passed
    assert not check_ncu([agreement(ours=2.31, ncu_us=2.0)], quick=True).passed


def test_agreement_on_too_few_kernels_fails() -> None:
    some = [agreement(str(number), ncu_us=10.0) for number in range(19)]

    assert not check_ncu(some, quick=False).passed
    assert check_ncu([*some, agreement("one more", ncu_us=10.0)], quick=False).passed


@pytest.mark.parametrize(
    ("us", "spread", "passed"), [(10, 0.0031, False), (9, 0.0069, True), (9, 0.0071, False)]
)
def test_the_bound_on_variation_depends_on_the_kernel_s_time(us: float, spread: float, passed: bool) -> None:
    one = agreement(ours=us, process_medians_us=[us, us], variation=spread)

    assert check_processes([one], "cuda").passed is passed


def test_variation_is_relative_and_needs_two() -> None:
    assert variation([100.0]) is None
    assert variation([99.0, 100.0, 101.0]) == pytest.approx(0.01)


def test_a_costly_measurement_fails() -> None:
    assert check_cost([1.0, 1.4, 9.0]).passed
    assert not check_cost([1.0, 1.6, 1.7]).passed


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_case_names_are_unique_and_quick_cases_a_subset(device: str) -> None:
    names = [case.name for case in find_cases(device, quick=False)]

    assert len(set(names)) == len(names)
    assert {case.name for case in find_cases(device, quick=True)} <= set(names)


def test_enough_calls_are_compared_on_a_gpu() -> None:
    cases = find_cases("cuda", quick=False)

    assert len(cases) >= 20
    assert sum(case.across_processes for case in cases) >= 8


def test_every_gpu_case_runs_on_the_cpu() -> None:
    with torch.compiler.set_stance(
        "force_eager"
    ):  # as a decorator it would import the compiler in each worker
        for case in find_cases("cuda", quick=False):
            small = tuple(tuple(min(extent, 128) for extent in shape) for shape in case.shapes)
            output = case.function(*(torch.randn(shape, dtype=torch.float32) for shape in small))
            for tensor in output if isinstance(output, tuple) else (output,):
                assert tensor.isfinite().all(), case.name


def test_the_same_seed_gives_the_same_inputs() -> None:
    case = find_cases("cpu", quick=True)[0]

    assert torch.equal(case.inputs("cpu", 1)[0], case.inputs("cpu", 1)[0])
    assert not torch.equal(case.inputs("cpu", 1)[0], case.inputs("cpu", 2)[0])


def test_do_bench_needs_a_gpu() -> None:
    found = other_methods(torch.neg, (torch.zeros(1000),), "cpu")

    assert list(found) == ["timer"]
    assert found["timer"] > 0


def test_a_table_shows_other_methods_as_multiples_of_ncu() -> None:
    check = SelfCheck(
        ts="",
        device=cpu_device(),
        env=Environment(),
        kernels=[agreement(ncu_us=8.0, methods={"timer": 40.0})],
    )

    assert any(
        line.split() == ["a", "1", "10", "8", "0", "1.2500", "-", "5.00x", "-"] for line in table_lines(check)
    )


def test_ncu_s_overhead_per_kernel_is_subtracted() -> None:
    silu = agreement("SiLU", ours=1.92, ncu_us=2.94)
    assert not check_ncu([silu], quick=True).passed

    silu.ncu_overhead_us = 1.0

    assert silu.truth_us == pytest.approx(1.94)
    assert check_ncu([silu], quick=True).passed


def test_calls_beyond_the_bound_are_listed() -> None:
    near = [agreement(str(number), ncu_us=10.0) for number in range(20)]

    check = check_ncu([*near, agreement("matmul", ours=106.0, ncu_us=100.0)], quick=False)

    assert check.passed
    assert "matmul +6.0%" in check.detail
    assert "20 of 21" in check.found


def test_the_command_checks_this_machine_and_writes_the_result(tmp_path: Path) -> None:
    environment = os.environ | {"CUDA_VISIBLE_DEVICES": "", "KBT_COMMIT": "abc"}
    (tmp_path / "pyproject.toml").write_text("[tool.kbt]\n")

    done = subprocess.run(
        [sys.executable, "-m", "kernels_bench_tools", "selfcheck", "--quick", "--processes", "2"],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )

    assert done.returncode in {0, 1}, done.stderr
    output = tmp_path / "selfcheck" / f"{cpu_device().slug}.json"
    found = read_struct(output, SelfCheck)
    names = [check.name for check in found.checks]
    assert names == ["floors", "linearity", "processes", "cost"]
    assert (done.returncode == 0) == all(check.passed for check in found.checks)
    assert found.commit == "abc"
    assert found.device.kind == "cpu"
    assert [kernel.ncu_us for kernel in found.kernels] == [None, None, None]
    assert [len(kernel.process_medians_us) for kernel in found.kernels] == [0, 2, 2]
    assert found.kernels[0].ci_low_us <= found.kernels[0].ours_us <= found.kernels[0].ci_high_us
    assert json.loads(output.read_text())["floors_us"]["python_call"] > 0
    assert "layer_norm 512x1024" in done.stdout
    assert f"written: selfcheck/{output.name}" in done.stdout
    assert "… linearity" in done.stderr


def test_an_interpreter_without_torch_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.kbt]\n")
    program = (
        "import sys; sys.argv = ['kbt', 'selfcheck', '--env', 'current']; sys.modules['torch'] = None;"
        "from kernels_bench_tools.cli import main; main()"
    )

    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == 2
    assert "this interpreter has no torch" in done.stderr.splitlines()[-1]
    assert not (tmp_path / "selfcheck").exists()


def test_end_to_end_time_includes_the_call_s_work() -> None:
    assert end_to_end_us(lambda: time.sleep(0.002), "cpu", 5) >= 2000
    assert median(make_draw(lambda _: time.sleep(0.002), (torch.zeros(1),), "cpu")(5)) >= 2000
