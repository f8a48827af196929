"""Calls of ``run_benchmark`` in cells, and imports of other cells, found without running the code."""

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


class Import(NamedTuple):
    line: int
    """Of the code, from 1; of several imports of the module the first."""
    names: set[str]
    """What the code uses of the module."""


def find_imports(code: str) -> dict[str, Import]:
    """Return what a cell's code imports, by module.

    Imports in a ``try``, ``with`` or ``if`` are left out: they may be meant to fail.
    """
    nodes = code_nodes(code) if "import" in code else []
    found, modules, reached = dict[str, Import](), dict[str, str](), nodes[:1]
    for node in reached:  # which grows
        if not isinstance(node, ast.Try | ast.With | ast.If):
            reached += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = found.setdefault(node.module, Import(node.lineno, set())).names
            names.update(alias.name for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                found.setdefault(alias.name, Import(node.lineno, set()))
                modules[alias.asname or alias.name] = alias.name
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            found[modules[node.value.id]].names.add(node.attr)
    return found


def defined_names(code: str) -> set[str]:
    """Return the names of functions, classes and variables that code defines, at any depth."""
    nodes = code_nodes(code)
    names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return names | {node.name for node in nodes if isinstance(node, kinds)}


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal; None for any other expression."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None
