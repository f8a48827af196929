"""Calls of ``run_benchmark`` in cells, found without running the code."""

from __future__ import annotations

import ast
import warnings
from typing import Any, NamedTuple


class Call(NamedTuple):
    """A call, of whose arguments those are None that are no literals."""

    line: int
    """Of the code, from 1."""
    first: Any
    settings: dict[str, Any]
    """The other named arguments."""


def code_nodes(code: str) -> list[ast.AST]:
    """Return what a cell's code is made of; nothing if it is not Python, which running it reports."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes in strings
            return [*ast.walk(ast.parse(code))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def find_runs(code: str) -> list[Call]:
    """Return the calls of ``run_benchmark`` in order."""
    nodes = code_nodes(code) if "run_benchmark" in code else []
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    found = []
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        if "run_benchmark" in {getattr(call.func, name, "") for name in ("id", "attr")}:
            named = {keyword.arg: _literal(keyword.value) for keyword in call.keywords if keyword.arg}
            first = _literal(call.args[0]) if call.args else named.pop("operator", None)
            found.append(Call(call.lineno, first, named))
    return found


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal; None for any other expression."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None
