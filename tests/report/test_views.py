"""An operator with several views on a device: each is found, distinguished and shown briefly."""

import json
from xml.etree import ElementTree as ET

import pytest
from markup import text_of

OPERATOR = "activation/index.html"
COMBINED = "activation/results/combined_results.html"


@pytest.fixture(scope="module")
def operator(many_pages):
    return many_pages[OPERATOR]


def folds(page, kind="view"):
    return [element for element in page.elements("details") if element.get("class") == kind]


def test_the_first_view_of_a_device_is_open_and_the_others_are_folded(operator):
    found = folds(operator)
    (related,) = (nav for nav in operator.elements("nav") if nav.get("class") == "related")
    assert [text_of(link) for link in related.iter("a")] == ["Ranking", "Combined results"]
    assert ["open" in fold.attrib for fold in found] == [True, *[False] * 5, True, False]
    assert [text_of(next(fold.iter("summary"))) for fold in found[:2]] == [
        "SwiGLU · default Triton activation 1.79×, 12 of 13 ranked",
        "SwiGLU · large Triton activation 1.79×, 11 of 13 ranked",
    ]


def test_each_view_has_its_own_ranking_chart_and_medians_and_charts_of_later_ones_are_loaded(
    many_site, operator
):
    script = (many_site / "activation/index.views.js").read_text("utf-8")
    found = json.loads(script.removeprefix("kbtData = ").removesuffix(";\n"))
    inside = []
    for fold in folds(operator):
        kinds = [table.get("class") for table in fold.iter("table")]
        assert kinds == ["ranking", "medians tight"]
        charts = [element for element in fold.iter() if str(element.tag).rpartition("}")[2] == "svg"]
        boxes = [element for element in fold.iter("div") if element.get("class") == "plot-box"]
        assert len(charts) + len(boxes) == 1
        inside.append(bool(charts))
        drawn = (
            charts[0]
            if charts
            else ET.fromstring(found[boxes[0].get("data-chart")][boxes[0].get("data-view")])
        )
        shown = {g.get("data-series") for g in drawn.iter() if g.get("data-series")}
        ranked = {row.get("data-series") for row in fold.iter("tr") if row.get("data-series")}
        assert shown == ranked
        assert {box.get("data-load") for box in boxes} <= {"index.views.js"}
    assert inside == [True] * 4 + [False] * 4


def test_the_first_table_links_to_every_view_and_shows_its_fastest(operator):
    [table] = (one for one in operator.elements("table") if "glance" in one.get("class", "").split())
    rows = [text_of(row) for row in table.iter("tr")][1:]
    assert len(rows) == 8
    assert rows[0].startswith("NVIDIA H200 SwiGLU · default Triton activation 1.79×")
    assert rows[5].startswith("GELU · decode Triton activation 1.29×")
    assert rows[6].startswith("AMD EPYC, 2 cores SwiGLU · cpu")
    anchors = {"nvidia-h200", "nvidia-h200-gelu-decode", "amd-epyc-2-cores-gelu-cpu"}
    assert anchors <= {*operator.ids()}
    assert {f"#{anchor}" for anchor in anchors} <= {url for _, url in operator.references()}


def test_every_panel_has_the_shapes_that_it_draws_with(many_site, many_pages):
    for path in (COMBINED, OPERATOR):
        page = many_pages[path]
        for svg in page.elements("svg"):
            own = {element.get("id") for element in svg.iter() if element.get("id")}
            uses = [e for e in svg.iter() if str(e.tag).rpartition("}")[2] == "use"]
            assert uses
            assert all(use.get("href", "")[1:] in own for use in uses)
            clips = [e.get("clip-path") for e in svg.iter() if e.get("clip-path")]
            assert all(clip[5:-1] in own for clip in clips)


def test_a_report_with_many_views_has_no_flaws_and_stays_light(many_site, many_pages, find_flaws):
    assert find_flaws(many_site, many_pages) == []
    assert (many_site / OPERATOR).stat().st_size < 1_500_000
    assert (many_site / "index.html").stat().st_size < 60_000
