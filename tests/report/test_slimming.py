"""A figure in a page is smaller than its file and draws the same."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ET

import pytest

from kernels_bench_tools.report.chart.drawing import SVG, read_drawing
from kernels_bench_tools.report.chart.outlines import short_path
from kernels_bench_tools.report.chart.slimming import slim

CIRCLE = (
    "M0 3.2C0.9 3.2 1.7 2.9 2.3 2.3C2.9 1.7 3.2 0.9 3.2 0C3.2 -0.9 2.9 -1.7 2.3 -2.3C1.7 -2.9 0.9 -3.2 0 -3.2"
    "C-0.9 -3.2 -1.7 -2.9 -2.3 -2.3C-2.9 -1.7 -3.2 -0.9 -3.2 0C-3.2 0.9 -2.9 1.7 -2.3 2.3C-1.7 2.9 -0.9 3.2 0 3.2z"
)


def slimmed(inner: str) -> ET.Element:
    root = read_drawing(f'<svg xmlns="http://www.w3.org/2000/svg"><g>{inner}</g></svg>'.encode())
    slim(root)
    return root


def corners(path: str) -> list[tuple[float, float]]:
    """Return where a path of lines has its corners."""
    found, at = [], (0.0, 0.0)
    for letter, x, y in re.findall(r"([MLl])(-?[\d.]+) (-?[\d.]+)", path):
        start = at if letter == "l" else (0.0, 0.0)
        at = (start[0] + float(x), start[1] + float(y))
        found.append(at)
    return found


@pytest.mark.parametrize(
    "path",
    [
        "M80.2 301.2L151.3 299.7L222.3 290L280.2 290.4L280.2 280z",
        "M1000.1 1000.2L1000.3 1000.1M2000.5 20L2000.6 21",
    ],
)
def test_lines_keep_their_corners_in_fewer_letters(path):
    short = short_path(path)

    assert len(short) < len(path)
    assert corners(short) == [pytest.approx(corner) for corner in corners(path)]


def test_a_circle_of_curves_becomes_one_of_arcs():
    assert short_path(CIRCLE) == "M0 3.2a3.2 3.2 0 1 0 0 -6.4a3.2 3.2 0 1 0 0 6.4z"


@pytest.mark.parametrize(
    "path",
    [
        CIRCLE.replace("2.3 2.3C2.9", "9.3 2.3C2.9"),
        "M1 2H30V4",
        "M1 2C1 2 3 4 5 6",
        "M1L2",
        "",
        "M0 0L1 x",
    ],
)
def test_other_outlines_stay_as_they_are(path):
    assert short_path(path) == path


def test_texts_that_follow_each_other_say_once_where_they_are_anchored():
    root = slimmed(
        '<text style="text-anchor:middle">a</text><text style="text-anchor:middle;opacity:0.9">b</text>'
        '<text style="text-anchor:end">c</text><text style="text-anchor:start">d</text>'
    )
    parents = {child: parent for parent in root.iter() for child in parent}
    texts = list(root.iter(f"{SVG}text"))

    assert [text.text for text in texts] == ["a", "b", "c", "d"]
    assert [text.get("style") for text in texts] == [None, "opacity:0.9", "text-anchor:end", None]
    assert parents[texts[0]].get("style") == parents[texts[1]].get("style") == "text-anchor:middle"
    assert parents[texts[2]].get("style") is None


def test_a_marker_names_its_workload_and_its_numbers_once():
    root = slimmed(
        '<g class="panel" data-scales=\'[{"name":"latency","per":0,"log":false,"lines":[]},null]\'>'
        '<use data-at="1" data-workload="w" data-value="2" data-low="1" data-high="3" data-all="4 3 5;;6"/>'
        '<use data-at="2" data-workload="x" data-value="7" data-all=";"/>'
        '<use data-at="3" data-workload="y" data-status="oom"/></g>'
    )
    panel = next(group for group in root.iter(f"{SVG}g") if group.get("class") == "panel")

    assert json.loads(panel.get("data-scales")) == [{"name": "latency"}, None]
    assert json.loads(panel.get("data-workloads")) == {"1": "w", "2": "x", "3": "y"}
    assert [use.attrib for use in panel.iter(f"{SVG}use")] == [
        {"data-at": "1", "data-all": "2 1 3;4 3 5;;6"},
        {"data-at": "2", "data-all": "7;;"},
        {"data-at": "3", "data-status": "oom"},
    ]


def test_a_line_of_the_usual_width_is_named_and_another_is_not():
    root = slimmed(
        '<path d="M0 0" style="fill:none;stroke:#0072b2;stroke-width:2;stroke-linecap:square"/>'
        '<path d="M0 0" style="fill:none;stroke:#0072b2;stroke-width:3;stroke-linecap:square"/>'
    )

    assert [(path.get("class"), path.get("style")) for path in root.iter(f"{SVG}path")] == [
        ("line", "stroke:#0072b2"),
        (None, "fill:none;stroke:#0072b2;stroke-width:3;stroke-linecap:square"),
    ]


def test_a_marker_s_shape_says_nothing_of_ink_that_its_group_says_as_well():
    root = slimmed(
        '<defs><path id="m" d="M0 0L1 1z" style="stroke:#111;opacity:0.5"/></defs>'
        '<g style="fill:#222;stroke:#111"><use href="#m" x="1" y="2"/></g>'
        '<use href="#m" x="3" y="4" style="stroke:#111"/>'
    )

    (shape,) = (path for path in root.iter(f"{SVG}path") if path.get("id") == "m")
    assert shape.get("style") == "opacity:0.5"


def test_values_of_markers_have_the_digits_that_are_shown():
    root = slimmed(
        '<g class="panel"><use href="#m" data-at="0" data-workload="w" data-value="0.00145287" data-low="1234.56"/></g>'
    )

    (marker,) = root.iter(f"{SVG}use")
    assert marker.get("data-all") == "0.001453 1234.56"
