"""Code with colours that the style sheet decides."""

from __future__ import annotations

from functools import cache

from markupsafe import Markup
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexer import Lexer
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

_DARK, _LIGHT = "github-dark", "default"


def highlighted(code: str, language: str = "python") -> Markup:
    """Return code as spans with classes, escaped; as plain text if the language is not known."""
    lexer = _lexer(language) if language else None
    if lexer is None:
        return Markup.escape(code)
    # Pygments escapes what it is given.
    return Markup(highlight(code, lexer, _formatter()))  # noqa: S704


@cache
def _lexer(language: str) -> Lexer | None:
    try:
        return get_lexer_by_name(language, stripnl=False)
    except ClassNotFound:
        return None


@cache
def _formatter() -> HtmlFormatter[str]:
    return HtmlFormatter(nowrap=True)


def highlight_styles() -> str:
    """Return the style sheet of highlighted code: dark, and light by system or choice."""
    dark = _rules(_DARK, ".highlight")
    system = _light(":root:not([data-theme=dark]) .highlight")
    chosen = _light(":root[data-theme=light] .highlight")
    return f"{dark}\n@media (prefers-color-scheme: light), print {{\n{system}\n}}\n{chosen}\n"


def _rules(style: str, prefix: str) -> str:
    formatter = HtmlFormatter(style=style)
    # Only the tokens' own rules: the frame around them is the report's.
    styles: str = formatter.get_style_defs(prefix)  # type: ignore[no-untyped-call]
    rules = (line for line in styles.splitlines() if f"{prefix} ." in line)
    return "\n".join(rule for rule in rules if f"{prefix} .hll" not in rule)


def _light(prefix: str) -> str:
    # The dark style colours tokens that the light one leaves alone.
    return f"{prefix} span {{ color: inherit }}\n{_rules(_LIGHT, prefix)}"
