"""Markdown of cells and code as HTML."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache

from markdown_it import MarkdownIt
from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

TABLE_RULES = {
    "table_open": '<div class="scroll" tabindex="0" role="group" aria-label="Table">\n<table>\n',
    "table_close": "</table>\n</div>\n",
}
_ARTIFACT_RULES = [
    *("heading", "lheading", "list", "table", "fence", "code"),
    *("emphasis", "backticks", "escape", "entity", "newline"),
]
"""Without links, images and HTML: a cell must not add those to a page."""
_DARK, _LIGHT = "github-dark", "default"
"""Styles of Pygments."""
_FORMATTER: HtmlFormatter[str] = HtmlFormatter(nowrap=True)


def replace_tags(markdown: MarkdownIt, tags: Mapping[str, str]) -> None:
    for name, html in tags.items():
        markdown.add_render_rule(name, lambda *_, html=html: html)


def render_markdown(text: str) -> Markup:
    """Return an artifact's Markdown as HTML. Links, images and HTML are shown as text, headings as paragraphs."""
    return Markup(_artifact_markdown().render(text))  # noqa: S704 - all other text is escaped


@cache
def _artifact_markdown() -> MarkdownIt:
    markdown = MarkdownIt("zero").enable(_ARTIFACT_RULES)
    headings = {"heading_open": '<p class="artifact-heading">', "heading_close": "</p>\n"}
    replace_tags(markdown, headings | TABLE_RULES)
    return markdown


def highlighted(code: str, language: str = "python") -> Markup:
    """Return highlighted code as HTML; plain text if the language is unknown."""
    lexer = _lexer(language) if language else None
    if lexer is None:
        return Markup.escape(code)
    # Pygments escapes the code.
    return Markup(highlight(code, lexer, _FORMATTER))  # noqa: S704


@cache
def _lexer(language: str) -> Lexer | None:
    try:
        return get_lexer_by_name(language, stripnl=False)
    except ClassNotFound:
        return None


def highlight_styles() -> str:
    dark = _rules(_DARK, ".highlight")
    system = _light(":root:not([data-theme=dark]) .highlight")
    chosen = _light(":root[data-theme=light] .highlight")
    return f"{dark}\n@media (prefers-color-scheme: light), print {{\n{system}\n}}\n{chosen}\n"


def _rules(style: str, prefix: str) -> str:
    formatter = HtmlFormatter(style=style)
    # Only the rules of tokens; style.css has the others.
    styles: str = formatter.get_style_defs(prefix)  # type: ignore[no-untyped-call]
    rules = (line for line in styles.splitlines() if f"{prefix} ." in line)
    return "\n".join(rule for rule in rules if f"{prefix} .hll" not in rule)


def _light(prefix: str) -> str:
    # The dark style has rules for tokens that the light one has not.
    return f"{prefix} span {{ color: inherit }}\n{_rules(_LIGHT, prefix)}"
