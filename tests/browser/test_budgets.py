"""The pages of this project's own records: a browser logs no error, and they fit on its screen."""

import gzip

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser
PAGES = ["activation/backward.html", "flash_attn/index.html", "fp8_quant/index.html", "rms_norm/index.html"]


def test_all_scripts_together_are_light(real_site):
    scripts = list(real_site.glob("static/*.js"))

    assert scripts
    assert sum(path.stat().st_size for path in scripts) <= 24_000


@pytest.mark.parametrize("path", PAGES)
def test_an_operators_page_fits_a_phone_logs_nothing_and_requests_files_only(open_committed, path):
    opened = open_committed(viewport={"width": 390, "height": 800})
    page = opened.goto(path)

    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for part in page.locator(".switches :is(label > span, select, input[type=search])").all():
        box = part.bounding_box()
        assert 0 <= box["x"] <= 380 - box["width"], part.text_content()
    metric = page.locator("input[name=metric]").last
    metric.check(force=True)
    expect(page.locator(f'svg.panel[data-chart="{metric.get_attribute("value")}"]').first).to_be_attached()

    assert opened.messages == []
    assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []


def test_the_chart_of_a_later_view_is_loaded_when_a_reader_comes_to_it(open_committed):
    opened = open_committed()
    page = opened.goto("activation/index.html")
    view = page.locator(".plot-box").first.get_attribute("data-view")
    panel = page.locator(f'svg.panel[data-view="{view}"]')
    expect(panel).to_have_count(0)

    page.evaluate("view => { location.hash = view }", view)
    expect(panel).to_have_attribute("data-chart", "latency")
    metrics = page.locator("input[name=metric]")
    for chosen in (metrics.nth(1), metrics.first):
        chosen.evaluate("input => input.click()")
        expect(panel).to_have_attribute("data-chart", chosen.get_attribute("value"))

    assert opened.messages == []


@pytest.mark.parametrize(
    "path",
    [
        "models/qwen3-30b-a3b.html",
        "causal_lm/impls/triton_model.html",
        "index.html#rotary-position-embeddings",  # with its chart
    ],
)
def test_a_long_page_fits_a_phone_and_has_no_serious_barrier(open_committed, serious_barriers, path):
    opened = open_committed(viewport={"width": 390, "height": 800}, reduced_motion="reduce")
    page = opened.goto(path)
    if "#" in path:
        expect(page.locator("svg.panel").first).to_be_visible()
    page.evaluate("document.querySelectorAll('details').forEach(it => { it.open = true; })")

    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    for command in page.locator("pre.command").all():  # is not cut off
        assert command.evaluate("it => it.scrollWidth <= it.clientWidth")
    assert opened.messages == []
    assert serious_barriers(page, "light", "dark") == []


def test_a_model_is_shown_for_one_number_of_gpus_at_a_time_without_scripts(open_committed):
    page = open_committed(java_script_enabled=False).goto("models/qwen3-30b-a3b.html")
    shown = page.locator("[data-ranks]").locator("visible=true")

    expect(shown).to_have_count(1)
    expect(shown).to_have_attribute("data-ranks", "1")
    page.get_by_role("radio", name="4", exact=True).check(force=True)

    expect(shown).to_have_count(1)
    expect(shown.get_by_role("heading", level=2).first).to_have_text(
        "prefill-2048, one of 4 tensor-parallel ranks"
    )


def test_a_models_page_answers_on_two_screens_and_links_and_prints_open_the_rest(open_committed):
    page = open_committed().goto("models/llama-3.1-8b.html")
    assert page.locator("footer").bounding_box()["height"] <= 100
    kernels = page.get_by_role("group", name="Kernels of prefill-2048", exact=True)
    other = page.get_by_role("group", name="Kernels of decode-32", exact=True)

    assert kernels.evaluate("it => it.getBoundingClientRect().bottom") <= 2 * 900
    expect(other).to_be_hidden()
    page.get_by_role("link", name="decode-32").first.click()
    expect(other).to_be_visible()

    blocks = page.locator('[aria-label="Blocks of decode-1"]')
    expect(blocks).to_be_hidden()
    page.emulate_media(media="print")
    expect(blocks).to_be_visible()


@pytest.mark.parametrize(
    ("width", "path", "table"),
    [
        (1280, "flash_attn/index.html", "table.ranking"),
        (1280, "layer_norm/impls/triton_layer_norm.html", "table.records"),
        (1280, "suites/trainscale.html", ".artifact-preview table"),
        (1280, "index.html", "table.implementations"),
        (360, "models/llama-3.1-8b.html", '[aria-label="The whole model"] table'),
    ],
)
def test_a_table_needs_no_sideways_scrolling(open_committed, width, path, table):
    page = open_committed(viewport={"width": width, "height": 900}).goto(path)
    first = page.locator(table).first

    expect(first).to_be_visible()
    assert first.evaluate("it => it.parentNode.scrollWidth <= it.parentNode.clientWidth")


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


@pytest.mark.parametrize("width", [320, 390, 600])
def test_where_no_whole_model_was_measured_the_prediction_stays_below_its_title(open_committed, width):
    page = open_committed(viewport={"width": width, "height": 800}).goto("models/falcon-mamba-7b.html")
    lefts = page.locator(".gains tr").evaluate_all(
        "rows => rows.map(row => [...row.children].findLast(cell => cell.checkVisibility()).offsetLeft)"
    )

    assert len(lefts) == 4
    assert len({*lefts}) == 1
