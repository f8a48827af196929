"""The suites that this project ships name what its operators have."""

from pathlib import Path

import pytest
from torch._subclasses.fake_tensor import FakeTensorMode

from kernels_bench_tools.measure.operator import find_operator
from kernels_bench_tools.schema.suite import SuiteKernel, read_suite

SUITE = read_suite(Path(__file__).parents[2] / "suites" / "trainscale.toml")
PUBLISHED = [kernel for kernel in SUITE.kernel if kernel.published]


def test_each_small_row_is_a_workload_of_its_set() -> None:
    for kernel in SUITE.small:
        names = {one.name for one in find_operator(kernel.operator).workloads(SUITE.small_workloads)}
        assert kernel.workload in names
    assert {kernel.operator for kernel in SUITE.small} == {kernel.operator for kernel in SUITE.kernel}


def test_the_suite_has_every_workload_of_its_set() -> None:
    rows = [(kernel.operator, kernel.workload) for kernel in SUITE.kernel]
    known = {
        (operator, workload.name)
        for operator in SUITE.operators
        for workload in find_operator(operator).workloads(SUITE.workloads)
    }

    assert set(rows) == known
    assert len(rows) == len(known)
    assert len({kernel.name for kernel in SUITE.kernel}) == len(rows)


@pytest.mark.parametrize("kernel", PUBLISHED, ids=lambda kernel: kernel.workload)
def test_the_suite_s_bytes_are_those_of_the_operator(kernel: SuiteKernel) -> None:
    operator = find_operator(kernel.operator)
    (workload,) = (one for one in operator.workloads(SUITE.workloads) if one.name == kernel.workload)
    operator = operator.for_workload(workload)
    with FakeTensorMode():
        inputs = operator.inputs(workload, "cpu", 0)
        work = operator.work(inputs, operator.reference(*inputs))
    written = work.bytes_written
    if (
        kernel.operator == "fp8_quant"
    ):  # that GPU has no FP8 and stored 16-bit numbers, and a scale for each row
        written = 2 * inputs[0].numel() + 4 * len(inputs[0])

    assert kernel.published is not None
    assert kernel.published.bytes == work.bytes_read + written
    if kernel.published.base_copies_bytes:
        assert kernel.published.base_copies_bytes == 2 * inputs[0].numel() * inputs[0].element_size()


@pytest.mark.parametrize("kernel", PUBLISHED, ids=lambda kernel: kernel.workload)
def test_the_printed_rate_follows_from_the_counted_bytes(kernel: SuiteKernel) -> None:
    row = kernel.published
    assert row is not None
    for ms, printed in ((row.ours_ms, row.ours_gb_per_s), (row.base_ms, row.base_gb_per_s)):
        assert row.counted_bytes / ms / 1e6 == pytest.approx(printed, rel=1e-3)


def test_no_rate_exceeds_the_copy_peak() -> None:
    copy = SUITE.published_copy
    assert copy == pytest.approx(242.2, abs=0.2)
    for kernel in PUBLISHED:
        assert kernel.published is not None
        assert kernel.published.bytes / kernel.published.ours_ms / 1e6 < 1.01 * copy
