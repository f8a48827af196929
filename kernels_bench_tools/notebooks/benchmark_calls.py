"""Calls of ``run_benchmark`` in the code of cells, found without running it."""

from __future__ import annotations

import ast
from typing import Any, NamedTuple

from kernels_bench_tools.notebooks.imports import code_nodes


class BenchmarkCall(NamedTuple):
    """A call. Arguments that are no literals are None, and so is an operator that is no name."""

    line: int
    """Of the code, from 1."""
    operator: str | None
    settings: dict[str, Any]
    """The other named arguments."""


def find_benchmark_calls(code: str) -> list[BenchmarkCall]:
    """Return the calls of ``run_benchmark`` in order."""
    nodes = code_nodes(code) if "run_benchmark" in code else []
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    benchmarks = []
    for call in sorted(calls, key=lambda node: (node.lineno, node.col_offset)):
        if "run_benchmark" in {getattr(call.func, name, "") for name in ("id", "attr")}:
            named = {keyword.arg: _literal(keyword.value) for keyword in call.keywords if keyword.arg}
            operator = _literal(call.args[0]) if call.args else named.pop("operator", None)
            name = operator if isinstance(operator, str) else None
            benchmarks.append(BenchmarkCall(call.lineno, name, named))
    return benchmarks


def _literal(node: ast.expr) -> Any:
    """Return the value of a literal; None for any other expression."""
    try:
        return ast.literal_eval(node)
    except (ValueError, TypeError, RecursionError, MemoryError):
        return None
