"""The published pages, opened from disk in a real browser."""

import re

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

OPERATOR = "layer_norm/index.html"
TRITON = "layer_norm/impls/triton_layer_norm.html"
COMBINED = "layer_norm/results/combined_results.html"
PAGES = [
    "index.html",
    OPERATOR,
    TRITON,
    COMBINED,
    "selfcheck.html",
    "devices/nvidia-h200.html",
    "status.html",
]
SERIES = ".series--triton-layer-norm--nvidia-h200"
LABEL = ".legend-label--triton-layer-norm--nvidia-h200"
ROW = 'tr[data-series~="triton-layer-norm--nvidia-h200"]'


def hover_between_points(page, series=SERIES):
    """Put the pointer on the line of a series, between its first two markers."""
    page.locator(series).first.scroll_into_view_if_needed()
    first, second = (page.locator(f"{series} use").nth(index).bounding_box() for index in (0, 1))
    # A third of the way, so that the first point is the nearest.
    x = first["x"] + first["width"] / 2 + (second["x"] - first["x"]) / 3
    y = first["y"] + first["height"] / 2 + (second["y"] - first["y"]) / 3
    page.mouse.move(x, y)


@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits_a_phone_without_barriers_or_requests(open_site, serious_barriers, path):
    opened = open_site(viewport={"width": 360, "height": 740}, reduced_motion="reduce")
    page = opened.goto(path)
    page.mouse.move(200, 400)
    page.wait_for_load_state("networkidle")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert opened.messages == []
    assert opened.requests
    assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []
    page.evaluate("document.querySelectorAll('details').forEach(details => { details.open = true })")
    assert serious_barriers(page, "light", "dark") == []


def test_hovering_a_line_tells_who_where_and_how_fast_and_a_click_opens_its_page(open_site):
    page = open_site().goto(COMBINED)
    hover_between_points(page)
    tooltip = page.locator(".kbt-tooltip")
    expect(tooltip).to_be_visible()
    expect(tooltip).to_contain_text("Triton layer norm")
    expect(tooltip).to_contain_text("NVIDIA H200")
    expect(tooltip).to_contain_text("N2048_D4096: 0.001726 ms [0.001700, 0.001761]")
    expect(tooltip).to_contain_text("speed-up 1.62× [1.612, 1.626]")
    page.mouse.move(5, 5)
    expect(tooltip).to_be_hidden()
    hover_between_points(page)
    page.mouse.down()
    page.mouse.up()
    page.wait_for_url(re.compile("impls/triton_layer_norm.html$"))


def test_a_series_its_label_and_its_rows_light_up_together(open_site):
    page = open_site().goto(OPERATOR)
    page.locator(f"{LABEL} text").hover()
    for selector in (SERIES, f"{ROW} >> nth=0", f"{ROW} >> nth=1"):
        expect(page.locator(selector)).to_have_class(re.compile(r"\bactive\b"))
    dimmed = page.locator(".series--torch-layer-norm--nvidia-h200")
    expect(dimmed).to_have_css("opacity", "0.16")
    expect(page.locator(".series--torch-layer-norm--amd-epyc-2-cores")).to_have_css("opacity", "1")
    page.mouse.move(5, 5)
    expect(dimmed).to_have_css("opacity", "1")
    page.locator(ROW).first.hover()
    expect(page.locator(SERIES)).to_have_class(re.compile(r"\bactive\b"))


def test_the_keyboard_walks_points_and_series_and_follows_the_link(open_site):
    page = open_site().goto(COMBINED)
    readout = page.locator(".chart .readout").first
    page.locator(f"{SERIES} a").first.focus()
    expect(readout).to_have_text(re.compile("Triton layer norm on NVIDIA H200"))
    page.keyboard.press("ArrowRight")
    expect(readout).to_contain_text("N2048_D4096: 0.001726 ms")
    page.keyboard.press("ArrowRight")
    expect(readout).to_contain_text("N2048_D8192")
    page.keyboard.press("End")
    expect(readout).to_contain_text("N4096_D8192")
    page.keyboard.press("ArrowDown")
    expect(readout).to_contain_text("PyTorch layer norm")
    page.keyboard.press("Escape")
    expect(readout).to_be_empty()
    expect(page.locator(".kbt-tooltip")).to_be_hidden()
    page.keyboard.press("Enter")
    page.wait_for_url(re.compile("impls/torch_layer_norm.html$"))


def test_the_tab_key_stops_once_for_each_series(open_site):
    page = open_site().goto(COMBINED)
    stops = page.evaluate("document.querySelectorAll('.chart svg a[href]:not([tabindex=\"-1\"])').length")
    assert stops == page.locator(".chart .series").count() > 0


def test_the_first_tab_offers_to_skip_to_the_content(open_site):
    page = open_site().goto(OPERATOR)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.keyboard.press("Enter")
    expect(page.locator("main")).to_be_focused()


def test_the_theme_follows_the_system_until_one_is_chosen(open_site):
    opened = open_site(color_scheme="light")
    page = opened.goto("index.html")
    body = page.locator("body")
    expect(body).to_have_css("background-color", "rgb(255, 255, 255)")
    page.get_by_role("button", name="Use the dark theme").click()
    expect(body).to_have_css("background-color", "rgb(11, 12, 14)")
    page = opened.goto(TRITON)
    expect(page.locator("body")).to_have_css("background-color", "rgb(11, 12, 14)")
    assert opened.messages == []


def test_without_scripts_chart_table_and_links_are_there(open_site):
    page = open_site(java_script_enabled=False).goto(OPERATOR)
    expect(page.locator("button.theme")).to_be_hidden()
    expect(page.locator(".chart svg").first).to_be_visible()
    expect(page.locator("table.ranking").first).to_be_visible()
    page.locator(f"{LABEL} a").click()
    expect(page.locator("h1")).to_have_text("Triton layer norm")


def test_on_paper_nothing_is_cut_off_and_notes_are_words(open_site):
    page = open_site().goto(OPERATOR)
    page.emulate_media(media="print")
    expect(page.locator(".controls")).to_be_hidden()
    expect(page.locator("body")).to_have_css("background-color", "rgb(255, 255, 255)")
    expect(page.locator(".scroll").first).to_have_css("overflow-x", "visible")
    notes = page.locator("table.ranking details.notes").first
    expect(notes.locator("b")).to_be_visible()
    expect(notes.locator("span")).to_be_hidden()
    expect(page.locator(".legend-of-terms .flags")).to_be_visible()


def test_on_a_phone_a_ranking_shows_speed_up_and_its_names_stay(open_site):
    page = open_site(viewport={"width": 360, "height": 740}).goto(OPERATOR)
    table = page.locator("table.ranking").first
    speedup = table.locator(".speedup").first.bounding_box()
    assert speedup["x"] + speedup["width"] <= 360
    table.evaluate("it => { it.parentNode.scrollLeft = 300 }")
    name = table.locator("th[scope=row]").first.bounding_box()
    assert 0 <= name["x"] <= 40
