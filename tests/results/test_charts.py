from xml.etree import ElementTree as ET

import pytest
from made_records import record, source

from kernels_bench_tools.chart.figure import chart_svg, shows
from kernels_bench_tools.records.build import FrontMatter
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.record import Regime, Roofline, Status, Work
from kernels_bench_tools.results.metrics import Line, chart_files, view_metrics
from kernels_bench_tools.results.rows import Source
from kernels_bench_tools.results.summary import summarize

SVG = "{http://www.w3.org/2000/svg}"
CHARTS = chart_files()


def draw(summary, chart: str) -> ET.Element:
    return ET.fromstring(chart_svg(summary, chart))


def bound(fraction=0.8, ceilings=None, regime=Regime.HBM, ceiling="copy"):
    """Make a summary of an operator of two sizes that is bound by memory, unless these say otherwise."""
    near = Roofline(ceiling=ceiling, value=4000.0, fraction=fraction)
    known = {"copy": 4000.0} if ceilings is None else ceilings
    fields = {"regime": regime, "roofline": near, "ceilings": known}
    sizes = [{"name": f"n{n}", "set": "default", "n": n} for n in (1, 2)]
    base = [record("base", 0.4, wl=size, **fields) for size in sizes]
    ours = [record("ours", 0.2, wl=size, **fields) for size in sizes]
    return summarize("op", "Op", [Source(records=base), Source(records=ours)])


def uses(svg: ET.Element, slug: str) -> list[ET.Element]:
    (group,) = [it for it in svg.iter(f"{SVG}g") if it.get("id") == f"series--{slug}"]
    return [use for use in group.iter(f"{SVG}use") if use.get("data-value")]


def texts(svg: ET.Element) -> list[str]:
    return [text.text or "" for text in svg.iter(f"{SVG}text")]


@pytest.mark.parametrize("chart", CHARTS)
def test_every_chart_tags_every_row_of_the_views_that_it_shows(field, chart):
    summary = summarize("layer_norm", "Layer Norm", field)

    svg = draw(summary, chart)

    shown = [view for view in summary.devices if shows(view, chart)]
    slugs = [row.slug for view in shown for row in view.rows]
    for kind in ("series", "legend-label"):
        found = [group.get("data-series") for group in svg.iter(f"{SVG}g") if kind in _classes(group)]
        assert sorted(found) == sorted(slugs)
    assert svg.get("id") == f"figure--layer-norm-{chart}"


def _classes(group: ET.Element) -> list[str]:
    return group.get("class", "").split()


def test_speedups_carry_their_value_and_interval(field):
    summary = summarize("layer_norm", "Layer Norm", field)
    row = next(row for row in summary.devices[0].rows if row.implementation == "triton_layer_norm")

    svg = draw(summary, "speedup")

    for use, point in zip(uses(svg, row.slug), row.points, strict=True):
        shown = [float(use.get(f"data-{name}", "nan")) for name in ("value", "low", "high")]
        assert shown == pytest.approx([point.speedup, point.speedup_low, point.speedup_high], rel=1e-5)
    assert (svg.get("data-metric"), svg.get("data-unit")) == ("Speed-up", "x")


def test_the_interval_of_a_rate_is_the_inverted_interval_of_the_time():
    summary = bound()
    point = summary.devices[0].rows[0].points[0]

    use = uses(draw(summary, "rate"), summary.devices[0].rows[0].slug)[0]

    assert float(use.get("data-value")) == pytest.approx(point.gb_per_s, rel=1e-5)
    assert float(use.get("data-low")) == pytest.approx(
        point.gb_per_s * point.p50_ms / point.ci_high_ms, rel=1e-5
    )
    assert float(use.get("data-low")) < float(use.get("data-value")) < float(use.get("data-high"))


def test_failures_are_crossed_out_in_every_chart():
    fine = record("a", 0.1, wl={"name": "n1", "n": 1}, roofline=Roofline(ceiling="copy", value=1, fraction=1))
    lost = record("a", wl={"name": "n2", "n": 2}, status=Status.OOM, reason="out of memory")
    front = FrontMatter(baseline=True)
    summary = summarize("x", "X", [Source(records=[fine, lost], front=front)])

    for chart in CHARTS:
        crosses = [use for use in draw(summary, chart).iter(f"{SVG}use") if use.get("data-status")]
        assert [(use.get("data-workload"), use.get("data-status")) for use in crosses] == [("n2", "oom")]


def test_a_point_without_the_metric_is_a_gap_and_not_a_failure():
    launch = record("a", 0.002, wl={"name": "n1", "n": 1}, regime=Regime.LAUNCH)
    summary = summarize("x", "X", [Source(records=[launch, record("a", 0.4, wl={"name": "n2", "n": 2})])])

    svg = draw(summary, "rate")

    assert [use.get("data-workload") for use in uses(svg, "a--nvidia-h200")] == ["n2"]
    assert [use for use in svg.iter(f"{SVG}use") if use.get("data-status")] == []


def test_the_rate_of_a_mostly_compute_bound_view_is_arithmetic():
    arithmetic = bound(
        regime=Regime.COMPUTE, ceiling="matmul_bfloat16", ceilings={"copy": 4000.0, "matmul_bfloat16": 730.0}
    )

    svg = draw(arithmetic, "rate")

    assert any(text.startswith("Arithmetic (TFLOP/s") for text in texts(svg))
    assert "matmul bfloat16: 730 TFLOP/s" in texts(svg)
    assert "Bandwidth (GB/s)" in texts(draw(bound(), "rate"))


def test_the_measured_peak_is_a_labelled_line():
    assert "copy: 4,000 GB/s" in texts(draw(bound(), "rate"))


def test_the_peak_of_a_mix_follows_from_rate_and_fraction():
    view = bound(ceiling="mix", fraction=0.5).devices[0]
    rates = sorted(point.gb_per_s for row in view.rows for point in row.points)
    # Both implementations claim half of their ceiling, so the middle of the two is drawn.
    at = (rates[0] + rates[-1]) / 2 / 0.5

    (line,) = view_metrics(view)["rate"].lines(view)

    assert line == Line(pytest.approx(at), f"same mix of reads and writes: {at:,.0f} GB/s")


def test_without_a_measured_peak_there_is_no_line():
    view = summarize("x", "X", [Source(records=[record("a", 0.1)])]).devices[0]

    assert view_metrics(view)["rate"].lines(view) == ()


def test_the_axis_of_fractions_includes_one():
    svg = draw(bound(fraction=0.1), "fraction")

    assert "measured peak" in texts(svg)
    assert {"0", "0.2", "1"} <= set(texts(svg))


def test_a_view_without_a_number_has_no_panel():
    near = Roofline(ceiling="copy", value=4000.0, fraction=0.5)
    records = [
        record("a", 0.1, wl={"name": "w1", "set": "default"}, roofline=near),
        record("a", 0.1, wl={"name": "w2", "set": "decode"}, regime=Regime.LAUNCH),
    ]
    summary = summarize("x", "X", [Source(records=records)])

    assert "X · NVIDIA H200 · decode" in texts(draw(summary, "latency"))
    assert "X · NVIDIA H200 · default" in texts(draw(summary, "fraction"))
    assert "X · NVIDIA H200 · decode" not in texts(draw(summary, "fraction"))


def test_a_chart_without_panels_states_that_it_is_empty():
    summary = summarize("x", "X", [source("a", [0.1, 0.2])])

    assert texts(draw(summary, "speedup")) == ["X: nothing has a speed-up"]
    assert texts(draw(summary, "fraction")) == ["X: nothing has a fraction of peak"]


def test_each_series_has_its_unit_where_panels_differ():
    memory = record("a", 0.1, wl={"name": "w1", "set": "default"}, regime=Regime.HBM)
    work = Work(bytes_read=1, bytes_written=1, flops=10**12)
    arithmetic = record("a", 2.0, wl={"name": "w2", "set": "large"}, regime=Regime.COMPUTE, work=work)

    svg = draw(summarize("x", "X", [Source(records=[memory, arithmetic])]), "rate")

    units = {it.get("id"): it.get("data-unit") for it in svg.iter(f"{SVG}g") if "series" in _classes(it)}
    assert units == {"series--a--nvidia-h200": "GB/s", "series--a--nvidia-h200-large": "TFLOP/s"}
    assert svg.get("data-unit") is None


def test_an_implementation_looks_the_same_in_every_chart_and_view():
    near = Roofline(ceiling="copy", value=4000.0, fraction=0.5)
    records = [
        record(f"i{index}", 0.1, wl={"name": f"w{name}", "set": name}, roofline=near)
        for index in range(4)
        for name in ("default", "large")
    ]
    sources = [Source(records=[it for it in records if it.impl == f"i{index}"]) for index in range(4)]
    summary = summarize("x", "X", sources)

    colours: dict[str, set[str]] = {}
    for chart in ("latency", "rate", "fraction"):
        for group in draw(summary, chart).iter(f"{SVG}g"):
            if "series" in _classes(group):
                implementation = group.get("data-series", "").partition("--")[0]
                line = next(group.iter(f"{SVG}path")).get("style", "")
                colours.setdefault(implementation, set()).add(line)

    assert [len(styles) for styles in colours.values()] == [1] * 4
    assert len(set.union(*colours.values())) == 4


def test_six_views_of_thirteen_implementations_stay_below_900_kb():
    near = Roofline(ceiling="matmul_bfloat16", value=730.0, fraction=0.61803)
    sources = [
        Source(
            records=[
                record(
                    f"implementation_{index:02}",
                    0.1234567 * (index + at + 1),
                    wl={"name": f"attention_B1_S{at}", "set": f"set_{name}", "seq_len": 4096 + at},
                    roofline=near,
                    regime=Regime.COMPUTE,
                    ceilings={"matmul_bfloat16": 730.0},
                )
                for name in "abcdef"
                for at in range(24)
            ],
            front=FrontMatter(baseline=index == 0),
        )
        for index in range(13)
    ]
    summary = summarize("flash_attn", "Flash Attention", sources)

    assert len(summary.devices) == 6
    # The chart of latencies is the largest.
    assert len(chart_svg(summary, "latency")) < 900_000


def test_an_implementation_without_a_record_of_a_device_is_in_its_legends():
    cpu = Device(kind="cpu", name="A CPU", slug="a-cpu")
    sources = [source("old", [0.1, 0.2]), source("old", [1.0], device=cpu), source("new", [2.0], device=cpu)]

    assert "New (not measured)" in texts(draw(summarize("x", "X", sources), "latency"))
