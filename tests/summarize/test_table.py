from __future__ import annotations

import msgspec
import pytest

from kernels_bench_tools.schema.record import Regime, Status
from kernels_bench_tools.summarize.sources import Source
from kernels_bench_tools.summarize.summary import summarize
from kernels_bench_tools.summarize.table import latency_text, rate_text, render_table, spread_text


def test_a_table_shows_ranks_medians_verdicts_and_reasons(field):
    text = render_table(summarize("layer_norm", "Layer Norm", field))

    assert "NVIDIA H200: 4 workloads, baseline PyTorch Layer Norm" in text
    assert "unsupported: the hub cannot be reached: name resolution failed" in text
    line = next(line for line in text.splitlines() if "Triton" in line and "faster" in line)
    words = [
        "Triton",
        "Layer",
        "Norm",
        "0.07020",
        "ms",
        "±0.2%",
        "1.72x",
        "[1.719,",
        "1.729]",
        "faster",
        "15,295",
        "GB/s",
    ]
    assert line.split() == words


def test_every_implementation_is_in_the_ranking_of_each_device(field):
    summary = summarize("layer_norm", "Layer Norm", field)

    for device in summary.devices:
        text = render_table(device)
        assert all(row.title in text for row in device.rows)


def test_a_device_on_which_nothing_ran_gives_reasons(source):
    text = render_table(summarize("x", "X", [source("a", status=Status.UNSUPPORTED, reason="no card")]))

    assert "0 workloads, no baseline ran here" in text
    assert "unsupported: no card" in text


def test_each_view_has_a_heading_of_its_own(record):
    records = [record("a", 0.1, wl={"name": f"w_{name}", "set": name}) for name in ("default", "large")]

    lines = render_table(summarize("x", "X", [Source(records=records)])).splitlines()

    assert "NVIDIA H200 · default: 1 workload, no baseline ran here" in lines
    assert "NVIDIA H200 · large: 1 workload, no baseline ran here" in lines


def test_a_long_reason_does_not_push_the_other_columns_apart(record):
    reason = "no kernel for this call: " + "heads of two sizes, " * 10 + "no"
    names = ["w_large", "w_small"]
    part = [
        record("a", 0.1, wl={"name": names[0]}),
        record("a", None, wl={"name": names[1]}, status=Status.UNSUPPORTED, reason=reason),
    ]
    whole = [record("b", 0.1, wl={"name": name}) for name in names]

    lines = render_table(summarize("x", "X", [Source(records=part), Source(records=whole)])).splitlines()

    assert any(reason in line for line in lines)
    assert all(len(line) < 100 for line in lines if reason not in line)


def test_arithmetic_below_ten_teraflops_is_told_in_gigaflops(record):
    point = next(iter(summarize("x", "X", [Source(records=[record("a", 0.1)])]).devices[0].rows)).points[0]

    slow = msgspec.structs.replace(point, regime=Regime.COMPUTE, tflop_per_s=0.061)

    assert rate_text(slow) == "61 GFLOP/s"
    assert rate_text(msgspec.structs.replace(slow, tflop_per_s=688.2)) == "688 TFLOP/s"


def test_no_records_are_told():
    assert render_table(summarize("x", "X", [])) == "X: no records.\n"


@pytest.mark.parametrize(
    ("ms", "text"), [(0.0702, "0.07020 ms"), (12.5, "12.50 ms"), (1234.4, "1234 ms"), (None, "–")]
)
def test_a_latency_has_the_digits_that_matter(ms, text):
    assert latency_text(ms) == text


def test_a_spread_is_the_longer_side_of_the_interval():
    assert spread_text(1.0, 0.99, 1.03) == "±3.0%"
    assert spread_text(1.0, None, None) == ""
