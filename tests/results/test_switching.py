"""The data with which a page redraws a panel for another metric, and the regimes of its workloads."""

import json
from xml.etree import ElementTree as ET

import pytest

from kernels_bench_tools.chart.figure import chart_svg, scales_json, shows
from kernels_bench_tools.chart.panel import linear_axis, logarithmic_axis, regimes
from kernels_bench_tools.records.record import Regime, Status
from kernels_bench_tools.results.metrics import view_metrics
from kernels_bench_tools.results.summary import summarize

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def summary(field):
    return summarize("layer_norm", "Layer Norm", field)


def test_the_panel_of_a_view_has_the_scales_of_all_its_charts(summary):
    drawn = ET.fromstring(chart_svg(summary, "latency"))
    panels = [group for group in drawn.iter(f"{SVG}g") if group.get("class") == "panel"]

    assert len(panels) == len(summary.devices)
    for panel, view in zip(panels, summary.devices, strict=True):
        scales = json.loads(panel.get("data-scales"))
        assert [scale["name"] if scale else None for scale in scales] == [
            chart if shows(view, chart) else None for chart in view_metrics(view)
        ]
        assert scales == json.loads(scales_json(view))


def test_a_panel_in_which_nothing_passed_has_no_axes_to_switch(field):
    ran, wrong = field[0], field[6]  # one device each
    for record in wrong.records:
        record.status, record.ok = Status.REJECTED, False
    drawn = ET.fromstring(chart_svg(summarize("layer_norm", "Layer Norm", [ran, wrong]), "latency"))

    panels = [group for group in drawn.iter(f"{SVG}g") if group.get("class") == "panel"]

    assert ["data-scales" in panel.attrib for panel in panels] == [True, False]


def test_a_marker_has_its_numbers_of_every_chart(summary):
    drawn = ET.fromstring(chart_svg(summary, "latency"))
    row = next(row for row in summary.devices[0].rows if not row.baseline and row.speedup)
    group = next(it for it in drawn.iter(f"{SVG}g") if it.get("id") == f"series--{row.slug}")

    latency, speedup, *others = next(group.iter(f"{SVG}use")).get("data-all").split(";")

    assert len(others) == len(view_metrics(summary.devices[0])) - 2
    assert [float(number) for number in latency.split()] == pytest.approx(
        [row.points[0].p50_ms, row.points[0].ci_low_ms, row.points[0].ci_high_ms], rel=1e-3
    )
    assert float(speedup.split()[0]) == pytest.approx(row.points[0].speedup, rel=1e-3)


@pytest.mark.parametrize("found", [[0.001, 5000.0], [0.9, 1.1], [1.0], [3e-7, 4e-7]])
def test_both_axes_include_all_numbers_and_have_two_ticks(found):
    for axis in (linear_axis(found), logarithmic_axis(found)):
        assert axis.low <= min(found) <= max(found) <= axis.high
        assert len(axis.ticks) >= 2
        assert all(axis.low <= tick <= axis.high for tick in axis.ticks)


def test_a_workload_has_the_regime_of_most_implementations_that_passed_it(summary):
    view = summary.devices[0]
    for row in view.rows:
        for point in row.points:
            point.regime = Regime.LAUNCH
    view.rows[0].points[0].regime = Regime.HBM

    assert regimes(view) == [Regime.LAUNCH] * len(view.workloads)


def test_the_chart_names_the_regime_of_its_workloads(summary):
    for row in summary.devices[0].rows:
        for point in row.points:
            point.regime = Regime.HBM
    texts = [text.text for text in ET.fromstring(chart_svg(summary, "latency")).iter(f"{SVG}text")]

    assert "memory-bound" in texts
