"""The contents of the sample project's pages."""

import re

import msgspec
import pytest
from markup import text_of

from kernels_bench_tools.records.code import code_digest

OPERATOR = "layer_norm/index.html"
TRITON = "layer_norm/impls/triton_layer_norm.html"
COMBINED = "layer_norm/results/combined_results.html"


def row_of(page, table_class, text):
    table = next(table for table in page.elements("table") if table_class in table.get("class", "").split())
    rows = [text_of(row) for row in table.iter("tr")]
    return next(row for row in rows if text in row)


def test_every_link_id_and_heading_is_right(sample_site, find_flaws):
    assert find_flaws(sample_site) == []


def test_every_page_has_one_h1_a_content_policy_a_skip_link_and_loads_nothing_from_elsewhere(pages):
    loading = {"img", "script", "link", "use", "image", "iframe"}
    for page in pages.values():
        references = list(page.references())
        assert len(page.elements("h1")) == 1, page.path
        assert "default-src 'none'" in page.html
        assert ("a", "#main") in references
        if page.path != "selfcheck.html":
            assert any(url.endswith("selfcheck.html") for _, url in references), page.path
        loaded = [url for tag, url in references if tag in loading]
        assert loaded
        assert not [url for url in loaded if re.match(r"(https?:)?//", url)]


def test_a_rejected_implementation_has_a_reason_and_no_rank(pages):
    table = [table for table in pages[OPERATOR].elements("table") if table.get("class") == "ranking"][1]
    row = next(text_of(row) for row in table.iter("tr") if "Wrong" in text_of(row))
    assert row.startswith(
        "– Wrong layer norm – ⊗ rejected 0/2 work ran outside of the call work outside the call"
    )
    assert "×" not in row
    page = pages["layer_norm/impls/wrong_layer_norm.html"]
    assert "work for the call ran outside the timed region" in page.text


def test_the_combined_page_inlines_the_chart_and_shows_the_table(pages):
    page = pages[COMBINED]
    series = [group for group in page.elements("g") if "series" in group.get("class", "").split()]
    assert len(series) == 4 * 4
    assert series[0].get("data-title") == "Triton layer norm"
    assert "0.00172605" in row_of(page, "csv", "Triton")
    folded = {element.get("class"): "open" in element.attrib for element in page.elements("details")}
    assert folded == {"origins": False, "panel": False, "cell-code": False, "cell-stdout": False}


def test_artifacts_are_published_by_notebook_and_a_downloaded_chart_links_from_where_it_lies(sample_site):
    files = sorted(sample_site.glob("layer_norm/impls/artifacts/*/benchmark/layer_norm.jsonl"))
    assert len(files) == len({file.read_bytes() for file in files}) == 4
    folder = sample_site / "layer_norm/results/artifacts/combine"
    assert (folder / "latency.csv").is_file()
    links = re.findall(r'<a href="([^"]+)"', (folder / "latency.svg").read_text(encoding="utf-8"))
    assert links
    assert all((folder / link).is_file() for link in links)


def test_a_row_of_one_process_says_so_and_is_no_headline_figure(sample, read_page):
    sample.edit('"processes":3', '"processes":1', 1)
    sample.publish()
    site = sample.site

    rows = [row_of(read_page(site, OPERATOR), "ranking", name) for name in ("1 Triton", "PyTorch")]
    assert "1 to 3 processes" in rows[0]
    front = read_page(site, "index.html")
    winners = [text_of(one) for one in front.elements("span") if one.get("class") == "winner"]
    shown = [line for line in winners if "Triton layer norm" in line]
    assert shown == ["NVIDIA H200: Triton layer norm, measured in 1 process"]
    assert "1 to 3 processes" in row_of(front, "implementations", "Triton")
    assert not [one for one in front.elements("strong") if "×" in text_of(one)]


def test_a_limitation_is_in_the_ranking_and_on_the_page_of_the_implementation(sample, read_page, published):
    report = sample.read_summary()
    row = next(row for row in report.devices[0].rows if row.implementation == "triton_layer_norm")
    row.points[0].limitation, row.points[0].runs = "refuses odd <sizes> (ValueError: even only)", 6
    sample.write_summary(report)

    page = published(OPERATOR)
    (mark,) = (one for one in page.elements("span") if text_of(one) == "with limitations")
    assert mark.get("title") == "refuses odd <sizes> (ValueError: even only)"
    text = read_page(sample.site, TRITON).text
    assert "limitation refuses odd <sizes> (ValueError: even only) (" in text
    assert "3 processes latest of 6 runs" in text


@pytest.mark.parametrize("code", ["f = 1", "f = 2", None])
def test_only_a_row_whose_code_changed_is_marked_as_stale(sample, read_page, published, code):
    (cell,) = sample.notebook(TRITON.replace(".html", ".md")).cells
    cell.digest = code_digest("f = 2")
    file = sample.artifact("summary.json")
    measured = f'"cell":"{cell.id}","code_digest":"{code_digest(code)}",' if code else ""
    recorded = '"notebook":"layer_norm/impls/triton_layer_norm.md",'
    file.write_text(file.read_text().replace(recorded, recorded + measured))

    row = row_of(published(OPERATOR), "ranking", "1 Triton")
    page = read_page(sample.site, TRITON)
    assert ("stale" in row) == (code == "f = 1")
    assert any("Stale" in text_of(line) for line in page.elements("p")) == (code == "f = 1")


@pytest.mark.parametrize(
    ("path", "table", "row", "cells"),
    [
        ("index.html", "implementations", "Triton", ["0.003452 1.62× [1.612, 1.626]"]),
        ("index.html", "implementations", "HF Kernels", ["unsupported"]),
        (
            OPERATOR,
            "ranking",
            "1 Triton",
            ["1.62× [1.612, 1.626]", "✓ ok 4 ▲ faster", "host-bound 1/4", "0.003452"],
        ),
        (OPERATOR, "ranking", "2 PyTorch", ["1.00× ✓ ok ● baseline"]),
        (OPERATOR, "ranking", "– Wrong", ["≠ incorrect 0/4 largest error 0.5 exceeds the tolerance"]),
        (OPERATOR, "ranking", "– HF Kernels", ["⊘ unsupported 0/4 RuntimeError: no hub is reachable"]),
        (
            OPERATOR,
            "medians",
            "N2048_D4096",
            ["1.62× ▲ faster in cache, 94 % of copy", "[0.001102", "≠ incorrect"],
        ),
        (OPERATOR, "medians", "N2048_D8192", ["memory-bound, 94 % of copy"]),
        (
            TRITON,
            "records",
            "N2048_D4096",
            ["1.62× [1.607, 1.630] ▲ faster in cache 19,440 94 % of copy", "CUPTI"],
        ),
        (TRITON, "quantities", "N2048_D4096", ["0.001726 0.001398 0.001743 0.01230 0.02283 2,100 345 812"]),
    ],
)
def test_a_table_shows_what_was_measured(pages, path, table, row, cells):
    shown = row_of(pages[path], table, row)
    assert [cell for cell in cells if cell not in shown] == []
    assert not row.startswith("–") or "×" not in shown  # what has no rank has no speed-up


@pytest.mark.parametrize(
    ("path", "texts"),
    [
        ("index.html", ["NVIDIA H200: Triton layer norm, 1.62× over PyTorch layer norm"]),
        (OPERATOR, ["Measured peaks: read 4,380 GB/s · copy 4,270 GB/s · bfloat16 matmul 781 TFLOP/s"]),
        (OPERATOR, ["over PyTorch layer norm", "Each was measured in 3 processes."]),
        (TRITON, ["412.5 W", "0.5031 to 0.5034 ms", "host-bound submitting a call", "native code was not"]),
        (TRITON, ["580.95.05", "cold, flushed", "SM clock1980 MHz", "torch 2.13.0", "c0ffeec0ffee"]),
        (TRITON, ["kbt run layer_norm/impls/triton_layer_norm.md --processes 3 # NVIDIA H200"]),
        (TRITON, ["kbt run layer_norm/impls/triton_layer_norm.md --processes 1 # AMD EPYC, 2 cores"]),
        (TRITON, ["# a < b & c", "exit 0", "Measured2026-11-18"]),
    ],
)
def test_a_page_says_what_its_records_and_cells_say(pages, path, texts):
    assert [text for text in texts if text not in pages[path].text] == []
    assert "\x1b" not in pages[path].html


def test_the_front_page_opens_on_the_device_with_most_rows(sample, published):
    summary = sample.read_summary()
    [usual] = {view.device.slug for view in summary.devices if view.device.kind != "cpu"}
    view = next(view for view in summary.devices if view.device.slug == usual)
    other = msgspec.structs.replace(view.device, name="A new GPU", slug="a-new-gpu")
    few = msgspec.structs.replace(view, device=other, rows=view.rows[:1])
    sample.write_summary(msgspec.structs.replace(summary, devices=[*summary.devices, few]))

    inputs = published("index.html").elements("input")

    choices = {
        box.get("value"): box.get("checked") is not None for box in inputs if box.get("name") == "device"
    }
    assert min(choices) == "a-new-gpu"  # the first by name
    assert [slug for slug, checked in choices.items() if checked] == [usual]
