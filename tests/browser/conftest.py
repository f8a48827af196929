"""A chromium that opens pages from disk."""

from __future__ import annotations

import importlib.util
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import Browser, BrowserContext, Page, sync_playwright

from kernels_bench_tools.publish.site import publish

ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]


def find_chromium() -> str:
    """Return the browser's path; without one the test is skipped, except where CI promises it."""
    for name in ("/usr/bin/chromium", "chromium", "chromium-browser", "google-chrome"):
        found = shutil.which(name)
        if found:
            return found
    if os.environ.get("CI"):
        pytest.fail("CI must have a chromium: apt-get install chromium")
    pytest.skip("no chromium is installed: apt-get install chromium")


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    executable = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=executable, args=ARGUMENTS)
        yield browser
        browser.close()


class Opened:
    """A page, and what it asked for and complained of since it was opened."""

    def __init__(self, page: Page, site: Path) -> None:
        self.page = page
        self.site = site
        self.requests: list[str] = []
        self.complaints: list[str] = []
        page.on("request", lambda request: self.requests.append(request.url))
        page.on("console", lambda message: self.complaints.append(message.text))
        page.on("pageerror", lambda error: self.complaints.append(str(error)))

    def goto(self, path: str) -> Page:
        self.page.goto((self.site / path).as_uri())
        return self.page


@pytest.fixture(scope="session")
def many_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of an operator with many views and implementations."""
    file = Path(__file__).parent.parent / "publish" / "many_views.py"
    spec = importlib.util.spec_from_file_location("many_views", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    root = tmp_path_factory.mktemp("many") / "project"
    publish(root, module.write_project(root), root / "site")
    return root / "site"


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


@pytest.fixture
def serious_barriers() -> Callable[[Page], list[tuple[object, ...]]]:
    """Return what axe finds on a page that keeps some readers out: rule, element and summary."""

    def find(page: Page) -> list[tuple[object, ...]]:
        return [
            (violation["id"], node["target"], node.get("failureSummary"))
            for violation in Axe().run(page).response["violations"]
            if violation["impact"] in {"serious", "critical"}
            for node in violation["nodes"]
        ]

    return find
