"""Markdown that a cell left."""

import html5lib
import pytest

from kernels_bench_tools.report.artifacts import LARGEST
from kernels_bench_tools.report.markup import render_markdown

COMBINED = "layer_norm/results/combined_results.md"


def elements(text: str) -> set[str]:
    fragment = html5lib.parseFragment(str(render_markdown(text)), namespaceHTMLElements=False)
    return {element.tag for element in fragment.iter()} - {"DOCUMENT_FRAGMENT"}


def test_tables_lists_and_code_are_shown() -> None:
    text = "# Title\n\n| a | b |\n| --- | ---: |\n| *1* | `2` |\n\n- one\n\n```\ncode\n```\n"

    assert elements(text) >= {"table", "td", "em", "code", "ul", "li", "pre", "p"}
    assert '<p class="artifact-heading">Title</p>' in str(render_markdown(text))


@pytest.mark.parametrize(
    "text",
    [
        "<script>alert(1)</script>",
        "<img src=x onerror=alert(1)>",
        "[a](javascript:alert(1))",
        "![a](https://example.org/pixel.png)",
        "<https://example.org>",
        "| a |\n| - |\n| <b onclick=alert(1)>x</b> |",
        "[a]: https://example.org\n\n[a]",
    ],
)
def test_html_links_and_images_stay_text(text: str) -> None:
    assert not elements(text) & {"script", "img", "a", "b"}


def leave(sample, text: str):
    """Have the combine cell leave a Markdown file that its notebook shows."""
    notebook = sample.notebook(COMBINED)
    file = sample.artifact("latency.csv").parent / "report.md"
    file.write_text(text)
    notebook.cells[0].artifacts["report.md"] = str(file.relative_to(sample.root))
    notebook.blocks[0].text += "\n\n![artifact:report.md]\n"
    sample.publish()
    return "layer_norm/results/combined_results.html"


def test_a_notebook_shows_the_markdown_of_its_cell(sample, read_page) -> None:
    page = read_page(sample.site, leave(sample, "| kernel |\n| --- |\n| gelu |\n"))

    (part,) = (one for one in page.elements("div") if one.get("class") == "artifact-preview text")
    assert "gelu" in "".join(part.itertext())
    assert [link.get("href", "").rpartition("/")[2] for link in part.iter("a")] == ["report.md"]


def test_artifacts_that_are_too_long_are_linked_to(sample, read_page) -> None:
    sample.artifact("latency.csv").write_text("a,b\n" + "x" * 200_000 + "\n")
    page = read_page(sample.site, leave(sample, "x" * (LARGEST["md"] + 1)))

    assert not [one for one in page.elements("div") if one.get("class") == "artifact-preview text"]
    assert not page.elements("table")
    urls = [url for _, url in page.references()]
    assert any(url.endswith("report.md") for url in urls)
    assert "artifacts/combine/latency.csv" in urls
