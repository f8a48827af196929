"""What a reader can choose on an operator's page: metric, view, lines, order and rows, and a link to all of it."""

import re

import pytest
from playwright.sync_api import Page, expect

pytestmark = pytest.mark.browser

OPERATOR = "activation/index.html"
FIRST = "nvidia-h200"
TRITON, LIGER, TORCH = (f"{name}-activation--{FIRST}" for name in ("triton", "liger", "torch"))
RANKING = f'[data-pick="{FIRST}"] table.ranking'


def choose(page: Page, name: str, value: str) -> None:
    page.locator(f'.switches input[name="{name}"][value="{value}"]').check(force=True)


def choose_view(page: Page, view: str) -> None:
    page.locator(f'.glance a[href="#{view}"]').click()


def line(slug: str) -> str:
    return f".series--{slug}"


def label(slug: str) -> str:
    return f".legend-label--{slug} text"


def names(page: Page, selector: str = RANKING) -> list[str]:
    """The implementations of a ranking's rows, from top to bottom, of those that are shown."""
    return page.locator(f'{selector} tr[data-status]:visible th[scope="row"] > a').all_inner_texts()


def shown_lines(page: Page) -> set[str]:
    series = page.locator(f'svg.panel[data-view="{FIRST}"] .series:not(.off)')
    return set(series.evaluate_all("all => all.map(one => one.dataset.series.split('--')[0])"))


@pytest.fixture
def page(open_many) -> Page:
    return open_many().goto(OPERATOR)


@pytest.mark.parametrize("chart", ["rate", "e2e"])
def test_another_metric_shows_its_own_panel_with_the_same_lines(page, many_site, chart):
    panel = page.locator(f'svg.panel[data-view="{FIRST}"]')
    choose(page, "metric", chart)

    expect(panel).to_have_attribute("data-chart", chart)
    assert panel.locator(f"{line(LIGER)} use").count() == 12
    page.locator(f"{line(LIGER)} use").first.hover(force=True)
    metric = panel.get_attribute("data-metric")
    expect(page.locator(".kbt-tooltip .metric")).to_have_text(metric)
    page.locator(label(LIGER)).click()
    expect(page.locator(line(LIGER))).to_be_hidden()
    choose(page, "metric", "latency")
    expect(panel).to_have_attribute("data-chart", "latency")
    expect(page.locator(line(LIGER))).to_be_hidden()


@pytest.mark.parametrize("place", [label(TRITON), f'tr[data-series="{TRITON}"] .swatch >> nth=0'])
def test_a_line_can_be_shown_alone_and_the_others_brought_back(page, place):
    everything = shown_lines(page)
    page.locator(place).click(modifiers=["Shift"])
    assert shown_lines(page) == {"triton-activation"}
    page.locator(place).click(modifiers=["Shift"])
    assert shown_lines(page) == everything


def test_another_view_replaces_the_first_is_marked_and_hides_the_same_lines(page):
    page.locator(label(LIGER)).click()
    expect(page.locator(line(LIGER))).to_be_hidden()
    expect(page.locator(f'tr[data-series="{LIGER}"] .swatch')).to_have_attribute("aria-pressed", "false")
    choose_view(page, "nvidia-h200-gelu-default")
    expect(page.locator(f"{line(LIGER)}-gelu-default")).to_be_hidden()
    choose_view(page, "amd-epyc-2-cores-gelu-cpu")
    expect(page.locator(RANKING)).to_be_hidden()
    expect(page.locator('[data-pick="amd-epyc-2-cores-gelu-cpu"] table.ranking')).to_be_visible()
    expect(page.locator(f"#{FIRST}")).to_be_hidden()
    expect(page.locator(".glance [aria-current]")).to_have_text("GELU · cpu")


def test_a_column_sorts_both_ways_with_what_has_no_value_last_and_then_as_it_was(page):
    ranked = names(page)
    button = page.locator(RANKING).get_by_role("button", name="Latency")
    head = page.locator(f"{RANKING} th[data-key=latency]")
    button.click()
    expect(head).to_have_attribute("aria-sort", "ascending")
    rising = names(page)
    button.click()
    expect(head).to_have_attribute("aria-sort", "descending")
    falling = names(page)
    button.click()
    expect(head).not_to_have_attribute("aria-sort", re.compile("."))

    assert names(page) == ranked
    assert rising[-1] == falling[-1] == "Xformers activation"
    assert rising[:-1] == falling[-2::-1]
    assert rising[0] == ranked[0]
    page.locator(RANKING).get_by_role("button", name="Bandwidth").click()
    texts = page.locator(f"{RANKING} tr[data-status] td:nth-child(7)").all_inner_texts()
    numbers = [float(text.replace(",", "")) for text in texts]  # not as words
    assert len(numbers) == 12
    assert numbers == sorted(numbers, reverse=True)


def test_words_and_chips_filter_rows_and_lines_alike(page):
    page.get_by_role("searchbox", name="Find").fill("LIGER")
    assert names(page) == ["Liger activation"]
    assert shown_lines(page) == {"liger-activation"}
    expect(page.locator(".switches output")).to_have_text("1 of 13 shown")
    page.get_by_role("button", name="Show all").click()
    expect(page.locator(".switches output")).to_have_text("13 of 13 shown")
    choose(page, "status", "unsupported")
    assert names(page) == ["Xformers activation"]
    choose(page, "family", "torch")
    assert names(page) == []
    choose(page, "status", "ok")
    assert names(page) == ["Torch activation"]


def test_a_link_brings_everything_back_elsewhere(page, open_many):
    choose_view(page, "nvidia-h200-gelu-large")
    choose(page, "metric", "speedup")
    choose(page, "status", "ok")
    page.get_by_role("searchbox", name="Find").fill("a")
    page.locator('[data-pick="nvidia-h200-gelu-large"]').get_by_role("button", name="Max error").click()
    page.locator(f"{label(LIGER).replace(' text', '')}-gelu-large text").click()
    url = page.url

    opened = open_many()
    other = opened.page
    other.goto(url)

    view = other.locator('[data-pick="nvidia-h200-gelu-large"]')
    expect(view.locator("table.ranking")).to_be_visible()
    expect(view.locator("svg.panel")).to_have_attribute("data-chart", "speedup")
    expect(view.locator('[aria-sort="ascending"]')).to_have_text(re.compile("Max error"))
    expect(other.locator(f"{line(LIGER)}-gelu-large")).to_be_hidden()
    expect(other.locator("input[name=q]")).to_have_value("a")
    assert "Xformers activation" not in names(other, '[data-pick="nvidia-h200-gelu-large"] table.ranking')
    other.reload()
    expect(view.locator("svg.panel")).to_have_attribute("data-chart", "speedup")
    assert other.url == url
    assert opened.messages == []


def test_a_view_that_was_just_chosen_stays_when_another_switch_follows(page):
    page.evaluate(
        """() => {
            document.querySelector('.glance a[href="#nvidia-h200-gelu-large"]').click();
            document.querySelector('.switches input[name="metric"][value="speedup"]').click();
        }"""
    )
    panel = page.locator('[data-pick="nvidia-h200-gelu-large"] svg.panel')
    expect(panel).to_have_attribute("data-chart", "speedup")
    expect(panel).to_be_visible()
    assert "#nvidia-h200-gelu-large?" in page.url


def test_a_heading_can_be_linked_to_and_a_hostile_link_does_nothing(open_many):
    opened = open_many()
    page = opened.goto(f"{OPERATOR}#downloads")
    expect(page.locator("#downloads")).to_be_in_viewport()
    expect(page.locator(RANKING)).to_be_visible()
    for fragment in (
        *("%", "%E0%A4%A?metric=speedup", "?", "?q=%00"),
        "nowhere?metric=bogus&view=x&sort=%22%5D&hide=%3Cimg%3E&family=x",
    ):
        opened.page.goto(f"{(opened.site / OPERATOR).as_uri()}#{fragment}")
        opened.page.reload()
        expect(page.locator(".switches output")).to_contain_text("shown")
    assert opened.messages == []


def test_everything_can_be_done_with_keys(page):
    page.locator("input[name=metric][value=latency]").focus()
    page.keyboard.press("ArrowRight")
    expect(page.locator(f'svg.panel[data-view="{FIRST}"]')).to_have_attribute("data-chart", "speedup")
    page.locator('.glance a[href="#nvidia-h200-swiglu-large"]').focus()
    page.keyboard.press("Enter")
    expect(page.locator('[data-pick="nvidia-h200-swiglu-large"] table.ranking')).to_be_visible()
    page.locator(f'.glance td a[href="#{FIRST}"]').press("Enter")
    page.locator(RANKING).get_by_role("button", name="Peak memory").focus()
    page.keyboard.press("Enter")
    expect(page.locator(f"{RANKING} th[data-key=peak_bytes]")).to_have_attribute("aria-sort", "ascending")
    page.locator(f'tr[data-series="{LIGER}"] .swatch').focus()
    page.keyboard.press("Space")
    expect(page.locator(line(LIGER))).to_be_hidden()


def test_two_implementations_can_be_compared_and_the_link_brings_it_back(open_committed):
    opened = open_committed()
    page = opened.goto("flash_attn/index.html")
    place = page.locator(".comparison")
    expect(place).to_be_hidden()
    page.get_by_label("Compare this implementation").select_option("HF Kernels Flash Attn3")
    page.get_by_label("Compare with this one").select_option("FlashAttention-4")

    expect(place.get_by_role("heading")).to_have_text("HF Kernels Flash Attn3 compared with FlashAttention-4")
    expect(place).to_contain_text("the ratio of their speed-ups over Flash (PyTorch SDPA)")
    expect(place.get_by_role("row")).to_have_count(7)

    url = page.url
    page.goto("about:blank")
    page.goto(url)
    expect(place.get_by_role("heading")).to_contain_text("compared with FlashAttention-4")
    expect(place.get_by_role("heading")).to_be_in_viewport()
    page.get_by_label("Compare with this one").select_option("Gluon Attention")
    expect(place).to_contain_text("Both were measured in one session")
    expect(place).to_contain_text("▲ faster, geometric mean of 6 workloads")
    opened.goto("flash_attn/index.html#amd-epyc-2-cores?compare=gluon_attention&with=flash_attention_4")
    page.reload()
    expect(place).to_contain_text("were not both measured in the view AMD EPYC, 2 cores")
    assert opened.messages == []


@pytest.mark.parametrize("scripts", [True, False])
def test_a_link_to_a_folded_view_opens_it(open_many, scripts):
    page = open_many(java_script_enabled=scripts).goto(OPERATOR)
    table = page.locator("#nvidia-h200-gelu-large table.ranking")
    expect(table).to_be_hidden()
    choose_view(page, "nvidia-h200-gelu-large")
    expect(table).to_be_visible()
    expect(page.locator("#nvidia-h200-gelu-decode table.ranking")).to_be_hidden()


def test_a_link_from_the_front_page_opens_the_view_that_it_speaks_of(open_many):
    page = open_many().goto("index.html")
    page.get_by_role("link", name="GELU · default").first.click()
    expect(page.locator("#nvidia-h200-gelu-default table.ranking")).to_be_in_viewport()
