"""First calls and conditions, read from records."""

from pathlib import Path

from builds import latency

from kernels_bench_tools.records.codec import write_records
from kernels_bench_tools.records.device import cuda_device
from kernels_bench_tools.records.record import Clocks, FirstCall, Record
from kernels_bench_tools.results.tables import device_details

GPU, OTHER = cuda_device("NVIDIA H200"), cuda_device("NVIDIA L4")


def record(device, process=0, **more) -> Record:
    given = {
        "ts": "",
        "run": "r",
        "impl": "mine",
        "wl": {"name": "w"},
        "lat_ms": latency(),
        "ok": True,
    } | more
    return Record(device=device, process=process, **given)


def commit(root: Path, *records: Record) -> None:
    write_records(root / "op/results/records" / records[0].device.slug / "mine.jsonl", records)


def committed(root: Path) -> list[Path]:
    return sorted((root / "op/results/records").glob("*/mine.jsonl"))


def made(root: Path, *records: Record) -> Path:
    file = root / "cache/op.jsonl"
    write_records(file, records)
    return file


def test_committed_records_are_used_for_devices_without_records_of_this_build(tmp_path):
    commit(tmp_path, record(OTHER, first_call=FirstCall(first_ms=5)))
    calls = [FirstCall(first_ms=ms) for ms in (900, 5, 7)]
    artifact = made(tmp_path, *(record(GPU, number, first_call=call) for number, call in enumerate(calls)))

    found = device_details(committed(tmp_path), [artifact])

    assert {slug: one.first_calls["w"].first_ms for slug, one in found.items()} == {
        OTHER.slug: 5,
        GPU.slug: 7,
    }


def test_conditions_span_the_processes(tmp_path):
    clocks = [
        Clocks(sm_mhz=1980, power_w=300.0),
        Clocks(sm_mhz=1755, power_w=700.0, throttle=["SW_POWER_CAP"], other_processes=1),
    ]
    sentinels = [{"copy": [0.50 + number / 100, 0.51]} for number in range(2)]
    found = zip(clocks, sentinels, strict=True)
    commit(tmp_path, *(record(GPU, n, clocks=one, sentinels=ms) for n, (one, ms) in enumerate(found)))

    conditions = dict(device_details(committed(tmp_path), [])[GPU.slug].conditions)

    assert conditions == {
        "SM clock": "1755 to 1980 MHz",
        "Power, highest": "300 to 700 W",
        "Throttled by": "SW_POWER_CAP",
        "Other processes": "1",
        "Sentinel copy": "0.5 to 0.51 ms",
    }
