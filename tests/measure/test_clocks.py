import json
import subprocess
import sys
import time
from math import inf
from pathlib import Path

import pytest

from kernels_bench_tools.measure.device import clock_reader
from kernels_bench_tools.measure.device.clocks import (
    IDLE,
    POWER_CAP,
    READY_SECONDS,
    ClockSample,
    ClockSampler,
    clock_flags,
    summarize_clocks,
)
from kernels_bench_tools.records.record import Clocks, Flag

READER = """
import json, time
while True:
    print(json.dumps([time.monotonic(), 1980, 2619, 512.3, 44, 0x4, [1]]), flush=True)
    time.sleep(0.01)
"""


def sample(
    sm_mhz: int = 1980,
    reasons: frozenset[str] = frozenset(),
    pids: tuple[int, ...] = (1,),
    watts: float = 300,
) -> ClockSample:
    return ClockSample(0.0, sm_mhz, 2619, watts, 40, reasons, pids)


def test_only_the_samples_of_the_measured_time_count() -> None:
    with ClockSampler("", command=[sys.executable, "-c", READER]) as sampler:
        time.sleep(0.1)
        start = time.monotonic()
        time.sleep(0.15)
        end = time.monotonic()
        found = summarize_clocks(sampler.samples(start, end), 1975)
        time.sleep(0.1)
        everything = len(sampler.samples(0, inf))

    assert 1 <= found.samples < everything
    assert (found.sm_mhz, found.memory_mhz, found.power_w) == (1980, 2619, 512.3)
    assert found.in_band_mhz == 1975


def test_the_sampling_process_ends_with_the_block() -> None:
    with ClockSampler("", command=[sys.executable, "-c", READER]) as sampler:
        process = sampler._process
        assert process.poll() is None

    assert process.poll() is not None


def test_an_unknown_gpu_has_no_clocks() -> None:
    start = time.monotonic()
    with ClockSampler("GPU-00000000-0000-0000-0000-000000000000") as sampler:
        assert sampler.samples(0, inf) == []
    assert time.monotonic() - start < READY_SECONDS


def test_a_cut_off_line_is_skipped() -> None:
    program = "import time; print('[1.0, 1980, 26', flush=True); time.sleep(10)"
    with ClockSampler("", command=[sys.executable, "-c", program]) as sampler:
        assert sampler.samples(0, inf) == []


def test_without_a_gpu_no_process_is_started() -> None:
    with ClockSampler("") as sampler:
        assert sampler._process is None
        assert sampler.samples(0, inf) == []

    assert summarize_clocks([]) is None
    assert summarize_clocks([], 1980) == Clocks(in_band_mhz=1980)


def test_the_reader_imports_the_standard_library_not_our_modules() -> None:
    reader = str(Path(clock_reader.__file__))
    program = f"import runpy, operator; runpy.run_path({reader!r}, run_name='x'); print(operator.__file__)"

    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)

    assert "measure" not in done.stdout


def test_throttle_reasons_are_decoded_from_the_mask() -> None:
    line = json.dumps([1.5, 1980, 2619, 700.0, 50, 0x1 | 0x4 | 0x40, [7, 8]])

    assert ClockSample.parse(line).reasons == {IDLE, POWER_CAP, "hw_thermal_slowdown"}


def test_idle_samples_are_ignored() -> None:
    found = summarize_clocks([sample(345, frozenset({IDLE})), sample(1980), sample(1965)])

    assert found.sm_mhz_min == 1965
    assert IDLE not in found.throttle
    assert clock_flags(found) == []


def test_a_power_cap_counts_only_if_the_clock_fell() -> None:
    capped = frozenset({POWER_CAP})
    steady = summarize_clocks([sample(1980), sample(1950, capped)])
    slowed = summarize_clocks([sample(1980), sample(1700, capped)])

    assert clock_flags(steady) == []
    assert clock_flags(slowed) == [Flag.THROTTLED]
    assert slowed.throttle == [POWER_CAP]


@pytest.mark.parametrize("reason", ["hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown"])
def test_hardware_slowdowns_always_count_as_throttling(reason: str) -> None:
    assert clock_flags(summarize_clocks([sample(reasons=frozenset({reason}))])) == [Flag.THROTTLED]


def test_a_second_process_on_the_gpu_is_flagged() -> None:
    assert clock_flags(summarize_clocks([sample(pids=(10,))])) == []
    assert clock_flags(summarize_clocks([sample(pids=(10, 11))])) == [Flag.NEIGHBOUR]
