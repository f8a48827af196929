"""The host's times of a call on a GPU: in summaries, charts and tables, and in none of them on a CPU."""

from xml.etree import ElementTree as ET

import pytest
from devices import EPYC
from made_records import record, source

from kernels_bench_tools.chart.figure import chart_svg
from kernels_bench_tools.records.record import Quantities, Timing
from kernels_bench_tools.results.counted import Source
from kernels_bench_tools.results.summary import summarize
from kernels_bench_tools.stats import hierarchical_median

SUBMIT = [0.0041, 0.0052, 0.0047]
NAMES = {"host_submit_ms", "e2e_ms", "back_to_back_ms", "sealed_ms", "sustained_ms", "joules"}


@pytest.fixture
def summary():
    """Three processes on a GPU, and one on a CPU, which has no such times."""
    gpu = [
        record(
            "a",
            0.003,
            process=process,
            quantities=Quantities(
                host_submit=Timing(p50=submit, ci_low=submit - 0.0001, ci_high=submit + 0.0001),
                e2e=Timing(p50=0.0123),
                back_to_back=Timing(p50=0.0041),
                sealed=Timing(p50=0.0043),
                sustained=Timing(p50=0.0045, joules=0.001 * (process + 1)),
            ),
        )
        for process, submit in enumerate(SUBMIT)
    ]
    cpu = source("a", [4.1], device=EPYC).records
    return summarize("op", "Op", [Source(records=gpu), Source(records=cpu)])


def test_times_and_energy_are_medians_whose_interval_includes_the_variation_between_processes(summary):
    on_gpu, on_cpu = (view.rows[0].points[0] for view in summary.devices)
    expected = hierarchical_median([[ms] for ms in SUBMIT])

    assert on_gpu.host_submit_ms == 0.0047
    assert on_gpu.estimate("host_submit_ms") == pytest.approx(expected)
    assert on_gpu.estimate("host_submit_ms").low < min(SUBMIT)
    assert (on_gpu.value("joules"), on_cpu.value("joules")) == (0.002, None)


def test_only_views_with_these_times_have_their_columns_and_charts(summary):
    gpu, cpu = summary.devices
    panels = [it for it in ET.fromstring(chart_svg(summary, "latency")).iter() if it.get("data-chart")]

    assert {metric.name for metric in gpu.metrics} >= NAMES
    assert NAMES.isdisjoint(metric.name for metric in cpu.metrics)
    charts = ["latency", "latency", "host_submit", "e2e", "back_to_back", "sealed", "sustained", "joules"]
    assert [panel.get("data-chart") for panel in panels] == charts
    assert {panel.get("data-view") for panel in panels[2:]} == {gpu.device.slug}
