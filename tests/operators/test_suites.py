"""The suites that this project ships name what its operators have."""

from pathlib import Path

from kernels_bench_tools.measure.operator import find_operator
from kernels_bench_tools.results.suite import read_suite

SUITE = read_suite(Path(__file__).parents[2] / "suites" / "trainscale.toml")


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


def test_only_a_suite_measures_its_workloads_in_the_type_that_it_names() -> None:
    types = {"fp8_quant": "float32"}
    for operator in map(find_operator, SUITE.operators):
        found = {workload.dtype for workload in operator.workloads(SUITE.workloads)}
        assert found == {types.get(operator.name, "float16")}
        assert SUITE.workloads not in operator.default_sets("cuda")
