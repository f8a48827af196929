"""How large the pages of the real report are, made from the records that are committed."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pytest
from committed import committed_site

KB = 1000


@pytest.fixture(scope="module")
def real_site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The report of this repository, of committed records alone."""
    return committed_site(tmp_path_factory)


def operator_pages(site):
    return [path for path in site.glob("*/index.html") if path.parent.name != "devices"]


def test_the_front_page_is_light(real_site):
    assert (real_site / "index.html").stat().st_size <= 100 * KB


def test_an_operator_page_is_light(real_site):
    pages = operator_pages(real_site)
    assert len(pages) >= 5
    raw = {page.parent.name: page.stat().st_size for page in pages}
    packed = {page.parent.name: len(gzip.compress(page.read_bytes())) for page in pages}
    assert {name: size for name, size in raw.items() if size > 250 * KB} == {}
    assert {name: size for name, size in packed.items() if size > 40 * KB} == {}


def test_no_page_shows_markup_that_was_meant_to_be_read_by_a_browser(real_site):
    shown = {}
    for page in real_site.rglob("*.html"):
        prose = re.sub(r"<(pre|code)\b.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        shown[page.relative_to(real_site).as_posix()] = re.findall(r"&lt;/?[a-z]+[^&]{0,40}&gt;", prose)
    assert len(shown) > 50
    assert {name: found for name, found in shown.items() if found} == {}


def test_every_link_of_the_real_report_resolves(real_site, find_dead_references):
    assert find_dead_references(real_site) == []


def test_the_front_page_follows_the_order_of_its_own_text(real_site, read_page):
    page = read_page(real_site, "index.html")
    headings = ["".join(heading.itertext()) for heading in page.elements("h2")]
    known = [
        "Layer Normalization",
        "Rotary Position Embeddings",
        "Attention",
        "Causal Conv1D",
        "Activation Functions",
    ]
    assert [heading for heading in headings if heading in known] == known
