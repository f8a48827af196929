"""The pages of this project's own records: a browser is content with them, and they fit on its screen."""

from __future__ import annotations

import pytest
from committed import OPERATORS
from playwright.sync_api import expect

pytestmark = pytest.mark.browser
PAGES = [
    *(f"{operator}/index.html" for operator in OPERATORS),
    "activation/backward.html",
    "rotary/backward.html",
]


def test_all_scripts_together_are_light(real_site):
    scripts = list(real_site.rglob("*.js"))

    assert scripts
    assert sum(path.stat().st_size for path in scripts) <= 20_000


@pytest.mark.parametrize("path", PAGES)
def test_an_operators_page_complains_of_nothing_and_asks_for_files_only(open_committed, path):
    opened = open_committed()
    page = opened.goto(path)
    page.wait_for_load_state("networkidle")
    page.locator("input[name=metric][value=speedup]").check(force=True)

    assert opened.complaints == []
    assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("path", PAGES)
def test_no_operators_page_is_wider_than_a_phone(open_committed, path):
    page = open_committed(viewport={"width": 390, "height": 800}).goto(path)

    assert page.evaluate("document.documentElement.scrollWidth") <= 390


@pytest.mark.parametrize("scheme", ["dark", "light"])
def test_attention_has_no_serious_barrier(open_committed, serious_barriers, scheme):
    page = open_committed(color_scheme=scheme, reduced_motion="reduce").goto("flash_attn/index.html")

    assert serious_barriers(page) == []


def test_the_ranking_of_attention_needs_no_sideways_scrolling_on_a_desktop(open_committed):
    page = open_committed().goto("flash_attn/index.html")
    table = page.locator("table.ranking").first
    expect(table).to_be_visible()

    assert table.evaluate("it => it.parentNode.scrollWidth <= it.parentNode.clientWidth")


def test_an_implementations_table_needs_no_sideways_scrolling_on_a_desktop(open_committed):
    page = open_committed().goto("layer_norm/impls/triton_layer_norm.html")
    table = page.locator("table.records").first

    assert table.evaluate("it => it.parentNode.scrollWidth <= it.parentNode.clientWidth")
