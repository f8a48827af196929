"""Charts as files: what their elements are tagged with, and what they show."""

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from xml.etree import ElementTree as ET

import matplotlib as mpl
import pytest
from made_records import record, source

from kernels_bench_tools.chart import figure
from kernels_bench_tools.chart.figure import chart_svg, shows
from kernels_bench_tools.chart.palette import FAMILIES, assign_styles
from kernels_bench_tools.records.record import Regime, Roofline, Status
from kernels_bench_tools.results.counted import Source
from kernels_bench_tools.results.metrics import chart_files
from kernels_bench_tools.results.summary import summarize

SVG = "{http://www.w3.org/2000/svg}"
CHARTS = chart_files()


@pytest.fixture
def summary(field):
    return summarize("layer_norm", "Layer Norm", field)


@pytest.fixture
def svg(summary) -> ET.Element:
    return draw(summary)


def draw(summary, chart: str = "latency", *pages) -> ET.Element:
    return ET.fromstring(chart_svg(summary, chart, *pages))


def bound(fraction=0.8, ceilings=None, regime=Regime.HBM, ceiling="copy"):
    """Make a summary of an operator of two sizes that is bound by memory, unless these say otherwise."""
    near = Roofline(ceiling=ceiling, value=4000.0, fraction=fraction)
    known = {"copy": 4000.0} if ceilings is None else ceilings
    fields = {"regime": regime, "roofline": near, "ceilings": known}
    sizes = [{"name": f"n{n}", "set": "default", "n": n} for n in (1, 2)]
    base = [record("base", 0.4, wl=size, **fields) for size in sizes]
    ours = [record("ours", 0.2, wl=size, **fields) for size in sizes]
    return summarize("op", "Op", [Source(records=base), Source(records=ours)])


def rows_of(summary):
    return [row for view in summary.devices for row in view.rows]


def group(svg: ET.Element, identifier: str) -> ET.Element:
    (found,) = [element for element in svg.iter(f"{SVG}g") if element.get("id") == identifier]
    return found


def marks(element: ET.Element, name: str = "value") -> list[ET.Element]:
    return [use for use in element.iter(f"{SVG}use") if use.get(f"data-{name}")]


def panels(svg: ET.Element) -> list[ET.Element]:
    return [element for element in svg.iter(f"{SVG}svg") if element.get("class") == "panel"]


def texts(svg: ET.Element) -> list[str]:
    return [text.text or "" for text in svg.iter(f"{SVG}text")]


@pytest.mark.parametrize("chart", CHARTS)
def test_every_row_of_the_views_that_a_chart_shows_is_tagged(summary, chart):
    svg = draw(summary, chart)

    shown = [view for view in summary.devices if shows(view, chart)]
    slugs = sorted(row.slug for view in shown for row in view.rows)
    for kind, name in (
        ("series", "series"),
        ("legend-label", "legend-label"),
        ("legend-handle", "legend-label"),
    ):
        found = [one for one in svg.iter(f"{SVG}g") if one.get("id", "").startswith(f"{kind}--")]
        assert sorted(one.get("data-series") for one in found) == slugs
        assert all(one.get("class") == f"{name} {name}--{one.get('data-series')}" for one in found)


def test_each_marker_carries_its_own_workload_and_value_past_failures(summary, svg):
    for row in rows_of(summary):
        shown = [
            (use.get("data-workload"), use.get("data-value"))
            for use in marks(group(svg, f"series--{row.slug}"))
        ]

        passed = [point for point in row.points if point.status is Status.OK]
        assert shown == [(point.workload, f"{point.p50_ms:.6g}") for point in passed]
        if passed:
            assert group(svg, f"band--{row.slug}").get("data-series") == row.slug


def test_a_marker_has_only_attributes_with_a_value(summary):
    row = rows_of(summary)[0]
    row.points[0].ci_low_ms = None

    use = marks(group(draw(summary), f"series--{row.slug}"))[0]

    assert {name for name in use.attrib if name.startswith("data-")} == {"data-workload", "data-value"}


def test_the_interval_of_a_rate_is_the_inverted_interval_of_the_time():
    row = bound().devices[0].rows[0]
    point = row.points[0]

    use = marks(group(draw(bound(), "rate"), f"series--{row.slug}"))[0]

    low, high = (point.gb_per_s * point.p50_ms / end for end in (point.ci_high_ms, point.ci_low_ms))
    assert [float(use.get(f"data-{name}")) for name in ("value", "low", "high")] == pytest.approx(
        [point.gb_per_s, low, high], rel=1e-5
    )


def test_failed_workloads_are_crosses_on_the_axis_side_by_side(summary, svg):
    row = next(row for row in rows_of(summary) if row.implementation == "liger_layer_norm")
    crosses = marks(group(svg, f"failed--{row.slug}"), "status")
    places = [
        (number, use.get("x")) for number, panel in enumerate(panels(svg)) for use in marks(panel, "status")
    ]

    failed = [point.workload for point in row.points if point.status is not Status.OK]
    assert [(use.get("data-workload"), use.get("data-status")) for use in crosses] == [
        (it, "oom") for it in failed
    ]
    assert len({use.get("y") for use in crosses}) == 1
    assert {use.get("fill") for use in crosses} == {"none"}
    assert len(places) == 4
    assert max(Counter(places).values()) == 1


def test_the_chart_says_what_it_shows(svg):
    assert {"Layer Norm · NVIDIA H200", "Layer Norm · AMD EPYC, 2 cores", "↓ lower is better"} <= {
        *texts(svg)
    }
    assert any(text.startswith("Latency (ms") for text in texts(svg))
    assert (
        svg.find(f"{SVG}title").text == "Layer Norm: latency by workload on NVIDIA H200 and AMD EPYC, 2 cores"
    )


@pytest.mark.parametrize(
    ("times", "title"), [([0.1, 0.5], "Latency (ms)"), ([0.1, 1.5], "Latency (ms, log scale)")]
)
def test_the_axis_is_logarithmic_from_a_factor_of_ten(times, title):
    assert title in texts(draw(summarize("x", "X", [source("a", times)])))


@pytest.mark.parametrize("times", [[0.001, 5000.0], [0.9, 1.1], [1.0], [3e-7, 4e-7]])
def test_an_axis_has_numbers_and_markers_their_order(times):
    svg = draw(summarize("x", "X", [source("a", times)]))
    ticks = [text for text in svg.iter(f"{SVG}text") if text.get("style") == "text-anchor: end"]
    numbers = [float(text.text.replace(",", "")) for text in ticks]

    assert len(numbers) >= 2
    assert numbers == sorted(set(numbers))
    heights = [float(use.get("y")) for use in marks(svg)]
    assert sorted(heights, reverse=True) == [y for _, y in sorted(zip(times, heights, strict=True))]


def test_the_rate_of_a_mostly_compute_bound_view_is_arithmetic_and_the_measured_peak_a_labelled_line():
    arithmetic = bound(
        regime=Regime.COMPUTE, ceiling="matmul_bfloat16", ceilings={"copy": 4000.0, "matmul_bfloat16": 730.0}
    )

    svg = draw(arithmetic, "rate")

    assert any(text.startswith("Arithmetic (TFLOP/s") for text in texts(svg))
    assert "matmul bfloat16: 730 TFLOP/s" in texts(svg)
    assert {"Bandwidth (GB/s)", "copy: 4,000 GB/s"} <= {*texts(draw(bound(), "rate"))}


@pytest.mark.parametrize(
    ("sources", "chart", "shown"),
    [
        ([], "latency", ["X: no records yet"]),
        ([source("a", [0.1])], "speedup", ["X: nothing has a speed-up"]),
        ([source("a", [0.1])], "fraction", ["X: nothing has a fraction of peak"]),
        # A legend only.
        ([source("a", status=Status.UNSUPPORTED)], "latency", ["X · NVIDIA H200", "A (unsupported)"]),
    ],
)
def test_a_chart_or_a_device_without_a_number_says_so(sources, chart, shown):
    assert texts(draw(summarize("x", "X", sources), chart)) == shown


def test_an_implementation_looks_the_same_in_every_chart_and_view():
    near = Roofline(ceiling="copy", value=4000.0, fraction=0.5)
    sources = [
        Source(
            records=[
                record(f"i{index}", 0.1, wl={"name": f"w{name}", "set": name}, roofline=near)
                for name in ("default", "large")
            ]
        )
        for index in range(4)
    ]
    summary = summarize("x", "X", sources)

    colours: dict[str, set[str]] = {}
    for chart in ("latency", "rate", "fraction"):
        drawn = draw(summary, chart)
        for row in rows_of(summary):
            line = next(group(drawn, f"series--{row.slug}").iter(f"{SVG}path"))
            colours.setdefault(row.implementation, set()).add(line.get("style", ""))

    assert [len(styles) for styles in colours.values()] == [1] * 4
    assert len(set.union(*colours.values())) == 4


def test_a_users_matplotlib_settings_change_nothing(summary):
    before = chart_svg(summary, "latency")
    with mpl.rc_context({"lines.linewidth": 9, "font.size": 30, "svg.fonttype": "path"}):
        assert chart_svg(summary, "latency") == before


def test_only_panels_with_a_change_are_drawn_again_and_the_file_is_the_same(summary, monkeypatch):
    before, drawn = chart_svg(summary, "latency"), []
    draw_panel = figure.draw_panel
    monkeypatch.setattr(figure, "draw_panel", lambda *of: drawn.append(of[1].device.slug) or draw_panel(*of))
    assert chart_svg(summary, "latency", before=before) == before
    assert drawn == []
    assert chart_svg(summary, "latency", before=b"\xff\n" + before) == before

    row = summary.devices[1].rows[0]
    row.points[0].p50_ms *= 2
    changed = chart_svg(summary, "latency", before=before)
    assert {*drawn} == {summary.devices[1].device.slug}
    assert changed == chart_svg(summary, "latency") != before

    drawn.clear()
    assert chart_svg(summary, "latency", {}, changed) == chart_svg(summary, "latency", {})
    assert {*drawn} == {device.device.slug for device in summary.devices}, "links are part of a panel"


@pytest.mark.skipif(sys.platform != "linux", reason="other systems draw in one process")
@pytest.mark.parametrize("killed", ["", "figure._draw = killed"], ids=["whole", "killed"])
def test_processes_that_share_the_panels_draw_the_same_and_one_draws_what_a_killed_one_did_not(killed):
    script = """
import os, sys
from concurrent.futures import ProcessPoolExecutor
from many_views import make_summary
from kernels_bench_tools.chart import figure

class Pool(ProcessPoolExecutor):
    def __init__(self, *arguments):
        print(arguments[0])
        super().__init__(*arguments)

def killed(number):
    os.kill(os.getpid(), 9)

summary, figure.ProcessPoolExecutor = make_summary(), Pool
summary.devices = summary.devices[:3]
os.sched_getaffinity = lambda pid: {0, 1}
alone = figure.chart_svg(summary, "latency")
figure._WORTH_A_PROCESS = 1
KILLED
assert figure.chart_svg(summary, "latency") == alone
"""
    shared = str(Path(__file__).parents[1] / "shared")
    done = subprocess.run(
        [sys.executable, "-c", script.replace("KILLED", killed)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": shared},
    )

    assert (done.returncode, done.stdout) == (0, "2\n"), done.stderr


def test_axes_and_texts_have_the_text_colour_of_the_page_or_of_the_readers_scheme(summary, svg):
    drawn = chart_svg(summary, "latency").decode()

    assert "currentColor" in drawn
    assert "#000000" not in drawn
    # A rule for the root matches in the file only: panels are shown on pages without it.
    assert [style.text.startswith(":root{") for style in svg.iter(f"{SVG}style")] == [True]


def test_hostile_names_stay_text():
    name = "<script>\x00 $x_1$ & \"'_漢字"
    summary = summarize("x", name, [source("a", [0.1, None], front={"title": f"_{name}"}, reason=name)])

    svg = draw(summary)

    assert list(svg.iter(f"{SVG}script")) == []
    label = group(svg, "legend-label--a--nvidia-h200")
    assert "".join(label.itertext()).strip().startswith("_<script> $x_1$ & \"'_漢字")


@pytest.mark.parametrize(
    ("families", "looks"),
    [
        ({f"torch_{number}": "torch" for number in range(16)} | {f"own_{n}": "" for n in range(16)}, 32),
        ({family: family for family in FAMILIES} | {f"more_{n}": "" for n in range(3)}, 14),
    ],
)
def test_no_two_lines_of_a_chart_look_alike(families, looks):
    styles = assign_styles(families).values()

    assert len({(style.colour, style.dashes) for style in styles}) == looks
    assert len({(style.colour, style.marker) for style in styles}) == looks


def test_a_failed_family_member_does_not_change_colours():
    few = assign_styles({"torch_x": "torch", "triton_x": "triton"})
    more = assign_styles({"torch_x": "torch", "triton_x": "triton", "liger_x": "liger", "hf_x": "hf-kernels"})

    assert few.items() <= more.items()
