"""The front page: charts that are loaded when a reader comes to them, the switch of devices, and the search."""

import gzip

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser
ATTENTION = "#attention"


def charts(opened) -> list[str]:
    """The operators whose charts were requested."""
    return [url.rsplit("/", 2)[1] for url in opened.requests if url.endswith(".charts.js")]


def test_the_front_page_loads_no_chart_before_a_reader_comes_to_it(open_committed, real_site):
    opened = open_committed()
    page = opened.goto("index.html")
    page.wait_for_load_state("networkidle")

    assert charts(opened) == []
    assert page.locator("svg, .operator img:not([loading=lazy])").count() == 0
    loaded = [url for url in opened.requests if url.startswith("file:")]
    files = [real_site / url.split(f"{real_site.as_posix()}/")[1] for url in loaded]
    assert sum(len(gzip.compress(file.read_bytes())) for file in files) <= 150_000

    page.locator(ATTENTION).scroll_into_view_if_needed()
    expect(page.locator('svg.panel[aria-label^="Attention"]')).to_have_count(1)
    assert "flash_attn" in charts(opened)
    assert "transformers_models" not in charts(opened)
    assert opened.messages == []


def test_the_switch_shows_one_device_in_all_sections_and_is_part_of_the_link(open_committed):
    opened = open_committed()
    page = opened.goto("index.html")
    tables = page.locator("section.operator table.measured:visible")
    assert not any(
        "EPYC" in one for one in tables.locator("xpath=..").evaluate_all("all => all.map(it => it.ariaLabel)")
    )
    page.get_by_role("radio", name="AMD EPYC, 2 cores", exact=True).check(force=True)

    labels = tables.locator("xpath=..").evaluate_all("all => all.map(it => it.ariaLabel)")
    assert labels
    assert all(" on AMD EPYC, 2 cores, " in label for label in labels)
    assert page.url.endswith("#?device=amd-epyc-2-cores")
    page.reload()
    expect(page.get_by_role("radio", name="AMD EPYC, 2 cores", exact=True)).to_be_checked()
    page.locator("#layer-normalization").scroll_into_view_if_needed()
    expect(page.locator('svg.panel[data-view="amd-epyc-2-cores"]').first).to_be_visible()
    assert opened.messages == []


def test_the_switch_needs_no_script(open_committed):
    page = open_committed(java_script_enabled=False).goto("index.html")
    page.get_by_role("radio", name="AMD EPYC, 2 cores", exact=True).check(force=True)

    expect(page.get_by_role("group", name="Layer Normalization on AMD EPYC, 2 cores, cpu")).to_be_visible()
    expect(page.get_by_role("group", name="Layer Normalization on NVIDIA H200, default")).to_be_hidden()
    expect(page.get_by_role("searchbox")).to_be_hidden()


def test_the_search_finds_operators_implementations_and_models_or_says_that_it_found_nothing(open_committed):
    opened = open_committed()
    for words, target in (
        ("rotary position", "rotary/index.html"),
        ("LIGER rotary", "rotary/impls/liger_rotary.html"),
        ("70b", "models/llama-3.1-70b.html"),
    ):
        page = opened.goto("index.html")
        page.get_by_role("searchbox").fill("no such kernel")
        expect(page.locator(".switches output")).to_have_text("0 found")
        expect(page.locator(".found a")).to_have_count(0)
        page.get_by_role("searchbox").fill(words)
        page.locator(f'.found a[href$="{target}"]').click()
        page.wait_for_url(f"**/{target}")


def test_the_front_page_fits_and_has_no_serious_barrier(open_committed, serious_barriers):
    page = open_committed(viewport={"width": 390, "height": 800}, reduced_motion="reduce").goto(
        "index.html#rotary-position-embeddings"
    )
    expect(page.locator("svg.panel").first).to_be_visible()

    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    assert serious_barriers(page, "light", "dark") == []
