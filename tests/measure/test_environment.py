from __future__ import annotations

import platform

from kernels_bench_tools.devices import cpu_device
from kernels_bench_tools.measure.environment import (
    describe_device,
    describe_environment,
    describe_provenance,
    installed_packages,
)
from kernels_bench_tools.runs import CellContext


def test_a_cpu_has_no_gpu_s_properties() -> None:
    environment = describe_environment(describe_device("cpu"), "cpu")

    assert environment.gpu == environment.driver == environment.sm == ""
    assert environment.sm_clock_mhz == 0
    assert environment.cpu == cpu_device().name
    assert environment.py == platform.python_version()


def test_the_packages_are_what_is_installed() -> None:
    packages = installed_packages()

    assert {"torch", "msgspec", "numpy", "kernels-bench-tools"} <= set(packages)
    assert list(packages) == sorted(packages)


def test_without_a_runner_provenance_says_only_what_it_knows() -> None:
    provenance = describe_provenance(CellContext(), seed=3)

    assert provenance.notebook == ""
    assert provenance.dirty is None
    assert provenance.seed == 3
    assert provenance.harness
