"""The page for addresses that do not exist, from a server, in a real browser."""

import functools
import http.server
import threading
from pathlib import Path

import pytest
from playwright.sync_api import expect

pytestmark = pytest.mark.browser


class _Handler(http.server.SimpleHTTPRequestHandler):
    """Serves a site below ``/report/``, and its 404 page for what is not there, as hosts of static pages do."""

    def translate_path(self, path):
        return super().translate_path(path.removeprefix("/report"))

    def send_error(self, code, message=None, explain=None):
        self.send_response(code)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.end_headers()
        self.wfile.write(Path(self.directory, "404.html").read_bytes())

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


def test_the_not_found_page_links_to_the_report_from_any_depth(browser, served):
    context = browser.new_context()
    page = context.new_page()
    for address in ("/gone.html", "/layer_norm/gone.html", "/layer_norm/impls/gone.html"):
        page.goto(served + address)
        expect(page.locator("h1")).to_have_text("Page not found")
        page.get_by_role("link", name="Layer Normalization").click()
        expect(page.locator("h1")).to_have_text("Layer Normalization")
        page.goto(served + address)
        page.get_by_role("link", name="Kernels Community Benchmarks").click()
        page.wait_for_url(f"{served}/index.html")
    context.close()
