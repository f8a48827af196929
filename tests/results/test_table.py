import msgspec
from made_records import record

from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import Point
from kernels_bench_tools.results.export import text_table
from kernels_bench_tools.results.metrics import LATENCY
from kernels_bench_tools.results.sources import Source
from kernels_bench_tools.results.summary import summarize


def test_a_table_shows_ranks_medians_verdicts_and_reasons(field):
    text = text_table(summarize("layer_norm", "Layer Norm", field))

    assert "NVIDIA H200: 4 workloads, baseline PyTorch Layer Norm" in text
    assert "unsupported: the hub cannot be reached: name resolution failed" in text
    line = next(line for line in text.splitlines() if "Triton" in line and "no verdict" in line)
    words = [
        "Triton",
        "Layer",
        "Norm",
        "0.07020",
        "ms",
        "±0.2",
        "%",
        "1.72×",
        "[1.719,",
        "1.729]",
        "no",
        "verdict",
        "15,295",
        "GB/s",
    ]
    assert line.split() == words


def test_each_view_has_a_heading_of_its_own():
    records = [record("a", 0.1, wl={"name": f"w_{name}", "set": name}) for name in ("default", "large")]

    lines = text_table(summarize("x", "X", [Source(records=records)])).splitlines()

    for name in ("default", "large"):
        heading = f"NVIDIA H200 · {name}: 1 workload, no baseline ran here, 1 process: no verdict"
        assert heading in lines


def test_a_long_reason_does_not_push_the_other_columns_apart():
    reason = "no kernel for this call: " + "heads of two sizes, " * 10 + "no"
    names = ["w_large", "w_small"]
    part = [
        record("a", 0.1, wl={"name": names[0]}),
        record("a", None, wl={"name": names[1]}, status=Status.UNSUPPORTED, reason=reason),
    ]
    whole = [record("b", 0.1, wl={"name": name}) for name in names]

    lines = text_table(summarize("x", "X", [Source(records=part), Source(records=whole)])).splitlines()

    assert any(reason in line for line in lines)
    assert all(len(line) < 100 for line in lines if reason not in line)


def test_the_spread_of_a_latency_is_the_longer_side_of_its_interval():
    point = Point(workload="w", status=Status.OK, p50_ms=1.0, ci_low_ms=0.99, ci_high_ms=1.03)

    assert LATENCY.print(point) == "1.000 ms ±3.0 %"
    assert LATENCY.print(Point(workload="w", status=Status.OK, p50_ms=1234.4)) == "1,234 ms"


def test_lines_fit_into_80_characters_with_fewer_columns_and_no_word_is_cut(field):
    summary = summarize("layer_norm", "Layer Norm", field)
    wide, narrow = text_table(summary), text_table(summary, 80)

    assert max(map(len, narrow.splitlines())) <= 80
    assert max(map(len, wide.splitlines())) > 80
    assert set(narrow.split()) <= set(wide.split()) | {"CPU"}
    assert "1 process: no verdict" in " ".join(narrow.split())


def test_the_only_device_is_named_once(field):
    sources = [
        Source(
            records=[
                msgspec.structs.replace(one, wl={"name": f"w_{name}", "set": name}) for one in made.records
            ]
        )
        for made in field[:2]
        for name in ("default", "large")
    ]
    text = text_table(summarize("x", "X", sources), 80)

    assert text.count("NVIDIA H200") == 1
