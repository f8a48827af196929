"""An operator with many views, in a real browser."""

import re

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

OPERATOR = "activation/index.html"
COMBINED = "activation/results/combined_results.html"
HUB = "activation/impls/hf_kernels_activation.html"
PAGES = ["index.html", OPERATOR, COMBINED, HUB]
FOLDED = "nvidia-h200-gelu-large"
SLOWEST = ".series--math-activation--nvidia-h200"
"""Its markers lie apart from all others."""


@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits_a_phone_logs_nothing_and_requests_files_only(open_many, path):
    opened = open_many(viewport={"width": 360, "height": 740})
    page = opened.goto(path)
    page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true })")
    page.wait_for_load_state("networkidle")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert opened.messages == []
    assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("path", PAGES)
def test_a_page_has_no_serious_barrier(open_many, serious_barriers, path):
    page = open_many(reduced_motion="reduce").goto(path)
    # One unfolded view stands for the others, which are made alike.
    page.evaluate("document.querySelectorAll('details.by-workload')[0]?.setAttribute('open', '')")
    page.evaluate("document.querySelectorAll('details.view, details.panel')[1]?.setAttribute('open', '')")
    assert serious_barriers(page, "light", *(["dark"] if path == OPERATOR else [])) == []


@pytest.mark.parametrize("scripts", [True, False])
def test_a_link_to_a_folded_view_opens_it(open_many, scripts):
    page = open_many(java_script_enabled=scripts).goto(OPERATOR)
    heading = page.locator(f"#{FOLDED} table.ranking")
    expect(heading).to_be_hidden()
    page.locator(f'table.glance a[href="#{FOLDED}"]').click()
    expect(heading).to_be_visible()
    expect(page.locator("#nvidia-h200-gelu-decode table.ranking")).to_be_hidden()


def test_a_link_from_the_front_page_opens_the_view_that_it_speaks_of(open_many):
    page = open_many().goto("index.html")
    page.get_by_role("link", name="GELU · default").first.click()
    expect(page.locator("#nvidia-h200-gelu-default table.ranking")).to_be_in_viewport()


def test_a_view_is_unfolded_by_the_keyboard(open_many):
    page = open_many(java_script_enabled=False).goto(OPERATOR)
    page.locator("details.view > summary").nth(1).focus()
    page.keyboard.press("Enter")
    expect(page.locator("#nvidia-h200-swiglu-large table.ranking")).to_be_visible()


@pytest.mark.parametrize(
    ("file", "reading"),
    [
        ("latency.svg", r"T128_D256: 0\.0000\d+ ms \["),
        ("speedup.svg", r"T128_D256: 0\.5800× \["),
        ("rate.svg", r"T128_D256: 9280 GB/s \["),
        ("fraction.svg", r"T128_D256: 0\.1740 \["),
    ],
)
def test_every_chart_tells_its_values_in_their_unit(open_many, file, reading):
    page = open_many().goto(COMBINED)
    chart = page.locator("figure.chart", has=page.locator(f'a[download][href$="{file}"]')).first
    chart.locator(f"{SLOWEST} use").first.hover(force=True)
    tooltip = page.locator(".kbt-tooltip")
    expect(tooltip).to_contain_text("Math activation")
    expect(tooltip).to_contain_text("NVIDIA H200 · SwiGLU · default")
    expect(tooltip).to_contain_text(re.compile(reading))


def test_the_keyboard_reads_the_unit_aloud(open_many):
    page = open_many().goto(COMBINED)
    chart = page.locator("figure.chart", has=page.locator('a[download][href$="speedup.svg"]')).first
    chart.locator(f"{SLOWEST} a").first.focus()
    page.keyboard.press("ArrowRight")
    expect(chart.locator(".readout")).to_contain_text("0.5800×")


def test_only_the_panel_of_a_series_steps_back(open_many):
    page = open_many().goto(OPERATOR)
    page.evaluate("document.querySelectorAll('details.view').forEach(details => { details.open = true })")
    page.locator(".legend-label--triton-activation--nvidia-h200 text").first.hover()
    expect(page.locator(".series--liger-activation--nvidia-h200")).to_have_css("opacity", "0.16")
    other = page.locator(".series--liger-activation--nvidia-h200-gelu-large")
    expect(other).to_have_css("opacity", "1")


def test_on_paper_folded_views_are_there(open_many):
    page = open_many().goto(OPERATOR)
    page.emulate_media(media="print")
    expect(page.locator(f"#{FOLDED} table.ranking")).to_be_visible()
    assert page.locator(f"#{FOLDED} table.ranking").bounding_box()["height"] > 200
