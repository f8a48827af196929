"""Formulas between dollars, as MathML that browsers set without a script."""

from __future__ import annotations

from typing import Any

from markupsafe import Markup


def formula(tex: str, options: dict[str, Any]) -> Markup:
    """Return a formula as MathML, or as code if it is not LaTeX that can be converted.

    Args:
        tex: What stands between the dollars.
        options: Of markdown-it's dollar plugin: ``display_mode`` tells a line of its own from a word.
    """
    from latex2mathml.converter import convert  # takes longer than a page that has no formula

    display = "block" if options.get("display_mode") else "inline"
    try:
        # The converter escapes text, and prose is its author's own.
        return Markup(convert(tex, display=display))  # noqa: S704
    except Exception:  # its errors share no base, and prose must not end a build
        return Markup("<code>{}</code>").format(" ".join(tex.split()))
