"""The pages that speak of the whole site, in a real browser."""

from __future__ import annotations

import functools
import http.server
import threading

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser

PAGES = [
    "devices/index.html",
    "devices/nvidia-h200.html",
    "method.html",
    "status.html",
    "layer_norm/matrix.html",
    "404.html",
]


@pytest.mark.parametrize("path", PAGES)
def test_a_page_fits_a_phone_logs_nothing_and_requests_files_only(open_site, path):
    opened = open_site(viewport={"width": 360, "height": 740})
    page = opened.goto(path)
    page.wait_for_load_state("networkidle")
    assert page.evaluate("document.documentElement.scrollWidth") <= 360
    assert opened.messages == []
    assert [url for url in opened.requests if not url.startswith(("file:", "data:"))] == []


@pytest.mark.parametrize("scheme", ["dark", "light"])
@pytest.mark.parametrize("path", PAGES)
def test_a_page_has_no_serious_barrier(open_site, serious_barriers, path, scheme):
    page = open_site(color_scheme=scheme, reduced_motion="reduce").goto(path)
    assert serious_barriers(page) == []


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a site below ``/report/``, and its 404 page for what is not there, as hosts of static pages do."""

    def send_head(self):
        self.path = self.path.removeprefix("/report")
        if not (self.directory and self.translate_path(self.path) and self._is_there()):
            self.send_response(404)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            with open(f"{self.directory}/404.html", "rb") as file:  # noqa: PTH123
                self.wfile.write(file.read())
            return None
        return super().send_head()

    def _is_there(self):
        import os

        return os.path.exists(self.translate_path(self.path))  # noqa: PTH110

    def log_message(self, *arguments):
        """Say nothing."""


@pytest.fixture
def served(sample_site):
    handler = functools.partial(_Handler, directory=str(sample_site))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/report"
        server.shutdown()
        thread.join()


@pytest.mark.parametrize("address", ["/gone.html", "/layer_norm/gone.html", "/layer_norm/impls/gone.html"])
def test_the_not_found_page_links_to_the_report_from_any_depth(browser, served, address):
    context = browser.new_context()
    page = context.new_page()
    page.goto(served + address)
    expect(page.locator("h1")).to_have_text("Page not found")
    page.get_by_role("link", name="Layer Normalization").click()
    expect(page.locator("h1")).to_have_text("Layer Normalization")
    page.goto(served + address)
    page.get_by_role("link", name="Kernels Community Benchmarks").click()
    page.wait_for_url(f"{served}/index.html")
    context.close()
