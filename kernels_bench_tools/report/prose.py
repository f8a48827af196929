"""Rendering of a notebook's Markdown."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from contextvars import ContextVar
from functools import cache
from html import unescape
from typing import Any
from xml.etree import ElementTree

from markdown_it import MarkdownIt
from markdown_it.ruler import RuleOptionsType
from markdown_it.rules_block import StateBlock
from markdown_it.rules_inline import StateInline
from markdown_it.token import Token
from markupsafe import Markup
from mdit_py_plugins.anchors import anchors_plugin
from mdit_py_plugins.dollarmath import dollarmath_plugin
from mdit_py_plugins.footnote import footnote_plugin

from kernels_bench_tools.records.build import CellRun, NotebookRun
from kernels_bench_tools.report.cells import OPERATORS, Body, BodyPart, Heading
from kernels_bench_tools.report.markup import TABLE_RULES, highlighted, replace_tags
from kernels_bench_tools.report.page import Page
from kernels_bench_tools.text.hiding import without_private

_PLACEHOLDER = re.compile(
    r"!\[(artifact:[^\]\n]+|family:[^\]\n]+|contents|operators(?::[^\]\n]*)?|results)\](?![(\[])"
)
_LONGEST_PLACEHOLDER = 4000
_CODE_OR_COMMENT = re.compile(
    r"""^[ ]{0,3}(?P<fence>`{3,}|~{3,})(?:.*?^[ ]{0,3}(?P=fence)[`~]*\s*?$|.*) | (?<=\n\n)(?:[ ]{4}.*?$)
    | (?<![`\\])(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`) | (?<!\\)(?P<comment><!--.*?-->)""",
    re.MULTILINE | re.DOTALL | re.VERBOSE,
)
_CELL, _OPEN, _NO_CELL = "\ufdd0", "\ufdd1", "\ufffd"
"""Characters that are none: one begins the line of a cell in the text that is parsed, one stands for ``<!--``."""
_RAW_ID = re.compile(r"""\bid\s*=\s*["']?([^"'\s>]+)""")
_page: ContextVar[Page] = ContextVar("page")
"""The page that prose is rendered for."""


def render_notebook(notebook: NotebookRun, page: Page, *, raw_html: bool = False) -> Body:
    """Return the notebook's text for ``page``.

    The first heading becomes the page's title. If other headings of the first level remain, all move down a level.
    HTML in the prose is shown as text unless ``raw_html``.
    """
    _page.set(page)
    markdown = _markdown(raw_html)
    env: dict[str, Any] = {"docId": "note"}  # part of the ids of footnotes
    # One text, since notes and links may be defined anywhere in it. Rendered, marks and elements may be inside a URL.
    text = "\n\n".join(
        f"{_CELL}{at}" if isinstance(block, CellRun) else without_private(block.text).replace(_CELL, _NO_CELL)
        for at, block in enumerate(notebook.blocks)
    )
    last = max(text.rfind("-->"), 0)  # what begins behind it has no end, which would be searched for each
    text = text[:last] + text[last:].replace("<!--", _OPEN)
    text = _CODE_OR_COMMENT.sub(lambda match: "" if match["comment"] else match[0], text).replace(
        _OPEN, "<!--"
    )
    if raw_html:
        page.taken.update(_RAW_ID.findall(text))
    tokens = markdown.parse(text, env)
    body = Body()
    if tokens and tokens[0].tag == "h1":
        # markdown-it escapes all but the author's raw HTML.
        title = markdown.renderer.render(tokens[1].children or [], markdown.options, env)
        body.title, body.title_id = Markup(title), str(tokens[0].attrGet("id") or "")  # noqa: S704
        del tokens[:3]
    headings = [token for token in tokens if token.type.startswith("heading_")]
    if any(token.tag == "h1" for token in headings):
        for token in headings:
            token.tag = f"h{min(6, int(token.tag[1]) + 1)}"
    body.parts += _parts(notebook, tokens, markdown, env)
    return body


@cache
def _markdown(raw_html: bool) -> MarkdownIt:
    """Return the parser and renderer of prose; creating it takes longer than using it."""
    options = {"highlight": _fence, "html": raw_html, "tasklists": True, "alerts": True}
    markdown = MarkdownIt("commonmark", options).enable(["table", "strikethrough"])
    markdown.use(footnote_plugin, inline=False)
    markdown.use(anchors_plugin, max_level=6, slug_func=lambda title: _page.get().heading_id(title))
    markdown.use(
        dollarmath_plugin, allow_labels=False, allow_space=False, allow_digits=False, renderer=_formula
    )
    markdown.inline.ruler.before("image", "placeholder", _placeholder)
    interrupting: RuleOptionsType = {"alt": ["paragraph", "reference", "blockquote", "list"]}
    markdown.block.ruler.before("table", "cell", _cell, interrupting)
    markdown.core.ruler.push("links", lambda state: _rewrite_links(state.tokens, _page.get()))
    markdown.add_render_rule(
        "placeholder", lambda _, tokens, index, *_rest: str(Markup.escape(f"![{tokens[index].content}]"))
    )
    replace_tags(markdown, TABLE_RULES)
    return markdown


def _fence(code: str, language: str, _attributes: str) -> str:
    return f'<pre class="highlight" tabindex="0"><code>{highlighted(code, language)}</code></pre>'


def _placeholder(state: StateInline, silent: bool) -> bool:
    # Bounded, or a line of thousands of unclosed placeholders would be read to its end for each of them.
    end = state.pos + _LONGEST_PLACEHOLDER
    if state.src.find("]", state.pos, end) < 0:
        return False
    match = _PLACEHOLDER.match(state.src, state.pos, end)
    if match is None:
        return False
    if not silent:
        state.push("placeholder", "", 0).content = match[1]
    state.pos = match.end()
    return True


def _cell(state: StateBlock, start: int, _end: int, silent: bool) -> bool:
    position = state.bMarks[start]
    if not state.src.startswith(_CELL, position):
        return False
    if not silent:
        state.push("cell", "", 0).meta["block"] = int(state.src[position + 1 : state.eMarks[start]])
        state.line = start + 1
    return True


def _rewrite_links(tokens: Iterable[Token], page: Page) -> None:
    for token in tokens:
        for child in token.children or ():
            for name in ("href", "src"):
                url = child.attrGet(name)
                if isinstance(url, str):
                    child.attrSet(name, page.links.rewrite(url, page.folder, page.path))
            _rewrite_links([child], page)


def _is_chapter(token: Token) -> bool:
    return token.type == "heading_open" and token.tag == "h2" and token.level == 0


def _parts(
    notebook: NotebookRun, tokens: list[Token], markdown: MarkdownIt, env: dict[str, Any]
) -> Iterator[BodyPart]:
    """Yield the cells and the rendered tokens between them, split at placeholders and before each chapter."""
    chunk: list[Token] = []

    def flush() -> Iterator[BodyPart]:
        if chunk:
            # Raw HTML is the author's own.
            html = Markup(markdown.renderer.render(chunk, markdown.options, env))  # noqa: S704
            heading = None
            if _is_chapter(chunk[0]):
                texts = (it.content for it in chunk[1].children or () if it.type in {"text", "code_inline"})
                heading = Heading(str(chunk[0].attrGet("id")), "".join(texts))
            yield BodyPart("html", html=html, heading=heading)
            chunk.clear()

    index = 0
    while index < len(tokens):
        if tokens[index].type == "cell":
            yield from flush()
            cell = notebook.blocks[tokens[index].meta["block"]]
            yield BodyPart("cell", cell=cell if isinstance(cell, CellRun) else None)
            index += 1
            continue
        names = _standing_alone(tokens, index)
        if names:
            yield from flush()
            for kind, _, name in (name.partition(":") for name in names):
                # The order of the operators was read by find_operators.
                yield BodyPart(kind, name="" if kind == OPERATORS else name.strip())
            index += 3
            continue
        if _is_chapter(tokens[index]):
            yield from flush()
        chunk.append(tokens[index])
        index += 1
    yield from flush()


def _standing_alone(tokens: Sequence[Token], index: int) -> list[str]:
    """Return the placeholders of a top-level paragraph of nothing else."""
    if tokens[index].type != "paragraph_open" or tokens[index].level != 0:
        return []
    children = tokens[index + 1].children or []
    if any(child.type not in {"placeholder", "softbreak"} for child in children if child.content.strip()):
        return []
    return [child.content for child in children if child.type == "placeholder"]


def _formula(tex: str, options: dict[str, Any]) -> Markup:
    r"""Return a formula as MathML, or as code if it cannot be converted.

    A displayed formula is divided at each ``\\qquad``, so that its parts can be put below one another on a phone.
    """
    from latex2mathml.converter import convert_to_element  # slow to import, and few pages have formulas

    display = "block" if options.get("display_mode") else "inline"
    try:
        parts = tex.split(r"\qquad") if display == "block" else [tex]
        pairs = (("{", "}"), (r"\begin", r"\end"), (r"\left", r"\right"))
        if any(part.count(start) != part.count(end) for part in parts for start, end in pairs):
            parts = [tex]
        formulas = [convert_to_element(part, display=display) for part in parts]
        for element in (element for formula in formulas for element in formula.iter()):
            # The converter writes symbols as references and leaves other text, such as a tag, as it is.
            element.text = unescape(element.text or "") or None
            for name in ("class", "href", "style"):
                element.attrib.pop(name, None)
        # Escaped by ElementTree.
        return Markup("".join(ElementTree.tostring(it, encoding="unicode") for it in formulas))  # noqa: S704
    except Exception:  # its errors have no common base class
        return Markup("<code>{}</code>").format(" ".join(tex.split()))
