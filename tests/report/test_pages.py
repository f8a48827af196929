"""The contents of the sample project's pages."""

import re

import pytest
from markup import text_of

from kernels_bench_tools.records.build import code_digest
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import Verdict

OPERATOR = "layer_norm/index.html"
TRITON = "layer_norm/impls/triton_layer_norm.html"
COMBINED = "layer_norm/results/combined_results.html"


def row_of(page, table_class, text):
    table = next(table for table in page.elements("table") if table_class in table.get("class", "").split())
    rows = [text_of(row) for row in table.iter("tr")]
    return next(row for row in rows if text in row)


def cell_of(page, implementation, workload):
    """What the first table of medians says of an implementation on a workload."""
    table = next(table for table in page.elements("table") if "medians" in table.get("class", "").split())
    columns = [text_of(head) for head in table.find("thead").iter("th")]
    at = next(index for index, text in enumerate(columns) if text.startswith(implementation))
    row = next(row for row in table.find("tbody").iter("tr") if text_of(row).startswith(workload))
    return text_of(list(row)[at])


def test_every_link_id_and_heading_is_right(sample_site, find_flaws):
    assert find_flaws(sample_site) == []


def test_no_page_loads_anything_from_elsewhere(pages):
    loading = {"img", "script", "link", "use", "image", "iframe"}
    urls = [url for page in pages.values() for tag, url in page.references() if tag in loading]
    assert urls
    assert not [url for url in urls if re.match(r"(https?:)?//", url)]


def test_every_page_has_one_h1_a_content_policy_and_a_skip_link(pages):
    for page in pages.values():
        assert len(page.elements("h1")) == 1, page.path
        assert "default-src 'none'" in page.html
        assert ("a", "#main") in list(page.references())


def test_the_front_page_lists_its_chapters_in_order(pages):
    contents = next(
        element for element in pages["index.html"].elements("ul") if element.get("class") == "contents"
    )
    assert [link.text for link in contents.iter("a")] == [
        "Methodology",
        "Layer Normalization",
        "Kernels of the Hugging Face Hub",
        "Notes",
    ]


def test_the_front_page_shows_chart_table_and_link_of_the_operator(pages):
    page = pages["index.html"]
    (image,) = (one for one in page.elements("img"))
    assert image.get("src") == "layer_norm/results/artifacts/combine/latency.svg"
    assert image.get("style").startswith("aspect-ratio: 691.2 / ")
    assert "1.62×" in row_of(page, "implementations", "Triton")
    assert "unsupported" in row_of(page, "implementations", "HF Kernels")
    assert ("a", OPERATOR) in list(page.references())
    assert not page.elements("form")
    assert "onclick" not in page.html


def test_a_ranking_names_the_baseline_and_keeps_failures_with_their_reason(pages):
    page = pages[OPERATOR]
    assert "over PyTorch layer norm" in page.text
    row = row_of(page, "ranking", "Triton")
    noted = "host-bound host-bound 1/4: submitting a call takes longer than the device needs for it"
    assert row.startswith(f"1 Triton layer norm 1.62× [1.612, 1.626] ✓ ok 4 ▲ faster {noted} 0.003452")
    assert row.endswith("19,440 94 % 812.5 64 MiB 0.0156")
    failed = row_of(page, "ranking", "HF Kernels")
    assert failed.startswith("– ")
    assert "⊘ unsupported 0/4 RuntimeError: no hub is reachable" in failed


def test_an_incorrect_implementation_has_no_rank_and_no_speedup(pages):
    row = row_of(pages[OPERATOR], "ranking", "Wrong")
    assert row.startswith("– ")
    assert "≠ incorrect 0/4 largest error 0.5 exceeds the tolerance" in row
    assert "×" not in row
    assert cell_of(pages[OPERATOR], "Wrong layer norm", "N2048_D4096").startswith(
        "0.001118 [0.001102, 0.001141] ≠ incorrect"
    )


def test_a_ranking_has_the_hosts_times_of_a_gpu_and_no_columns_for_them_on_a_cpu(pages):
    gpu, cpu = [
        text_of(table) for table in pages[OPERATOR].elements("table") if table.get("class") == "ranking"
    ]

    assert "Host submitms End to endms" in gpu
    assert "0.01230 ±21 % 0.02491" in gpu
    assert "Host submit" not in cpu
    assert "End to end" not in cpu


def test_the_baseline_is_labelled_beside_its_status(pages):
    assert row_of(pages[OPERATOR], "ranking", "2 PyTorch").startswith(
        "2 PyTorch layer norm 1.00× ✓ ok ● baseline"
    )


def test_a_rejected_implementation_has_a_reason_and_no_rank(pages):
    table = [table for table in pages[OPERATOR].elements("table") if table.get("class") == "ranking"][1]
    row = next(text_of(row) for row in table.iter("tr") if "Wrong" in text_of(row))
    assert row.startswith(
        "– Wrong layer norm – ⊗ rejected 0/2 work ran outside of the call work outside the call"
    )
    assert "×" not in row
    page = pages["layer_norm/impls/wrong_layer_norm.html"]
    assert "work for the call ran outside the timed region" in page.text


def test_the_overview_comes_before_ranking_and_medians(pages):
    html = pages[OPERATOR].html
    assert html.index('class="glance"') < html.index('class="ranking"') < html.index('class="medians"')


def test_a_chart_without_panels_is_shown_whole_and_once(sample, published):
    drawing = '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 9 9"><path d="M 0 0 L 9 9"/></svg>'
    sample.artifact("latency.svg").write_text(drawing, encoding="utf-8")
    page = published(OPERATOR)
    images = [url for tag, url in page.references() if tag == "img"]
    assert images == ["results/artifacts/combine/latency.svg"]


def test_measured_peaks_of_a_device_are_shown(pages):
    assert (
        "Measured peaks: read 4,380 GB/s · copy 4,270 GB/s · bfloat16 matmul 781 TFLOP/s"
        in pages[OPERATOR].text
    )


def test_medians_show_regime_and_fraction_of_peak(pages):
    page = pages[OPERATOR]
    assert "Each was measured in 3 processes." in page.text
    assert cell_of(page, "Triton", "N2048_D4096").endswith("1.62× ▲ faster in cache, 94 % of copy")
    assert cell_of(page, "Triton", "N2048_D8192").endswith("memory-bound, 94 % of copy")


def test_an_implementation_page_has_all_five_times_and_the_conditions(pages):
    page = pages["layer_norm/impls/triton_layer_norm.html"]
    row = row_of(page, "quantities", "N2048_D4096")
    assert row == "N2048_D4096 0.001726 0.001398 0.001743 0.01230 0.02283 2,100 345 812 0.0123"
    assert "SM clock1965 MHz" in page.text.replace(" 1965", "1965")
    for told in (
        "412.5 W",
        "0.5031 to 0.5034 ms",
        "host-bound submitting a call takes longer",
        "native code was not",
    ):
        assert told in page.text


def test_an_implementation_page_shows_the_largest_kernel_of_a_call_of_several(sample, published):
    sample.edit('"kernel_ms":null', '"kernel_ms":0.00125')
    page = published("layer_norm/impls/triton_layer_norm.html")
    assert row_of(page, "quantities", "N2048_D4096").startswith("N2048_D4096 0.001726 0.001250 0.001398")
    assert "Largest kernel" in page.text


def test_an_implementation_page_only_names_devices_that_did_not_measure_it(sample, published):
    summary = sample.read_summary()
    first = summary.devices[0].device
    for view in summary.devices:
        if view.device.slug == first.slug:
            for row in view.rows:
                row.status = Status.ABSENT if row.implementation == "triton_layer_norm" else row.status
    sample.write_summary(summary)
    page = published(TRITON)
    devices = [heading.get("id") for heading in page.elements("h3")]
    assert {view.device.slug for view in summary.devices} - {first.slug} == {*devices}
    assert f"Not measured on {first.name}." in page.text


def test_a_time_above_the_roofline_is_labelled(sample, published):
    sample.edit('"incorrect"', '"exceeds_physics"')
    row = row_of(published(OPERATOR), "ranking", "Wrong")
    assert row.startswith("– Wrong layer norm – ≫ above the roofline")


def test_chapters_of_the_description_come_after_the_results(pages):
    text = pages[OPERATOR].html
    assert text.index("What it computes.") < text.index(">Results<") < text.index(">Formula<")


def test_every_device_has_its_own_tables(pages):
    page = pages[OPERATOR]
    devices = ["".join(heading.itertext()) for heading in page.elements("h3")]
    assert devices[:2] == ["NVIDIA H200", "AMD EPYC, 2 cores"]
    tables = [table.get("class") for table in page.elements("table")]
    assert tables[:5] == ["glance", "ranking", "medians", "ranking", "medians"]


def test_the_combined_page_inlines_the_chart_and_shows_the_table(pages):
    page = pages[COMBINED]
    series = [group for group in page.elements("g") if "series" in group.get("class", "").split()]
    assert len(series) == 4 * 4
    assert series[0].get("data-title") == "Triton layer norm"
    assert "0.00172605" in row_of(page, "csv", "Triton")
    folded = {element.get("class"): "open" in element.attrib for element in page.elements("details")}
    assert folded == {"panel": False, "cell-code": False, "cell-stdout": False}


def test_code_of_more_than_two_screens_is_folded_with_its_number_of_lines(sample, published):
    (cell,) = sample.notebook("layer_norm/impls/triton_layer_norm.md").cells
    for lines, is_open in ((80, True), (81, False)):
        cell.code = "x = 1\n" * lines
        (code,) = (one for one in published(TRITON).elements("details") if one.get("class") == "cell-code")
        assert ("open" in code.attrib) is is_open
        assert text_of(code).startswith(f"Code, {lines} lines")


@pytest.mark.parametrize("path", [OPERATOR, COMBINED])
def test_a_series_of_an_inlined_chart_links_to_its_implementation_from_any_page(pages, path, sample_site):
    page = pages[path]
    slug = "triton-layer-norm--nvidia-h200"
    group = next(
        g
        for g in page.elements("g")
        if g.get("data-series") == slug and "series" in g.get("class", "").split()
    )
    link = next(element for element in group.iter() if str(element.tag).endswith("a"))
    target = (sample_site / path).parent / link.get("href")
    assert target.resolve() == (sample_site / TRITON).resolve()


def test_markers_keep_their_shapes_when_inlined(pages):
    page = pages[COMBINED]
    ids = set(page.ids())
    markers = page.elements("use")
    assert markers
    assert all(marker.get("href", "")[1:] in ids for marker in markers)


def test_the_downloaded_chart_links_to_the_implementations_from_where_it_lies(sample_site):
    folder = sample_site / "layer_norm/results/artifacts/combine"
    links = re.findall(r'<a href="([^"]+)"', (folder / "latency.svg").read_text(encoding="utf-8"))
    assert links
    assert all((folder / link).is_file() for link in links)


def test_an_implementation_page_shows_results_environment_and_command(pages):
    page = pages[TRITON]
    command = "kbt run layer_norm/impls/triton_layer_norm.md --processes"
    (commands,) = (one for one in page.elements("pre") if one.get("class") == "command")
    expected = [f"{command} 3 # NVIDIA H200", f"{command} 1 # AMD EPYC, 2 cores"]
    assert [text_of(line) for line in commands.iter("code")] == expected
    for fact in (
        "580.95.05",
        "CUPTI",
        "cold, flushed",
        "SM clock1980 MHz",
        "torch 2.13.0",
        "c0ffeec0ffee",
        "Measured2026-11-18",
        "120",
    ):
        assert fact in page.text, fact
    assert "1.62× [1.607, 1.630] ▲ faster in cache 19,440 94 % of copy" in row_of(
        page, "records", "N2048_D4096"
    )


def test_a_link_to_another_notebook_leads_to_its_page(sample, published):
    sample.notebook("layer_norm/impls/triton_layer_norm.md").front.links = {
        "baseline": "../../layer_norm/impls/torch_layer_norm.md"
    }
    assert ("a", "torch_layer_norm.html") in list(published(TRITON).references())


def test_an_implementation_page_shows_its_own_code_output_and_exit(pages, sample_site):
    page = pages[TRITON]
    assert {"cell-benchmark", "code-benchmark", "output-benchmark"} <= set(page.ids())
    assert "# a < b & c" in page.text
    assert "exit 0" in page.text
    assert "\x1b" not in page.html
    script = sample_site / "layer_norm/impls/cells/triton_layer_norm/benchmark.py"
    assert "run_benchmark" in script.read_text(encoding="utf-8")


def test_code_is_coloured_by_classes_alone(pages):
    assert '<span class="kn">' in pages[TRITON].html
    assert 'style="color' not in pages[TRITON].html


def test_links_between_notebooks_become_links_between_pages(pages):
    assert ("a", "torch_layer_norm.html") in list(pages[TRITON].references())
    assert ("a", "../index.html#methodology") in list(pages[OPERATOR].references())


def test_notebooks_of_one_folder_keep_their_own_artifacts(sample_site):
    files = sorted(sample_site.glob("layer_norm/impls/artifacts/*/benchmark/layer_norm.jsonl"))
    assert len(files) == 4
    assert len({file.read_bytes() for file in files}) == 4
    assert (sample_site / "layer_norm/results/artifacts/combine/latency.csv").is_file()


def test_the_report_is_available_as_json(sample_site):
    import json

    report = json.loads((sample_site / "report.json").read_text(encoding="utf-8"))
    assert [operator["operator"] for operator in report["operators"]] == ["layer_norm"]


def test_the_contents_name_the_device_of_the_fastest(pages):
    said = "NVIDIA H200: Triton layer norm, 1.62× over PyTorch layer norm"
    assert [
        text_of(line) for line in pages["index.html"].elements("span") if line.get("class") == "winner"
    ] == [said]


def test_several_verdicts_are_glyphs_with_tooltips_and_hidden_words(sample, published):
    sample.edit('"verdict":"faster"', '"verdict":"same"', 1)
    page = published(OPERATOR)
    assert "✓ ok 3 ▲ faster 1 = same" in row_of(page, "ranking", "1 Triton")
    shown = [mark for mark in page.elements("span") if mark.get("title") in {"3 faster", "1 same"}]
    assert [[inner.get("class") for inner in mark] for mark in shown] == [[None, "visually-hidden"]] * 2


def test_flags_of_a_row_are_folded_into_one_line(pages):
    (notes, *_) = (found for found in pages[OPERATOR].elements("details") if found.get("class") == "notes")
    assert "open" not in notes.attrib
    assert text_of(notes.find("summary")) == "host-bound"


def test_a_row_of_one_process_says_so_and_is_no_headline_figure(sample, read_page):
    sample.edit('"processes":3', '"processes":1', 1)
    sample.publish()
    site = sample.site

    rows = [row_of(read_page(site, OPERATOR), "ranking", name) for name in ("1 Triton", "PyTorch")]
    assert "1 to 3 processes" in rows[0]
    front = read_page(site, "index.html")
    shown = [text_of(line) for line in front.elements("p") if "Triton layer norm" in text_of(line)]
    assert shown
    assert all(line.startswith("Triton layer norm, measured in 1 process") for line in shown)
    assert not [one for one in front.elements("strong") if "×" in text_of(one)]


@pytest.mark.parametrize(("low", "shown"), [(None, ", measured separately"), (1.55, ", 1.62×")])
def test_a_row_that_was_measured_separately_is_a_headline_figure_if_it_has_an_interval(
    sample, published, low, shown
):
    report = sample.read_summary()
    row = next(row for row in report.devices[0].rows if row.implementation == "triton_layer_norm")
    row.points[-1].verdict, row.speedup_low = Verdict.SEPARATE, low
    sample.write_summary(report)

    front = published("index.html")
    lines = [text_of(line) for line in front.elements("p") if "Triton layer norm" in text_of(line)]
    assert any(line.startswith(f"Triton layer norm{shown}") for line in lines), lines


def test_a_headline_figure_has_its_interval_as_a_tooltip(pages):
    (figure, *_) = (one for one in pages["index.html"].elements("strong") if "×" in text_of(one))
    assert figure.get("title") == "95 % interval [1.612, 1.626]"


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


@pytest.mark.parametrize(("origin", "shown"), [("source build", True), ("hub", False)])
def test_only_a_row_of_a_source_build_is_marked_as_built_from_source(sample, published, origin, shown):
    file = sample.artifact("summary.json")
    recorded = '"notebook":"layer_norm/impls/triton_layer_norm.md",'
    kernel = f'"hub":[{{"repo":"org/norm","origin":"{origin}","notes":["built with g++ 12"]}}],'
    file.write_text(file.read_text().replace(recorded, recorded + kernel))

    row = row_of(published(OPERATOR), "ranking", "1 Triton")
    assert ("built from source" in row) == shown


@pytest.mark.parametrize("code", ["f = 1", "f = 2", None])
def test_only_a_row_whose_code_changed_is_marked_as_stale(sample, read_page, published, code):
    (cell,) = sample.notebook(TRITON.replace(".html", ".md")).cells
    cell.code = "# /// script\n# dependencies = []\n# ///\nf = 2"
    file = sample.artifact("summary.json")
    measured = f'"cell":"{cell.id}","code_digest":"{code_digest(code)}",' if code else ""
    recorded = '"notebook":"layer_norm/impls/triton_layer_norm.md",'
    file.write_text(file.read_text().replace(recorded, recorded + measured))

    row = row_of(published(OPERATOR), "ranking", "1 Triton")
    page = read_page(sample.site, TRITON)
    assert ("stale" in row) == (code == "f = 1")
    assert any("Stale" in text_of(line) for line in page.elements("p")) == (code == "f = 1")
