"""The self-check: its parts on what is known, and the whole of it on this machine."""

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from builds import measured_latency
from projects import ROOT, run_kbt

from kernels_bench_tools.cli.selfcheck import selfcheck
from kernels_bench_tools.file_io import read_struct, write_struct
from kernels_bench_tools.records.device import cpu_device
from kernels_bench_tools.records.record import Environment, Record
from kernels_bench_tools.records.selfcheck import Check, KernelAgreement, SelfCheck
from kernels_bench_tools.records.summary import Verdict
from kernels_bench_tools.results.speedup import speedup_over
from kernels_bench_tools.selfcheck import checks
from kernels_bench_tools.selfcheck.cases import PLAIN, SLOWED, SLOWED_PERCENT, find_cases, repeated_cases
from kernels_bench_tools.selfcheck.checks import PER_SIDE, Pair, ProcessSeries, pairs_of_processes, verdict
from kernels_bench_tools.selfcheck.ncu import NcuError, read_durations, run_ncu, split_cases

NCU_OUTPUT = """\
==PROF== Profiling "spin_kernel" - 0: 0%....50%....100% - 1 pass
"ID","Kernel Name","Section Name","Metric Name","Metric Unit","Metric Value"
"0","at::cuda::(anonymous namespace)::spin_kernel(long)","metrics","gpu__time_duration.sum","ns","1,408"
"1","void silu<float>(T1 *, ""x"")","metrics","gpu__time_duration.sum","ns","2,016"
"2","void mul<float>()","metrics","gpu__time_duration.sum","us","3.5"
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


@pytest.mark.parametrize(("calls", "names"), [(2, ["a"]), (0, ["a"]), (3, ["a", "b"])])
def test_kernels_lost_by_ncu_are_an_error(calls: int, names: list[str]) -> None:
    with pytest.raises(NcuError, match="it recorded"):
        split_cases([("spin_kernel", 1.0), *[("k", 1.0)] * calls], names, calls=3)


def test_a_missing_ncu_and_one_without_the_right_to_read_counters_are_named(tmp_path: Path) -> None:
    with pytest.raises(NcuError, match="/nowhere/ncu cannot be started"):
        run_ncu(["a"], "all", "/nowhere/ncu")
    ncu = tmp_path / "ncu"
    ncu.write_text("#!/bin/sh\necho '==ERROR== ERR_NVGPUCTRPERM'\nexit 1\n")
    ncu.chmod(0o755)
    with pytest.raises(NcuError, match="ERR_NVGPUCTRPERM"):
        run_ncu(["a"], "all", str(ncu))


@pytest.mark.parametrize(
    ("ours", "ncu", "overhead", "passed"),
    [
        *((ours, 100.0, 0.0, ours in {100.0, 101.9}) for ours in (100.0, 101.9, 102.1, 97.0)),
        *((2.29, 2.0, 0.0, True), (2.31, 2.0, 0.0, False)),
        *((1.92, 2.94, 0.0, False), (1.92, 2.94, 1.0, True)),
    ],
)
def test_a_time_agrees_within_the_bound_of_ncu_s_without_its_overhead(
    ours: float, ncu: float, overhead: float, passed: bool
) -> None:
    check = checks.check_ncu([agreement("far", ours, ncu_us=ncu, ncu_overhead_us=overhead)], quick=True)

    assert check.passed is passed
    assert ("far" in check.detail) is not passed


@pytest.mark.parametrize(
    ("us", "spread", "passed"), [(10, 0.0031, False), (9, 0.0069, True), (9, 0.0071, False)]
)
def test_the_bound_on_variation_depends_on_the_kernel_s_time(us: float, spread: float, passed: bool) -> None:
    one = agreement(ours=us, process_medians_us=[us, us], variation=spread)

    assert checks.check_processes([one], "cuda").passed is passed
    assert checks.variation([99.0, 100.0, 101.0]) == pytest.approx(0.01)


@pytest.mark.parametrize("device", ["cuda", "cpu"])
def test_every_case_runs_and_has_its_own_name(device: str) -> None:
    cases = [*find_cases(device, quick=False), *repeated_cases(device, quick=False)]

    assert len({case.name for case in cases}) == len(set(cases))
    assert set(find_cases(device, quick=True)) <= set(cases)
    with torch.compiler.set_stance("force_eager"):
        for case in cases:
            small = tuple(tuple(min(extent, 128) for extent in shape) for shape in case.shapes)
            output = case.function(*(torch.randn(shape, dtype=torch.float32) for shape in small))
            for tensor in output if isinstance(output, tuple) else (output,):
                assert tensor.isfinite().all(), case.name


def pair(candidate: float, baseline: float, noise: float = 0.01, seed: int = 0, name: str = "a") -> Pair:
    """Return three groups of samples a side, in microseconds, around these medians."""
    source = np.random.default_rng(seed)
    ours, theirs = (
        [(us * source.normal(1, noise, 40)).tolist() for _ in range(PER_SIDE)] for us in (candidate, baseline)
    )
    return Pair(name, ours, theirs)


def series(us: float, between: float = 0.002, seed: int = 0) -> list[ProcessSeries]:
    """Return what ten processes find that differ by ``between`` (a standard deviation) for as long as they live."""
    source = np.random.default_rng(seed)
    return [
        ProcessSeries(median_us, (median_us * source.normal(1, 0.001, 30)).tolist())
        for median_us in us * source.normal(1, between, 10)
    ]


def record(samples_us: Sequence[float], process: int, name: str) -> Record:
    """Return the record that a process leaves which found these samples."""
    latency = measured_latency(*(us / 1e3 for us in samples_us))
    return Record(
        ts="", run=name, op="neg", impl=name, wl={"name": "w"}, ok=True, lat_ms=latency, process=process
    )


def test_verdicts_agree_with_the_report() -> None:
    numbers = {Verdict.SLOWER: 1, Verdict.FASTER: -1, Verdict.SAME: 0, Verdict.AMBIGUOUS: 0}
    seen = set()
    for seed, factor in enumerate((0.95, 0.98, 0.99, 0.995, 1.0, 1.004, 1.006, 1.01, 1.02, 1.05) * 5):
        one = pair(12.0 * factor, 12.0, 0.004, seed)
        ours, theirs = (
            [record(group, process, name) for process, group in enumerate(groups)]
            for name, groups in (("ours", one.candidate), ("theirs", one.baseline))
        )
        report_says = numbers[speedup_over(ours, theirs).verdict]
        assert verdict(one, "cuda") == report_says, (seed, factor)
        seen.add(report_says)

    assert seen == {-1, 0, 1}


def test_false_verdicts_are_rare_despite_variation_between_processes() -> None:
    found = {str(number): series(10 * 2**number, 0.003, seed=number) for number in range(7)}

    check = checks.check_same(pairs_of_processes(found, [(name, name) for name in found]), "cuda")

    assert check.passed, check


def test_false_verdicts_fail_and_are_named() -> None:
    different = [pair(102, 100, 0.001, name=f"case {number % 2}") for number in range(3)]
    same = [pair(100, 100, 0.001, name="fine") for _ in range(20)]

    check = checks.check_same(different + same, "cuda")

    assert not check.passed
    assert "case 0 (2), case 1 (1)" in check.detail


@pytest.mark.parametrize(("percent", "passed"), [(SLOWED_PERCENT, True), (0.2, False)])
def test_a_slowdown_of_two_percent_is_detected(percent: float, passed: bool) -> None:
    found = {"plain": series(100), "slow": series(100 + percent, seed=1)}

    check = checks.check_slowdown(pairs_of_processes(found, [("slow", "plain")]), "cuda", checks.NEEDED)

    assert check.passed is passed, check
    assert SLOWED.shapes[0][0] / PLAIN.shapes[0][0] == pytest.approx(1 + SLOWED_PERCENT / 100, rel=1e-4)


def test_the_command_checks_this_machine_and_writes_the_result(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.kbt]\n")
    variables = {"CUDA_VISIBLE_DEVICES": "", "KBT_COMMIT": "abc"}

    done = run_kbt(tmp_path, "selfcheck", "--quick", "--processes", "2", timeout=300, **variables)

    assert done.returncode in {0, 1}, done.stderr
    found = read_struct(tmp_path / "selfcheck" / f"{cpu_device().slug}.json", SelfCheck)
    assert [check.name for check in found.checks] == ["floors", "processes"]
    assert (done.returncode == 0) == all(check.passed for check in found.checks)
    assert (found.commit, found.device.kind) == ("abc", "cpu")
    assert [len(kernel.process_medians_us) for kernel in found.kernels] == [0, 2, 2]
    assert found.kernels[0].ci_low_us <= found.kernels[0].ours_us <= found.kernels[0].ci_high_us
    assert found.floors_us["python_call"] > 0


@pytest.mark.parametrize(("passed", "code"), [(True, 0), (False, 1)])
def test_a_failed_check_is_a_failure_of_the_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, passed: bool, code: int
) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.kbt]\n")
    one = Check(name="floors", title="", expected="", found="", passed=passed)
    made = SelfCheck(ts="", device=cpu_device(), env=Environment(), checks=[one])

    def write(command: list[str], **_: Any) -> subprocess.CompletedProcess[str]:
        write_struct(Path(command[command.index("-m") + 2]), made)
        return subprocess.CompletedProcess(command, 0)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("KBT_COMMIT", "abc")
    monkeypatch.setattr(subprocess, "run", write)

    assert selfcheck(output=tmp_path / "found.json") == code


def test_an_interpreter_without_torch_is_a_one_line_error(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text("[tool.kbt]\n")
    program = (
        "import sys; sys.argv = ['kbt', 'selfcheck']; sys.modules['torch'] = None;"
        "from kernels_bench_tools.cli import main; main()"
    )

    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False
    )

    assert done.returncode == 2
    assert "torch is not installed in this interpreter" in done.stderr.splitlines()[-1]


def test_the_worst_difference_from_ncu_may_be_below_it() -> None:
    given = {"ci_low_us": 0.0, "ci_high_us": 0.0, "kernels": 1, "ncu_us": 11.0, "ncu_overhead_us": 1.0}
    kernels = [KernelAgreement(name="", ours_us=us, **given) for us in (9.0, 10.5)]
    found = SelfCheck(ts="", device=cpu_device(), env=Environment(), kernels=kernels)

    assert found.worst == pytest.approx(0.1)


def test_the_committed_self_checks_can_be_read() -> None:
    for file in (ROOT / "selfcheck").glob("*.json"):
        assert read_struct(file, SelfCheck).kernels
