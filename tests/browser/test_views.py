"""An operator with many views, in a real browser."""

import re

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

OPERATOR = "activation/index.html"
COMBINED = "activation/results/combined_results.html"
FOLDED = "nvidia-h200-gelu-large"
SLOWEST = ".series--math-activation--nvidia-h200"
"""Its markers lie apart from all others."""


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


def test_every_chart_tells_its_values_in_their_unit(open_many):
    page = open_many().goto(COMBINED)
    tooltip = page.locator(".kbt-tooltip")
    for file, reading in (
        ("latency.svg", r"T128_D256: 0\.0000\d+ ms \["),
        ("speedup.svg", r"T128_D256: 0\.5800× \["),
        ("rate.svg", r"T128_D256: 6960 GB/s \["),
        ("fraction.svg", r"T128_D256: 0\.1740 \["),
    ):
        chart = page.locator("figure.chart", has=page.locator(f'a[download][href$="{file}"]')).first
        chart.locator(f"{SLOWEST} use").first.hover(force=True)
        expect(tooltip).to_contain_text("Math activation")
        expect(tooltip).to_contain_text("NVIDIA H200 · SwiGLU · default")
        expect(tooltip).to_contain_text(re.compile(reading))
