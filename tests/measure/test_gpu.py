"""What only a CUDA device can show; skipped where there is none."""

import time
from collections.abc import Callable
from itertools import cycle
from statistics import median
from typing import Any

import pytest
import torch
from implementations import function_of
from norms import LAYER_NORM, torch_layer_norm
from torch import Tensor

from kernels_bench_tools import run_benchmark
from kernels_bench_tools.measure.device.clocks import ClockSampler
from kernels_bench_tools.measure.device.environment import gpu_uuid
from kernels_bench_tools.measure.device.peaks import measure_peaks, median_ms
from kernels_bench_tools.measure.device.sentinels import Sentinels
from kernels_bench_tools.measure.judge.batches import PICKED, Batches
from kernels_bench_tools.measure.judge.candidate import TimedCalls
from kernels_bench_tools.measure.judge.changing_inputs import InputChanges, InputSets
from kernels_bench_tools.measure.operator import Workload
from kernels_bench_tools.measure.timing.caches import cache_bytes
from kernels_bench_tools.measure.timing.cuda import CudaTimer
from kernels_bench_tools.measure.timing.cupti import NoKernelError
from kernels_bench_tools.measure.timing.measure import TimingResult, measure, measure_calls, measure_sustained
from kernels_bench_tools.records.record import CacheState, Flag, Record, Regime, Status, Timer, Work
from kernels_bench_tools.records.roofline import Limits, RooflineResult, assess

pytestmark = [pytest.mark.gpu, pytest.mark.filterwarnings("default")]


def random(*shape: int) -> Tensor:
    return torch.randn(shape, device="cuda", dtype=torch.bfloat16)


def timed(function: Callable[..., Any], *inputs: Tensor) -> TimingResult:
    with torch.no_grad():
        return measure(function, [inputs], "cuda")


def test_layer_norm_is_one_kernel_timed_by_cupti() -> None:
    workload = Workload(name="w", axes={"batch": 4, "seq_len": 512, "hidden_dim": 4096}, dtype="bfloat16")

    found = timed(torch_layer_norm, *LAYER_NORM.inputs(workload, "cuda", 0))

    assert found.note == ""
    assert found.latency.timer is Timer.CUPTI
    assert found.latency.cache is CacheState.READ_FLUSH
    assert found.latency.reps >= 30
    assert [kernel.count for kernel in found.kernels] == [1]
    assert "layer_norm" in found.kernels[0].name
    assert found.span_ms == pytest.approx(found.latency.p50, rel=0.01)
    assert found.events_ms > 0.9 * found.latency.p50


def test_the_time_of_a_cold_call_is_that_of_its_bytes() -> None:
    small, large = (timed(lambda x: x * 2, random(rows, 8192)).latency for rows in (8192, 32768))

    assert large.p50 / small.p50 == pytest.approx(4, rel=0.15)
    assert large.ci_high - large.ci_low < 0.02 * large.p50
    assert 2 * 32768 * 8192 * 2 / large.p50 / 1e6 < 10_000  # GB/s: twice what any current GPU has


def test_host_time_between_kernels_is_not_in_the_span() -> None:
    def two_kernels(x: Tensor) -> Tensor:
        y = x * 2
        time.sleep(0.0005)
        return y + 1

    found = timed(two_kernels, random(256, 256))

    assert found.span_ms < 0.1


def test_every_kernel_of_a_call_is_listed_and_none_of_the_flush() -> None:
    found = timed(lambda x: (x * 2).cumsum(0) + 1, random(512, 512))

    assert sum(kernel.count for kernel in found.kernels) >= 3
    assert sum(kernel.ms for kernel in found.kernels) == pytest.approx(found.latency.p50, rel=0.1)
    names = " ".join(kernel.name.lower() for kernel in found.kernels)
    assert "spin_kernel" not in names
    assert "reduce" not in names


def test_a_function_that_launches_nothing_is_an_error() -> None:
    with pytest.raises(NoKernelError):
        timed(lambda x: x, random(8, 8))


def test_out_of_device_memory_is_a_status() -> None:
    assert smoke(lambda *_: torch.empty(2**50, device="cuda", dtype=torch.int8)).status is Status.OOM


def test_a_record_of_a_gpu_is_complete() -> None:
    record = smoke()

    assert record.status is Status.OK, record.err
    assert record.device.kind == "cuda"
    assert record.env.gpu == record.device.name
    assert record.env.sm
    assert record.env.cuda
    assert record.env.l2_bytes > 0
    assert record.peak_bytes >= 2 * 32 * 256 * 4
    assert record.kernels
    assert float(record.tags["events_over_cupti"]) > 0.9
    assert set(record.sentinels) == {"copy", "matmul", "null"}
    assert all(len(times) == 2 for times in record.sentinels.values())  # before and after
    assert record.regime is not None
    assert Flag.NEAR_FLOOR in record.flags
    assert record.quantities is not None
    assert record.clocks is not None


def test_the_triton_notebook_is_correct_on_every_default_workload() -> None:
    pytest.importorskip("triton")
    triton_layer_norm = function_of("layer_norm", "triton_layer_norm")
    records = run_benchmark("layer_norm", triton_layer_norm)

    assert records[0].workload == "LN_B16_S2048_D4096"
    assert {record.status for record in records} == {Status.OK}, [record.err for record in records]
    assert all("refused" not in record.corr for record in records)
    assert all("_layer_norm" in record.kernels[0].name for record in records)


def smoke(function: Callable[..., Any] = torch_layer_norm, **options: Any) -> Record:
    (record,) = run_benchmark("layer_norm", function, workloads="smoke", **options)
    return record


def test_flushed_and_rotated_calls_are_equally_cold_and_hot_ones_faster() -> None:
    size = 2048  # 8 MiB each, and as much for the result
    count = 4 * cache_bytes("cuda") // (2 * 2 * size * size) + 1
    sets = [(random(size, size),) for _ in range(count)]

    def typical_ms(function: Callable[..., Any], following: Any = None, *, cold: bool = True) -> float:
        timer = CudaTimer(function, sets[0], "cuda", cold=cold, following=following)
        return median(call.ms for call in timer.by_kernels(60))

    flushed = typical_ms(torch.clone, cycle(sets).__next__)
    rotated = typical_ms(torch.clone, cycle(sets).__next__, cold=False)

    assert flushed > 1.25 * typical_ms(torch.clone, cold=False)
    # Earlier outputs leave dirty lines, which rotated calls have to write back.
    assert rotated == pytest.approx(flushed, rel=0.3)
    # The read alone, so nothing hides that it comes from the cache: 9.1 and 7.6 us on an H100.
    assert typical_ms(torch.sum) > 1.1 * typical_ms(torch.sum, cold=False)


def test_intermediate_results_of_successive_short_calls_have_different_addresses() -> None:
    seen: list[int] = []

    def watching(x: Tensor) -> Tensor:
        between = x * 2
        seen.append(between.data_ptr())
        return between + 1

    timer = CudaTimer(watching, (random(64, 64),), "cuda", keep=True)
    seen.clear()
    timer.by_kernels(20)

    assert len(set(seen)) == 20


def test_the_quantities_of_a_large_kernel_are_in_their_order() -> None:
    found = timed(lambda x: x * 2, random(8192, 8192))

    hot, submit, e2e = (
        found.quantities.device_hot,
        found.quantities.host_submit,
        found.quantities.e2e,
    )
    assert (hot.reps, submit.reps, e2e.reps) == (30, 30, 15)
    assert submit.p50 < found.latency.p50 < e2e.p50
    assert hot.p50 == pytest.approx(found.latency.p50, rel=0.1)
    assert Flag.HOST_BOUND not in found.flags


def test_a_loaded_gpu_has_a_sustained_time_and_a_call_takes_energy() -> None:
    x = random(8192, 8192)
    with torch.no_grad(), ClockSampler(gpu_uuid("cuda")) as clocks:
        batches = Batches(TimedCalls(lambda x: x @ x, InputSets([(x,), (x + 1,), (x + 2,)]), "cuda"), 3)
        found = measure_calls(batches, "cuda", clocks=clocks)
        loaded = measure_sustained(batches, "cuda", found.latency.p50, clocks)

    assert loaded is not None
    assert 0.98 * found.latency.p50 < loaded.p50 < 2 * found.latency.p50
    assert loaded.joules is not None
    assert 100 < loaded.joules / (loaded.p50 / 1e3) < 1500  # watts


def test_a_slow_host_affects_host_times_only() -> None:
    def slow_host(x: Tensor) -> Tensor:
        time.sleep(0.001)
        return x * 2

    found = timed(slow_host, random(256, 256))

    assert found.latency.p50 < 0.02
    assert Flag.HOST_BOUND in found.flags
    assert 1.0 < found.quantities.host_submit.p50 < 2.0
    assert found.quantities.e2e.p50 > 1.0


def test_a_synchronizing_function_does_not_hang() -> None:
    found = timed(lambda x: float((x * 2).sum()), random(256, 256))

    assert found.latency.p50 > 0
    assert Flag.STREAM_ESCAPE not in found.flags


def test_more_kernels_than_the_launch_queue_do_not_hang() -> None:
    def many(x: Tensor) -> Tensor:
        for _ in range(1500):
            x = x + 1
        return x

    found = timed(many, random(32, 32))

    assert sum(kernel.count for kernel in found.kernels) == 1500
    assert found.quantities.host_submit is not None
    assert Flag.STREAM_ESCAPE not in found.flags


@pytest.mark.parametrize(
    ("size", "waits", "joins"), [(2048, False, False), (4096, True, False), (1024, True, True)]
)
def test_work_on_a_side_stream_that_the_stream_does_not_wait_for_escapes(
    size: int, waits: bool, joins: bool
) -> None:
    side, a = torch.cuda.Stream(), random(size, size)

    def forking(x: Tensor) -> Tensor:
        main = torch.cuda.current_stream()
        if waits:
            side.wait_stream(main)
        with torch.cuda.stream(side):
            torch.mm(a, a)
        if joins:
            main.wait_stream(side)
        return x * 2

    assert (Flag.STREAM_ESCAPE in timed(forking, random(256, 256)).flags) is not joins


def test_outputs_of_timed_calls_belong_to_their_inputs() -> None:
    sets, again = ([(torch.arange(1000.0, device="cuda") + number,) for number in range(3)] for _ in range(2))
    batches = Batches(
        TimedCalls(lambda x: x + 1, InputSets(sets, InputChanges((0,), rotate=True)), "cuda"), len(sets)
    )

    found = measure_calls(batches, "cuda")

    assert len(batches.picked) > PICKED  # hot calls, and those that are timed alone, too
    assert Flag.STREAM_ESCAPE not in found.flags, found.note
    for one in batches.picked:
        (x,) = InputChanges((0,), rotate=True).apply(
            again[one.which], batches.changes[one.which][: one.changes]
        )
        assert torch.equal(one.output, x + 1)


def test_the_sampled_clock_agrees_with_the_in_band_clock() -> None:
    timed = TimedCalls(lambda x: x * 2, InputSets([(random(8192, 8192),)]), "cuda")
    with ClockSampler(gpu_uuid("cuda")) as clocks, torch.no_grad():
        found = measure_calls(Batches(timed, 1), "cuda", clocks=clocks).clocks

    assert found.samples > 0
    assert found.sm_mhz > 200
    assert found.memory_mhz > 200
    assert 20 < found.power_w < 2000
    assert 10 < found.temperature_c < 100
    assert found.other_processes == 0
    assert found.in_band_mhz == pytest.approx(found.sm_mhz, rel=0.1)


def test_a_declared_kernel_that_is_not_launched_costs_the_rank() -> None:
    assert smoke(kernels="layer_norm").status is Status.OK

    record = smoke(kernels="my_very_own_kernel")

    assert record.status is Status.REJECTED
    assert Flag.FALLBACK in record.flags
    assert "no kernel matches 'my_very_own_kernel'" in record.err.msg


def test_kernels_that_the_profiler_slows_down_are_timed_without_it() -> None:
    compiled = torch.compile(torch_layer_norm, dynamic=False)
    x = torch.randn(65536, 4096, device="cuda", dtype=torch.bfloat16)
    weight, bias = torch.randn(2, 4096, device="cuda", dtype=torch.bfloat16)
    with torch.no_grad():
        compiled(x, weight, bias)
        ratios = []
        for _ in range(3):
            found = measure(compiled, [(x, weight, bias)], "cuda")
            assert (Flag.PROFILER_SLOWED in found.flags) == (found.latency.timer is Timer.EVENTS)
            timer = CudaTimer(compiled, (x, weight, bias), "cuda")
            ratios.append(found.latency.p50 / median(call.ms for call in timer.by_events(60)))

    # The profiler would add 4 to 6 % each time. The GPU's own clocks move as much once in a while, not three times.
    assert any(ratio == pytest.approx(1, rel=0.02) for ratio in ratios), ratios


@pytest.fixture(scope="module")
def peaks() -> dict[str, float]:
    return measure_peaks("cuda")


@pytest.fixture(scope="module")
def sentinels() -> dict[str, float]:
    return Sentinels("cuda").measure()


def test_traffic_peaks_are_near_one_another(peaks: dict[str, float]) -> None:
    traffic = [peaks[name] for name in ("read", "write", "copy", "triad")]

    assert min(traffic) > 100
    assert max(traffic) < 1.5 * min(traffic)
    assert max(traffic) < 10_000


def test_peaks_repeat_within_three_percent_and_matmuls_within_ten(peaks: dict[str, float]) -> None:
    again = measure_peaks("cuda")

    assert set(again) == set(peaks)
    ratios = {name: again[name] / peaks[name] for name in peaks}
    # A GPU that was just busy slows large matmuls down for power, but not memory.
    matmuls = {name for name in ratios if name.startswith("matmul")}
    assert all(abs(ratios[name] - 1) < 0.1 for name in matmuls), ratios
    assert all(abs(ratios[name] - 1) < 0.03 for name in ratios.keys() - matmuls), ratios


def test_sentinels_repeat_within_two_percent(sentinels: dict[str, float]) -> None:
    again = Sentinels("cuda").measure()

    for name in ("copy", "matmul"):
        assert again[name] == pytest.approx(sentinels[name], rel=0.02)
    assert sentinels["null"] < 0.01
    assert again["null"] == pytest.approx(sentinels["null"], abs=0.001)


def roofline_of(call: Any, size: int, peaks: dict[str, float], sentinels: dict[str, float]) -> RooflineResult:
    l2 = torch.cuda.get_device_properties("cuda").L2_cache_size
    work = Work(bytes_read=size, bytes_written=size, flops=1)
    return assess(work, median_ms(call, "cuda"), "bfloat16", Limits(peaks, sentinels["null"], l2))


@pytest.mark.parametrize("size", [4, 2**20, 2**24, 2**26, 2**28, 2**29])
def test_no_size_of_copy_is_above_the_roofline_and_a_large_one_reaches_the_peak(
    peaks: dict[str, float], sentinels: dict[str, float], size: int
) -> None:
    # Of single bytes the kernel reaches 78 % of the peak.
    x = torch.ones(size // 4, device="cuda", dtype=torch.int32)
    y = torch.empty_like(x)

    found = roofline_of(lambda: torch.bitwise_not(x, out=y), size, peaks, sentinels)

    assert found.above == ""
    if size == 4:
        assert found.regime is Regime.LAUNCH
    if size == 2**29:
        assert found.regime is Regime.HBM
        assert found.roofline.ceiling == "copy"
        assert 0.9 < found.roofline.fraction < 1.1
