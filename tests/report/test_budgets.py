"""How large the pages of the real report are, made from the records that are committed."""

import gzip
import re

import pytest

KB = 1000


@pytest.mark.parametrize(
    ("pattern", "at_least", "largest", "packed"),
    [
        ("index.html", 1, 250, 25),
        *((f"*/{name}.html", 2, 500, 75) for name in ("index", "models", "backward")),
    ],
)
def test_pages_are_light(real_site, pattern, at_least, largest, packed):
    pages = {path.parent.name: path.read_bytes() for path in real_site.glob(pattern)}

    assert len(pages) >= at_least
    assert [name for name, page in pages.items() if len(page) > largest * KB] == []
    assert [name for name, page in pages.items() if len(gzip.compress(page)) > packed * KB] == []


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
