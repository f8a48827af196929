import json
import os
import subprocess
import sys
import time
from dataclasses import replace
from importlib import metadata
from math import inf
from pathlib import Path

import pytest
import torch

from kernels_bench_tools.measure.device import clock_reader
from kernels_bench_tools.measure.device.clocks import (
    IDLE,
    POWER_CAP,
    READY_SECONDS,
    ClockSample,
    ClockSampler,
    clock_flags,
    mean_watts,
    summarize_clocks,
)
from kernels_bench_tools.measure.device.environment import describe_environment, gpu_uuid, imported_packages
from kernels_bench_tools.measure.device.peaks import cpu_buffer_bytes, host_ms, measure_peaks
from kernels_bench_tools.measure.device.sentinels import Sentinels
from kernels_bench_tools.measure.session import BenchmarkSession, open_session
from kernels_bench_tools.measure.timing.caches import (
    MAX_INPUT_SETS,
    cache_bytes,
    free_bytes,
    input_set_count,
    last_level_cache_bytes,
)
from kernels_bench_tools.records.device import cpu_device
from kernels_bench_tools.records.record import Clocks, Flag, Work
from kernels_bench_tools.records.roofline import peaks_for

READER = """
import json, time
while True:
    print(json.dumps([time.monotonic(), 1980, 2619, 512.3, 44, 0x4, [1], 8e3]), flush=True)
    time.sleep(0.01)
"""


def sample(sm_mhz: int = 1980, *reasons: str, pids: tuple[int, ...] = (1,)) -> ClockSample:
    return ClockSample(0.0, sm_mhz, 2619, 300, 40, frozenset(reasons), pids)


def test_only_samples_of_the_measured_time_count_and_the_process_ends_with_the_block() -> None:
    with ClockSampler("", command=[sys.executable, "-c", READER]) as sampler:
        process = sampler._process
        time.sleep(0.1)
        start = time.monotonic()
        time.sleep(0.15)
        end = time.monotonic()
        found = summarize_clocks(sampler.samples(start, end), 1975)
        time.sleep(0.1)
        everything = len(sampler.samples(0, inf))
        assert process.poll() is None

    assert process.poll() is not None
    assert 1 <= found.samples < everything
    assert (found.sm_mhz, found.memory_mhz, found.power_w) == (1980, 2619, 512.3)
    assert found.in_band_mhz == 1975


@pytest.mark.parametrize(
    ("uuid", "program"),
    [
        ("", ""),
        ("GPU-00000000-0000-0000-0000-000000000000", ""),
        ("", "import time; print('[1.0, 1980, 26', flush=True); time.sleep(10)"),  # a cut-off line
    ],
)
def test_without_a_sample_there_are_no_clocks(uuid: str, program: str) -> None:
    start = time.monotonic()
    with ClockSampler(uuid, command=[sys.executable, "-c", program] if program else []) as sampler:
        assert sampler.samples(0, inf) == []
        assert bool(sampler._process) == bool(uuid or program)
    assert time.monotonic() - start < READY_SECONDS
    assert summarize_clocks([]) is None
    assert summarize_clocks([], 1980) == Clocks(in_band_mhz=1980)


def test_the_reader_imports_the_standard_library_not_our_modules() -> None:
    reader = str(Path(clock_reader.__file__))
    program = f"import runpy, operator; runpy.run_path({reader!r}, run_name='x'); print(operator.__file__)"

    done = subprocess.run([sys.executable, "-P", "-c", program], capture_output=True, text=True, check=True)

    assert "measure" not in done.stdout


def test_throttle_reasons_are_decoded_from_the_mask() -> None:
    line = json.dumps([1.5, 1980, 2619, 700.0, 50, 0x1 | 0x4 | 0x40, [7, 8], 1e6])

    assert ClockSample.parse(line).reasons == {IDLE, POWER_CAP, "hw_thermal_slowdown"}


@pytest.mark.parametrize(
    ("counted", "watts"), [([5000.0, 5020.0, 5060.0], 600.0), ([0.0] * 3, None), ([7.0], None)]
)
def test_the_power_is_that_of_the_energy_counter_if_the_gpu_has_one(
    counted: list[float], watts: float | None
) -> None:
    samples = [replace(sample(), seconds=number / 20, joules=joules) for number, joules in enumerate(counted)]

    assert mean_watts(samples) == (watts and pytest.approx(watts))


@pytest.mark.parametrize(
    ("samples", "flags", "throttle"),
    [
        ([sample(345, IDLE), sample(1980), sample(1965)], [], []),
        ([sample(1980), sample(1950, POWER_CAP)], [], []),  # the clock did not fall
        ([sample(1980), sample(1700, POWER_CAP)], [Flag.THROTTLED], [POWER_CAP]),
        *(
            ([sample(1980, reason)], [Flag.THROTTLED], [reason])
            for reason in ("hw_slowdown", "hw_thermal_slowdown", "hw_power_brake_slowdown")
        ),
        ([sample(pids=(10, 11))], [Flag.NEIGHBOUR], []),
    ],
)
def test_flags_of_what_slows_the_device_while_it_is_busy(
    samples: list[ClockSample], flags: list[Flag], throttle: list[str]
) -> None:
    found = summarize_clocks(samples)

    assert clock_flags(found) == flags
    assert found.sm_mhz_min > 345
    if flags != []:
        assert found.throttle == throttle


def test_a_cpu_has_no_gpu_s_properties() -> None:
    environment = describe_environment("cpu")

    assert environment.gpu == environment.driver == environment.sm == gpu_uuid("cpu") == ""
    assert environment.sm_clock_mhz == 0
    assert environment.cpu == cpu_device().name


def test_a_cpu_has_peaks_of_four_mixes_and_one_matmul() -> None:
    precision, start = torch.get_float32_matmul_precision(), time.process_time()

    peaks = measure_peaks("cpu")

    assert time.process_time() - start < 10  # usually half a second
    assert torch.is_grad_enabled()
    assert torch.get_float32_matmul_precision() == precision
    # Between an old laptop and a large server, whatever else runs: GB/s and TFLOP/s.
    assert 0.002 < peaks.pop("matmul_float32") < 50
    assert set(peaks) == {"read", "write", "copy", "triad"}
    assert all(0.5 < value < 2000 for value in peaks.values())


def test_a_plain_copy_is_not_faster_than_the_copy_peak() -> None:
    size = cpu_buffer_bytes()
    source = torch.ones(size // 4)
    target = torch.ones(size // 4)

    def beats() -> bool:
        ms = min(host_ms(lambda: target.copy_(source), 5))
        return 2 * size / ms / 1e6 > 1.5 * measure_peaks("cpu")["copy"]

    # A busy machine may slow one of the two down; a wrong count of bytes would be there each time.
    assert not all(beats() for _ in range(5))


def test_the_buffers_exceed_the_cache() -> None:
    assert 2**20 <= cache_bytes("cpu") <= 2**32
    assert free_bytes("cpu") > 0
    assert 3 * cpu_buffer_bytes() > 2 * min(last_level_cache_bytes(), 2**28)


def test_input_sets_are_bounded_in_number_and_size() -> None:
    assert input_set_count(1, "cpu") == MAX_INPUT_SETS
    assert input_set_count(2**40, "cpu") == 1
    assert input_set_count(1, "cpu", 2**40) == 1  # a call reads one row of a table


@pytest.mark.usefixtures("small_buffers")
def test_a_too_low_peak_is_measured_again() -> None:
    session = BenchmarkSession(
        device="cpu", clocks=ClockSampler(""), sentinels=Sentinels("cpu"), peaks={"copy": 1e-6}
    )
    half = 10**9 // 2

    # 1 GB in 10 s, which the slowest of memories can do.
    found = session.assess(Work(bytes_read=half, bytes_written=half, flops=0), 10_000.0, "float32")

    assert found.above == ""
    assert session.peaks["copy"] > 0.1


@pytest.mark.usefixtures("small_buffers")
def test_a_session_on_a_cpu_has_peaks_if_asked_and_no_sentinels() -> None:
    with open_session("cpu") as session:
        assert session.peaks == {}
        session.measure_peaks(peaks_for({"float32"}))
        session.close()

        assert session.peaks.get("copy", 1.0) > 0  # on a busy machine there is none
        assert bool(session.peaks) is bool(session.tried_peaks)
        assert session.sentinel_ms == {}
        assert session.clocks.samples(0, time.monotonic()) == []


@pytest.mark.usefixtures("small_buffers")
@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="waits for cores are not counted")
def test_what_a_cpu_reaches_while_others_keep_it_busy_is_no_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kernels_bench_tools.measure.session._busy", {})
    session = BenchmarkSession(device="cpu", clocks=ClockSampler(""), sentinels=Sentinels("cpu"))
    spin = [sys.executable, "-c", "print(flush=True)\nwhile True: pass"]
    busy = [subprocess.Popen(spin, stdout=subprocess.PIPE) for _ in range(3 * (os.cpu_count() or 1))]
    for process in busy:
        process.stdout.readline()
    session.measure_peaks({"copy"})
    again = time.monotonic()
    session.measure_peaks({"copy"})
    again = time.monotonic() - again
    for process in busy:
        process.kill()
        process.communicate()

    assert session.peaks == {}
    assert not session.tried_peaks
    assert again < 0.1  # not at once for the next implementation
    fast = Work(bytes_read=10**12, bytes_written=0, flops=10**15)
    assert session.assess(fast, 1.0, "float32").above == ""


def test_the_packages_of_a_process_are_the_distributions_of_what_it_has_imported() -> None:
    names = {
        name.lower()
        for module, distributions in metadata.packages_distributions().items()
        if module in sys.modules
        for name in distributions
    }

    assert {"torch", "numpy", "msgspec", "pytest"} <= names
    assert imported_packages() == {name: metadata.version(name) for name in sorted(names)}
