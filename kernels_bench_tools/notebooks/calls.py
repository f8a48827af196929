"""Calls of ``get_kernel`` and ``run_benchmark`` in cells, found without running the code."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec

from kernels_bench_tools.notebooks.document import Notebook


class Call(NamedTuple):
    """A call, of whose arguments those are None that are no literals."""

    line: int
    """Of the code, from 1."""
    first: Any
    settings: dict[str, Any]
    """The other named arguments."""


class KernelCall(NamedTuple):
    where: str
    """Notebook and line."""
    reference: str | dict[str, str] | None
    """The requested kernel or kernels; None if it is not a literal."""
    settings: dict[str, Any]
    """The other arguments that are literals."""

    @property
    def is_pinned(self) -> bool:
        """Whether it names a version or revision, or a local path, which has none."""
        if self.reference is None or {"version", "revision"} & self.settings.keys():
            return True
        references = self.reference.values() if isinstance(self.reference, dict) else [self.reference]
        return all("@" in name or name.startswith((".", "/", "~")) for name in references)


def find_kernel_calls(notebook: Notebook) -> Iterator[KernelCall]:
    """Yield the calls of ``get_kernel`` in the notebook's cells, in order."""
    for cell in notebook.active_cells:
        for call in _find_calls(cell.code, "get_kernel", "reference"):
            try:
                reference = msgspec.convert(call.first or None, str | dict[str, str] | None)
            except msgspec.ValidationError:
                reference = None
            yield KernelCall(f"{notebook.name}:{cell.file_line + call.line}", reference, call.settings)


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
