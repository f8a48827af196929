"""Cutting a figure into its panels, and leaving whole what cannot be cut."""

from __future__ import annotations

from xml.etree import ElementTree as ET

import pytest

from kernels_bench_tools.report.chart.panels import cut
from kernels_bench_tools.report.chart.svg import Setting, inline_figure

HEAD = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 220"><title>Latency</title><g>'
SHAPE = '<defs><path id="m" d="M0 0"/></defs>'


def axes(slug, shape=""):
    return f'<g>{shape}<g class="series" data-series="{slug}"><use href="#m"/></g></g>'


def heading(y, text="t"):
    return f'<g><text x="1" y="{y}">{text}</text></g>'


def figure(*parts):
    return HEAD + "".join(parts) + "</g></svg>"


def test_panels_reach_from_heading_to_heading():
    drawn = figure(axes("a", SHAPE), axes("b"), heading(20, "One"), heading(120, "Two"), heading(20, "lower"))

    cuts = cut(ET.fromstring(drawn))

    assert [(one.series, one.heading, one.root.get("viewBox")) for one in cuts] == [
        ("a", "One", "0 0 100 100"),
        ("b", "Two", "0 100 100 120"),
    ]


@pytest.mark.parametrize(("end", "height"), [("90", 90), ("0", 100), ("150", 100), ("soon", 100)])
def test_a_panel_ends_where_it_says_so_unless_that_is_outside_of_it(end, height):
    first = axes("a", SHAPE).replace("<g>", f'<g data-bottom="{end}">', 1)

    one, two = cut(ET.fromstring(figure(first, axes("b"), heading(20), heading(120))))

    assert one.root.get("viewBox") == f"0 0 100 {height}"
    assert two.root.get("viewBox") == "0 100 100 120"


def test_a_panel_gets_a_copy_of_a_shape_that_another_panel_defines():
    drawn = figure(axes("a", SHAPE), axes("b"), heading(20), heading(120))
    ids: set[str] = set()

    def unique(wanted):
        while wanted in ids:
            wanted += "x"
        ids.add(wanted)
        return wanted

    (one, two), _ = inline_figure(drawn.encode(), "latency.svg", Setting(unique, lambda url: url))

    assert 'id="m"' in one.figure
    assert 'href="#m"' in one.figure
    assert 'id="mx"' in two.figure
    assert 'href="#mx"' in two.figure


@pytest.mark.parametrize(
    "drawn",
    [
        figure(axes("a", SHAPE), heading(20)),
        figure(axes("a", SHAPE), axes("b"), heading(20)),
        figure(axes("a", SHAPE), axes("b")),
        figure(axes("a", SHAPE), axes("b"), heading("here"), heading("there")),
        figure(axes("a", SHAPE), axes("b"), heading(20), heading(120)).replace("viewBox", "data-box"),
        figure(axes("a", SHAPE), axes("b"), heading(20), heading(120)).replace(
            "0 0 100 220", "0 0 wide high"
        ),
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 1 1"/>',
    ],
)
def test_a_figure_of_one_panel_or_of_another_make_stays_whole(drawn):
    assert inline_figure(drawn.encode(), "latency.svg", Setting(str, lambda url: url))[0] == []
