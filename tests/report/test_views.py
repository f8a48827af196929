"""An operator with several views on a device: each is found, distinguished and shown briefly."""

import re

import pytest
from markup import text_of

OPERATOR = "activation/index.html"
COMBINED = "activation/results/combined_results.html"
HUB = "activation/impls/hf_kernels_activation.html"
VIEWS = [
    "SwiGLU · default",
    "SwiGLU · large",
    "SwiGLU · decode",
    "GELU · default",
    "GELU · large",
    "GELU · decode",
]


@pytest.fixture(scope="module")
def operator(many_pages):
    return many_pages[OPERATOR]


def folds(page, kind="view"):
    return [element for element in page.elements("details") if element.get("class") == kind]


def summary_of(fold):
    return text_of(next(fold.iter("summary")))


def tables(page, kind):
    return [table for table in page.elements("table") if kind in table.get("class", "").split()]


def test_the_first_view_of_a_device_is_open_and_the_others_are_folded(operator):
    found = folds(operator)
    (related,) = (nav for nav in operator.elements("nav") if nav.get("class") == "related")
    assert [text_of(link) for link in related.iter("a")] == ["Ranking", "Combined results"]
    assert ["open" in fold.attrib for fold in found] == [True, *[False] * 5, True, False]
    assert [summary_of(fold) for fold in found[:2]] == [
        "SwiGLU · default Triton activation 1.79×, 12 of 13 ranked",
        "SwiGLU · large Triton activation 1.79×, 11 of 13 ranked",
    ]


def test_each_view_has_its_own_ranking_chart_and_medians(operator):
    for fold in folds(operator):
        kinds = [table.get("class") for table in fold.iter("table")]
        assert kinds == ["ranking", "medians tight"]
        charts = [element for element in fold.iter() if str(element.tag).rpartition("}")[2] == "svg"]
        assert len(charts) == 1
        shown = {g.get("data-series") for g in charts[0].iter() if g.get("data-series")}
        ranked = {row.get("data-series") for row in fold.iter("tr") if row.get("data-series")}
        assert shown == ranked


def test_the_first_table_links_to_every_view_and_shows_its_fastest(operator):
    rows = [text_of(row) for row in tables(operator, "glance")[0].iter("tr")][1:]
    assert len(rows) == 8
    assert rows[0].startswith("NVIDIA H200 SwiGLU · default Triton activation 1.79×")
    assert rows[5].startswith("GELU · decode Triton activation 1.29×")
    assert rows[6].startswith("AMD EPYC, 2 cores SwiGLU · cpu")
    anchors = {"nvidia-h200", "nvidia-h200-gelu-decode", "amd-epyc-2-cores-gelu-cpu"}
    assert anchors <= {*operator.ids()}
    assert {f"#{anchor}" for anchor in anchors} <= {url for _, url in operator.references()}


def test_the_front_page_shows_chart_and_table_of_the_first_view_of_each_function_and_device(many_pages):
    page = many_pages["index.html"]
    first = ["SwiGLU · default", "GELU · default", "SwiGLU · cpu", "GELU · cpu"]
    facts = [text_of(one) for one in page.elements("p") if one.get("class") == "facts"]
    assert [fact.partition(" on ")[0] for fact in facts] == first
    assert facts[0] == "SwiGLU · default on NVIDIA H200 · 12 workloads · measured 2026-11-20"
    places = [one.get("data-view") for one in page.elements("div") if one.get("data-view")]
    gpu, cpu = "nvidia-h200", "amd-epyc-2-cores"
    assert places == [gpu, f"{gpu}-gelu-default", cpu, f"{cpu}-gelu-cpu"]
    assert ("a", "activation/index.html#nvidia-h200-gelu-default") in list(page.references())

    shown = tables(page, "implementations")
    assert len(shown) == 4
    rows = [text_of(row) for row in shown[0].iter("tr")]
    assert "1.46× [1.453, 1.466]" in next(row for row in rows if row.startswith("Quack"))
    assert "⊘ unsupported" in next(row for row in rows if row.startswith("Xformers"))


def test_the_combined_page_shows_all_four_charts_panel_by_panel(many_site, many_pages):
    page = many_pages[COMBINED]
    # That of latencies has the times from end to end, too.
    assert len(page.elements("svg")) == 5 * 8
    assert len(folds(page, "panel")) == 5 * 8 - 4
    said = " ".join(text_of(svg) for svg in page.elements("svg"))
    assert "ms" in said
    assert "GB/s" in said
    links = [a for svg in page.elements("svg") for a in svg.iter() if str(a.tag).rpartition("}")[2] == "a"]
    assert all((many_site / "activation/results" / link.get("href")).is_file() for link in links)


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


def test_an_implementation_page_has_every_view_and_the_origin_of_its_kernel(many_site, many_pages):
    page = many_pages[HUB]
    assert [summary_of(fold).partition(" ✓")[0] for fold in folds(page)] == [
        *VIEWS,
        "SwiGLU · cpu",
        "GELU · cpu",
    ]
    assert "rank 5" in summary_of(folds(page)[0])
    command = "run activation/impls/hf_kernels_activation.md --workloads default,large,decode --processes 3"
    assert f"kbt {command} # NVIDIA H200" in page.text
    for fact in (
        "kernels-community/activation@1",
        "Sourcelock",
        "feedfacefeed",
        "torch29-cxx11-cu130-x86_64-linux",
        "ab12ab12ab12ab12",
        "Signatureverified",
        "version 2 has no build here",
    ):
        assert fact in page.text, fact
    other = many_pages["activation/impls/triton_activation.html"]
    assert "Build SHA-256" not in other.text


def test_each_view_ranks_all_implementations_and_marks_the_fastest_of_each_workload(operator):
    for table in tables(operator, "ranking"):
        assert len(list(table.find("tbody").iter("tr"))) == 13
        assert re.search("⊘ unsupported 0/[0-9]+ ModuleNotFoundError: no such package here", text_of(table))
    medians = tables(operator, "medians")[0]
    assert "Xformers" not in text_of(medians)
    rows = list(medians.find("tbody").iter("tr"))
    shortest = [[text_of(cell) for cell in row.iter("td") if cell.get("class") == "shortest"] for row in rows]
    assert [[text.partition(" ")[2] for text in row] for row in shortest] == [["1.79× ▲"]] * 12


def test_a_report_with_many_views_has_no_flaws_and_stays_light(many_site, many_pages, find_flaws):
    assert find_flaws(many_site, many_pages) == []
    assert (many_site / OPERATOR).stat().st_size < 1_500_000
    assert (many_site / "index.html").stat().st_size < 60_000
