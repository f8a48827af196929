from collections import Counter
from xml.etree import ElementTree as ET

import html5lib
import matplotlib as mpl
import pytest
from made_records import record, source

from kernels_bench_tools.chart.figure import chart_svg
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.results.rows import Source
from kernels_bench_tools.results.summary import summarize

SVG = "{http://www.w3.org/2000/svg}"


def latency_svg(summary, pages=None) -> bytes:
    return chart_svg(summary, "latency", pages)


@pytest.fixture
def summary(field):
    return summarize("layer_norm", "Layer Norm", field)


@pytest.fixture
def svg(summary) -> ET.Element:
    return ET.fromstring(latency_svg(summary))


def group(svg: ET.Element, identifier: str) -> ET.Element:
    found = [element for element in svg.iter(f"{SVG}g") if element.get("id") == identifier]
    assert len(found) == 1, identifier
    return found[0]


def rows(summary):
    return [(device, row) for device in summary.devices for row in device.rows]


def test_every_implementation_of_every_device_has_a_series_and_a_legend_label(summary, svg):
    assert len(rows(summary)) == 12
    for device, row in rows(summary):
        for kind in ("series", "legend-label"):
            found = group(svg, f"{kind}--{row.slug}")

            assert found.get("class") == f"{kind} {kind}--{row.slug}"
            assert found.get("data-series") == row.slug
            assert found.get("data-device") == device.device.slug


def test_each_marker_carries_its_own_workload_and_value_past_failures(summary, svg):
    for _, row in rows(summary):
        uses = group(svg, f"series--{row.slug}").iter(f"{SVG}use")
        shown = [(use.get("data-workload"), use.get("data-value")) for use in uses if use.get("data-value")]

        passed = [point for point in row.points if point.status is Status.OK]
        assert shown == [(point.workload, f"{point.p50_ms:.6g}") for point in passed]


def test_failed_workloads_are_crosses_on_the_axis(summary, svg):
    row = next(row for row in summary.devices[0].rows if row.implementation == "liger_layer_norm")
    uses = [use for use in group(svg, f"series--{row.slug}").iter(f"{SVG}use") if use.get("data-status")]

    failed = [point.workload for point in row.points if point.status is not Status.OK]
    assert [use.get("data-workload") for use in uses] == failed
    assert {use.get("data-status") for use in uses} == {"oom"}
    assert len({use.get("y") for use in uses}) == 1


def test_crosses_of_one_workload_stand_side_by_side(summary, svg):
    places = [
        (panel.get("id"), use.get("x"), use.get("y"))
        for panel in svg.iter(f"{SVG}g")
        if panel.get("class") == "panel"
        for use in panel.iter(f"{SVG}use")
        if use.get("data-status")
    ]

    assert len(places) == 4
    assert max(Counter(places).values()) == 1


def test_an_implementation_that_did_not_run_is_in_the_legend_with_its_status(svg):
    label = group(svg, "legend-label--hf-kernels-layer-norm--nvidia-h200")

    assert "".join(label.itertext()).strip() == "HF Kernels Layer Norm (unsupported)"
    series = group(svg, "series--hf-kernels-layer-norm--nvidia-h200")
    assert list(series.iter(f"{SVG}use")) == []


def test_bands_are_drawn_for_rows_with_intervals(summary, svg):
    for _, row in rows(summary):
        if row.passed:
            assert group(svg, f"band--{row.slug}").get("data-series") == row.slug


def test_series_and_labels_link_to_the_implementations_page_once(summary, svg):
    for _, row in rows(summary):
        page = f"../impls/{row.implementation}.html"
        label = group(svg, f"legend-label--{row.slug}")
        series = group(svg, f"series--{row.slug}")

        assert [link.get("href") for link in label.iter(f"{SVG}a")] == [page]
        assert [link.get("href") for link in series.iter(f"{SVG}a")] == ([page] if row.passed else [])


def test_an_implementation_without_a_page_is_no_link(summary):
    svg = ET.fromstring(latency_svg(summary, {"torch_layer_norm": "x.html"}))

    assert {link.get("href") for link in svg.iter(f"{SVG}a")} == {"x.html"}


def test_the_chart_has_a_title(svg):
    texts = [text.text for text in svg.iter(f"{SVG}text")]

    assert "Layer Norm · NVIDIA H200" in texts
    assert "Layer Norm · AMD EPYC, 2 cores" in texts
    assert "↓ lower is better" in texts
    assert any(text and text.startswith("Latency (ms") for text in texts)
    assert (
        svg.find(f"{SVG}title").text == "Layer Norm: latency by workload on NVIDIA H200 and AMD EPYC, 2 cores"
    )
    assert svg.get("role") == "img"


def test_the_axis_is_logarithmic_from_a_factor_of_ten():
    def texts(times):
        drawn = ET.fromstring(latency_svg(summarize("x", "X", [source("a", times)])))
        return [text.text for text in drawn.iter(f"{SVG}text")]

    assert "Latency (ms)" in texts([0.1, 0.5])
    assert "Latency (ms, log scale)" in texts([0.1, 1.5])


def test_a_users_matplotlib_settings_change_nothing(summary):
    before = latency_svg(summary)
    with mpl.rc_context({"lines.linewidth": 9, "font.size": 30, "svg.fonttype": "path"}):
        assert latency_svg(summary) == before


def test_a_file_keeps_its_prolog_and_scales(summary):
    drawn = latency_svg(summary)
    svg = ET.fromstring(drawn)

    assert drawn.startswith(b'<?xml version="1.0" encoding="utf-8"?>\n')
    assert svg.get("viewBox")
    assert svg.get("width") is None
    assert svg.get("height") is None


def test_axes_and_texts_have_the_text_colour_of_the_page(summary):
    drawn = latency_svg(summary).decode()

    assert "currentColor" in drawn
    assert "#010203" not in drawn
    assert "#000000" not in drawn


def test_style_rules_reach_the_standalone_file_only(svg):
    rules = [rule for style in svg.iter(f"{SVG}style") for rule in style.text.split("}") if "{" in rule]

    assert rules
    assert all("#figure--layer-norm-latency:root" in rule for rule in rules)


def test_two_figures_in_one_page_keep_their_markers_and_ids(field):
    figures = [
        latency_svg(summarize("layer_norm", "Layer Norm", field)),
        latency_svg(summarize("rotary", "Rotary", [source("torch_rotary", [0.1, 0.2, 0.3])])),
    ]
    body = "".join(figure.decode().partition("\n")[2] for figure in figures)

    page = html5lib.parse(f"<!doctype html><title>t</title>{body}", namespaceHTMLElements=True)

    ids = [element.get("id") for element in page.iter() if element.get("id")]
    assert len(ids) == len(set(ids))
    targets = [use.get("href", "") for use in page.iter(f"{SVG}use")]
    assert len(targets) > 40
    assert {target.removeprefix("#") for target in targets} <= set(ids)


def test_every_reference_has_its_id(summary):
    drawn = latency_svg(summary).decode()
    svg = ET.fromstring(drawn)

    ids = {element.get("id") for element in svg.iter()}
    assert all(part.partition(")")[0] in ids for part in drawn.split("url(#")[1:])
    assert "xlink" not in drawn
    assert "<metadata" not in drawn


def test_names_that_differ_in_punctuation_only_have_series_of_their_own():
    names = ["my-kernel", "my_kernel", "漢", "字"]

    summary = summarize("x", "X", [source(name, [0.1]) for name in names])

    assert [row.slug for row in sorted(summary.devices[0].rows, key=lambda row: row.implementation)] == [
        "my-kernel--nvidia-h200",
        "my-kernel--nvidia-h200-2",
        "unnamed--nvidia-h200",
        "unnamed--nvidia-h200-2",
    ]
    assert "series--my-kernel--nvidia-h200-2" in latency_svg(summary).decode()


def test_hostile_names_stay_text():
    name = "<script>\x00 $x_1$ & \"'_漢字"
    summary = summarize("x", name, [source("a", [0.1, None], front={"title": f"_{name}"}, reason=name)])

    svg = ET.fromstring(latency_svg(summary))

    assert list(svg.iter(f"{SVG}script")) == []
    label = group(svg, "legend-label--a--nvidia-h200")
    assert "".join(label.itertext()).strip().startswith("_<script> $x_1$ & \"'_漢字")


def test_many_workloads_with_long_labels_are_drawn():
    records = [
        record("a", 0.1 * n, None, wl={"name": f"w{n}{c}", "n": n, "hidden": 10**9, "causal": c, "k": n})
        for n in range(1, 20)
        for c in (True, False)
    ]
    svg = ET.fromstring(latency_svg(summarize("x", "X", [Source(records=records)])))

    uses = group(svg, "series--a--nvidia-h200").iter(f"{SVG}use")
    assert len(list(uses)) == len(records)


def test_the_names_of_many_axes_are_cut_where_the_panel_ends():
    axes = {f"axis_with_a_long_name_{number}": number for number in range(9)}
    records = [record("a", 0.1, wl={"name": f"w{n}", "n": n, **axes}) for n in (1, 2)]
    drawn = latency_svg(summarize("x", "X", [Source(records=records)])).decode()

    assert "axis_with_a_long_name_0 0" in drawn
    assert "…" in drawn
    assert "axis_with_a_long_name_8" not in drawn


def test_a_chart_without_records_states_it():
    drawn = latency_svg(summarize("x", "Nothing", []))

    assert "Nothing: no records yet" in drawn.decode()


def test_a_device_on_which_nothing_ran_has_a_legend_only():
    drawn = latency_svg(summarize("x", "X", [source("a", status=Status.UNSUPPORTED, reason="no card")]))

    assert "A (unsupported)" in drawn.decode()
    assert "is better" not in drawn.decode()


@pytest.mark.parametrize("workloads", [3, 30])
def test_a_panel_ends_where_its_last_line_of_text_does(workloads):
    records = [
        record("a", 0.1, wl={"name": f"w{n}", "rows": 1000 * n, "columns": 1024 + n})
        for n in range(1, workloads)
    ]
    svg = ET.fromstring(latency_svg(summarize("x", "X", [Source(records=records)])))
    (panel,) = (found for found in svg.iter(f"{SVG}g") if found.get("class") == "panel")
    (label,) = (text for text in svg.iter(f"{SVG}text") if (text.text or "").startswith("rows × columns"))
    height = float(svg.get("viewBox").split()[3])

    below = float(panel.get("data-size").split()[1]) - float(label.get("y"))
    assert 2 <= below <= 16
    assert height == pytest.approx(float(panel.get("data-size").split()[1]), abs=0.1)


def test_panels_are_below_each_other_with_a_gap(svg):
    panels = [found for found in svg.iter(f"{SVG}g") if found.get("class") == "panel"]
    first, second = panels
    height = float(first.get("data-size").split()[1])

    assert "transform" not in first.attrib
    assert float(second.get("transform").rstrip(")").split()[1]) == pytest.approx(height + 72 * 0.3, abs=0.1)
