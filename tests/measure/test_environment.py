import os
import platform
import sys

from kernels_bench_tools.measure.device.environment import (
    describe_affinity,
    describe_environment,
    gpu_uuid,
    imported_packages,
)
from kernels_bench_tools.records.device import cpu_device


def test_a_cpu_has_no_gpu_s_properties() -> None:
    environment = describe_environment("cpu")

    assert environment.gpu == environment.driver == environment.sm == ""
    assert environment.sm_clock_mhz == 0
    assert environment.cpu == cpu_device().name
    assert environment.py == platform.python_version()


def test_only_imported_packages_are_listed() -> None:
    packages = imported_packages()

    assert {"torch", "msgspec", "numpy"} <= set(packages)
    assert list(packages) == sorted(packages)
    assert "mypy" not in sys.modules
    assert "mypy" not in packages


def test_the_affinity_names_every_cpu_that_may_be_used() -> None:
    cpus = set()
    for part in describe_affinity().split(","):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))

    assert cpus == os.sched_getaffinity(0)


def test_a_cpu_has_no_gpu_uuid() -> None:
    assert gpu_uuid("cpu") == ""
