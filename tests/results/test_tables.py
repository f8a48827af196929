"""What tables show besides rows: first calls, conditions and typical times."""

import pytest
from made_records import record as made_record

from kernels_bench_tools.records.device import cuda_device
from kernels_bench_tools.records.record import Clocks, FirstCall, Record, Status
from kernels_bench_tools.records.summary import Point, Row
from kernels_bench_tools.results.tables import details_of, typical

GPU = cuda_device("NVIDIA H200")


def record(device, process=0, **more) -> Record:
    return made_record("mine", 1.0, wl={"name": "w"}, device=device, process=process, **more)


def test_first_calls_are_those_of_the_process_with_the_median_time():
    calls = [FirstCall(first_ms=ms) for ms in (900, 5, 7)]

    found = details_of([record(GPU, number, first_call=call) for number, call in enumerate(calls)])

    assert found.first_calls["w"].first_ms == 7


def test_conditions_span_the_processes():
    clocks = [
        Clocks(sm_mhz=1980, power_w=300.0),
        Clocks(sm_mhz=1755, power_w=700.0, throttle=["SW_POWER_CAP"], other_processes=1),
    ]
    sentinels = [{"copy": [0.50 + number / 100, 0.51]} for number in range(2)]
    found = zip(clocks, sentinels, strict=True)
    records = [record(GPU, n, clocks=one, sentinels=ms) for n, (one, ms) in enumerate(found)]

    conditions = dict(details_of(records).conditions)

    assert conditions == {
        "SM clock": "1755 to 1980 MHz",
        "Power, highest": "300 to 700 W",
        "Throttled by": "SW_POWER_CAP",
        "Other processes": "1",
        "Sentinel copy": "0.5 to 0.51 ms",
    }


@pytest.mark.parametrize(
    ("first", "failed", "expected", "known"),
    [
        ((1.0, 0.9, 1.2), 0, (2.0, 1.8, 2.4), True),
        ((1.0, None, None), 0, (2.0,), False),
        ((1.0, 0.9, 1.2), 1, None, False),
    ],
)
def test_the_typical_time_is_the_geometric_mean_over_all_workloads(first, failed, expected, known):
    points = [
        Point(workload="w", status=Status.OK, p50_ms=p50, ci_low_ms=low, ci_high_ms=high)
        for p50, low, high in (first, (4.0, 3.6, 4.8))
    ]
    about = {"implementation": "a", "slug": "a", "title": "A", "status": Status.OK}
    found = typical(Row(**about, passed=2, total=2 + failed, points=points))

    assert (found and found[: len(expected)]) == (expected and pytest.approx(expected))
    assert (found is not None and found.known) is known
