"""Markdown that a cell left, as a part of a page: text, lists and tables, and nothing that a cell should not decide."""

from __future__ import annotations

from functools import cache

from markdown_it import MarkdownIt
from markupsafe import Markup

_ALLOWED = [
    "heading",
    "lheading",
    "list",
    "table",
    "fence",
    "code",
    "emphasis",
    "backticks",
    "escape",
    "entity",
    "newline",
]
"""No link, image or HTML: what a cell prints is not its author's word."""


def render_markdown(text: str) -> Markup:
    """Return Markdown as HTML. Links, images and HTML stay text, and headings get no place in the page's outline."""
    return Markup(_markdown().render(text))  # noqa: S704 - everything that it does not know is escaped


@cache
def _markdown() -> MarkdownIt:
    markdown = MarkdownIt("zero").enable(_ALLOWED)
    markdown.add_render_rule("heading_open", lambda *_: '<p class="artifact-heading">')
    markdown.add_render_rule("heading_close", lambda *_: "</p>\n")
    markdown.add_render_rule(
        "table_open",
        lambda *_: '<div class="scroll" tabindex="0" role="group" aria-label="Table">\n<table>\n',
    )
    markdown.add_render_rule("table_close", lambda *_: "</table>\n</div>\n")
    return markdown
