"""Calls of ``get_kernel`` and ``run_benchmark`` in cells, found without running the code."""

from __future__ import annotations

import ast
import re
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

from kernels_bench_tools.notebooks.document import Notebook


class Call(NamedTuple):
    """A call, of whose arguments those are None that are no literals."""

    line: int
    """Of the code, from 1."""
    first: Any
    settings: dict[str, Any]
    """The other named arguments."""


def find_unpinned(notebook: Notebook) -> Iterator[str]:
    """Yield the places of calls of ``get_kernel`` that name a kernel without a version, and no local path."""
    for cell in notebook.active_cells:
        for call in _find_calls(cell.code, "get_kernel", "reference"):
            pinned = {"version", "revision"} & call.settings.keys()
            if isinstance(call.first, str) and not pinned and not re.match(r"[./~]|.*@", call.first):
                yield f"{notebook.name}:{cell.file_line + call.line}"


def find_runs(code: str) -> list[Call]:
    """Return the calls of ``run_benchmark`` in order; none if the code is not Python, which running it reports."""
    return [*_find_calls(code, "run_benchmark", "operator")]


def _find_calls(code: str, function: str, parameter: str) -> Iterator[Call]:
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes in strings
            tree = ast.parse(code if function in code else "")
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    calls = [call for call in calls if function in {getattr(call.func, name, "") for name in ("id", "attr")}]
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        named = {keyword.arg: _literal(keyword.value) for keyword in call.keywords if keyword.arg}
        first = _literal(call.args[0]) if call.args else named.pop(parameter, None)
        yield Call(call.lineno, first, named)


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal; None for any other expression."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None
