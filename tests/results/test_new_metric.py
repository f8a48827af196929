"""A metric is one entry: with it, every table, chart and page has the metric."""

import csv
import io
from xml.etree import ElementTree as ET

import pytest
from made_records import record

from kernels_bench_tools.chart.figure import chart_svg
from kernels_bench_tools.results import metrics
from kernels_bench_tools.results.counted import Source
from kernels_bench_tools.results.export import latency_csv, text_table
from kernels_bench_tools.results.metrics import Metric
from kernels_bench_tools.results.summary import summarize
from kernels_bench_tools.results.tables import charts

CALLS = Metric(
    *("calls_per_s", "Calls", "1/s", "higher"),
    from_record=lambda record: 1e3 / record.lat_ms.p50 if record.lat_ms else None,
    chart="calls",
)


@pytest.fixture
def summary(monkeypatch):
    monkeypatch.setattr(metrics, "METRICS", (*metrics.METRICS, CALLS))
    return summarize(
        "op", "Op", [Source(records=[record("fast", 0.1)]), Source(records=[record("slow", 0.4)])]
    )


def test_tables_have_a_column_and_there_is_a_chart(summary):
    lines = csv.DictReader(io.StringIO(latency_csv(summary)))
    drawn = ET.fromstring(chart_svg(summary, "calls"))

    assert {line["Impl ID"]: float(line["Calls (1/s)"]) for line in lines} == {"fast": 10_000, "slow": 2_500}
    assert "10,000 1/s" in text_table(summary)
    values = [use.get("data-value") for use in drawn.iter() if use.get("data-value")]
    assert sorted(map(float, values)) == [2_500, 10_000]


def test_pages_have_a_column_and_a_switch(summary, sample):
    (shown,) = summary.devices
    (info,) = (metric for metric in shown.metrics if metric.name == "calls_per_s")
    published = sample.read_summary()
    for view in published.devices:
        view.metrics.append(info)
        for point in (point for row in view.rows for point in row.points):
            point.more = {"calls_per_s": 2_500}
    sample.write_summary(published)

    sample.publish()

    for page in ("index.html", "impls/triton_layer_norm.html"):
        text = (sample.site / "layer_norm" / page).read_text(encoding="utf-8")
        assert 'Calls<span class="unit">1/s' in text
        assert ">2,500</td>" in text
    assert charts(summary.devices)["calls"][0] == "Calls"
