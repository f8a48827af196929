"""A chromium that opens pages from disk."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page

COLOUR_RULES = ["color-contrast", "link-in-text-block"]


class Opened:
    """A page, with its requests and the console's messages and errors since it was opened."""

    def __init__(self, page: Page, site: Path) -> None:
        self.page = page
        self.site = site
        self.requests: list[str] = []
        self.messages: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.messages.append(message.text))
        page.on("pageerror", lambda error: self.messages.append(str(error)))

    def goto(self, path: str) -> Page:
        file, mark, fragment = path.partition("#")
        self.page.goto((self.site / file).as_uri() + mark + fragment)
        return self.page


@pytest.fixture
def open_committed(browser: Browser, real_site: Path) -> Iterator[Callable[..., Opened]]:
    """Open the site of the committed records; keywords are those of a browser context."""
    yield from _opener(browser, real_site)


@pytest.fixture
def open_site(browser: Browser, sample_site: Path) -> Iterator[Callable[..., Opened]]:
    """Open the sample site; keywords are those of a browser context."""
    yield from _opener(browser, sample_site)


@pytest.fixture
def open_many(browser: Browser, many_site: Path) -> Iterator[Callable[..., Opened]]:
    """Open the site with many views; keywords are those of a browser context."""
    yield from _opener(browser, many_site)


def _opener(browser: Browser, site: Path) -> Iterator[Callable[..., Opened]]:
    contexts: list[BrowserContext] = []

    def make(**options: object) -> Opened:
        context = browser.new_context(**{"viewport": {"width": 1280, "height": 900}, **options})
        context.set_default_timeout(10_000)
        contexts.append(context)
        return Opened(context.new_page(), site)

    yield make
    for context in contexts:
        context.close()


BARRIERS = """async options => (await axe.run(document, options)).violations
    .filter(violation => ["serious", "critical"].includes(violation.impact))
    .flatMap(violation => violation.nodes.map(node => [violation.id, node.html, node.failureSummary]))"""


@pytest.fixture
def serious_barriers() -> Callable[..., list[list[str]]]:
    """Return the serious violations that axe finds on a page in some schemes: rule, element and summary.

    In the dark scheme only rules about colours are checked: the elements are those of the light one.
    """

    def find(page: Page, *schemes: Literal["light", "dark"]) -> list[list[str]]:
        found = []
        page.evaluate(Axe().axe_script)
        for scheme in schemes:
            page.emulate_media(color_scheme=scheme)
            only = {"runOnly": COLOUR_RULES} if scheme == "dark" else {}
            found += page.evaluate(BARRIERS, {"resultTypes": ["violations"], "selectors": False, **only})
        return found

    return find
