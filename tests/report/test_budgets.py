"""How large the pages of the real report are, made from the records that are committed."""

import gzip
import re

KB = 1000


def operator_pages(site):
    pages = [page for name in ("index", "models", "backward") for page in site.glob(f"*/{name}.html")]
    return {path.relative_to(site).as_posix(): path for path in pages if path.parent.name != "devices"}


def test_the_front_page_is_light(real_site):
    page = (real_site / "index.html").read_bytes()

    assert len(page) <= 120 * KB
    assert len(gzip.compress(page)) <= 20 * KB


def test_an_operator_page_is_light(real_site):
    pages = operator_pages(real_site)
    assert len(pages) >= 8
    raw = {name: page.stat().st_size for name, page in pages.items()}
    packed = {name: len(gzip.compress(page.read_bytes())) for name, page in pages.items()}
    assert {name: size for name, size in raw.items() if size > 500 * KB} == {}
    assert {name: size for name, size in packed.items() if size > 75 * KB} == {}


def test_backward_passes_and_shapes_of_models_have_pages_of_their_own(real_site, read_page):
    views = {
        name: {
            element.get("id", "")
            for element in read_page(real_site, f"rotary/{name}.html").elements("section")
        }
        for name in ("index", "backward", "models")
    }

    assert {"nvidia-h200-default-bwd", "nvidia-h200-large-bwd"} <= views["backward"]
    assert {"nvidia-h200-decode", "nvidia-h200-large"} <= views["index"] - views["backward"]
    assert "nvidia-h200-llama-3-1-8b" in views["models"]
    assert not [view for view in views["index"] if view.endswith("bwd") or "llama" in view]
    tabs = [element.get("href") for element in read_page(real_site, "rotary/index.html").elements("a")]
    assert {"backward.html", "models.html"} <= {*tabs}
    assert "backward.html" not in [
        element.get("href") for element in read_page(real_site, "fp8_quant/index.html").elements("a")
    ]


def test_no_page_shows_markup_that_was_meant_to_be_read_by_a_browser(real_site):
    shown = {}
    for page in real_site.rglob("*.html"):
        prose = re.sub(r"<(pre|code)\b.*?</\1>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
        shown[page.relative_to(real_site).as_posix()] = re.findall(r"&lt;/?[a-z]+[^&]{0,40}&gt;", prose)
    assert len(shown) > 50
    assert {name: found for name, found in shown.items() if found} == {}


def test_every_link_of_the_real_report_resolves(real_site, find_flaws):
    assert find_flaws(real_site) == []


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
