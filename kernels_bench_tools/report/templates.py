"""The Jinja environment: templates and the filters that they use."""

from __future__ import annotations

from base64 import b64encode
from functools import cache
from hashlib import sha256
from inspect import isfunction

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kernels_bench_tools.records.model import model_and_framework
from kernels_bench_tools.report import cells, labels
from kernels_bench_tools.report.paths import template_folder
from kernels_bench_tools.results import tables
from kernels_bench_tools.text import hiding, names, numbers, words
from kernels_bench_tools.text import tables as text_tables


def _csp_hash(script: str) -> str:
    """Return the source that allows this inline script in a Content-Security-Policy."""
    return f"sha256-{b64encode(sha256(script.encode()).digest()).decode()}"


@cache
def environment() -> Environment:
    """Return the environment that renders pages: all text is escaped, and an undefined name is an error.

    Every function of ``text/``, ``labels`` and ``results/tables`` is a filter.
    """
    jinja = Environment(
        loader=FileSystemLoader(template_folder()),
        auto_reload=False,
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    for module in (hiding, names, numbers, text_tables, words, labels, tables):
        functions = {name: it for name, it in vars(module).items() if isfunction(it)}
        jinja.filters.update({name: it for name, it in functions.items() if it.__module__ == module.__name__})
    jinja.filters.update(
        ms=numbers.milliseconds,
        terminal=cells.plain_text,
        csp_hash=_csp_hash,
        status=labels.status_label,
        passed=labels.CHECKS.__getitem__,
        verdict=labels.VERDICTS.__getitem__,
        change=labels.CHANGES.__getitem__,
        effect=labels.EFFECTS.__getitem__,
        peak=labels.peak_name,
        framework=lambda model: model_and_framework(model)[1],
    )
    return jinja
