"""An operator with many views, in a real browser."""

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

OPERATOR = "activation/index.html"
FOLDED = "nvidia-h200-gelu-large"


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
