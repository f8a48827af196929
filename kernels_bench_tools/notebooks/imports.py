"""What the code of cells imports and defines, found without running it."""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Mapping
from typing import NamedTuple

from kernels_bench_tools.notebooks.cell import Cell


class Import(NamedTuple):
    line: int
    """Of the code, from 1; of several imports of the module the first."""
    names: set[str]
    """What the code uses of the module."""


def code_nodes(code: str) -> list[ast.AST]:
    """Return the nodes of a cell's code; none if it is not Python, which running it reports."""
    try:
        with warnings.catch_warnings(action="ignore"):  # of escapes in strings
            return [*ast.walk(ast.parse(code))]
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return []


def find_imports(code: str, *, guarded: bool) -> dict[str, Import]:
    """Return what a cell's code imports, by module.

    Without ``guarded``, imports in a ``try``, ``with`` or ``if`` are left out: they may be meant to fail.
    """
    nodes = code_nodes(code) if "import" in code else []
    imports, modules, reached = dict[str, Import](), dict[str, str](), nodes[:1]
    for node in reached:  # which grows
        if guarded or not isinstance(node, ast.Try | ast.With | ast.If):
            reached += ast.iter_child_nodes(node)
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names = imports.setdefault(node.module, Import(node.lineno, set())).names
            names.update(alias.name for alias in node.names if alias.name != "*")
        elif isinstance(node, ast.Import):
            for alias in node.names:
                imports.setdefault(alias.name, Import(node.lineno, set()))
                modules[alias.asname or alias.name] = alias.name
    for node in nodes:
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules:
            imports[modules[node.value.id]].names.add(node.attr)
    return imports


def defined_names(code: str) -> set[str]:
    """Return the names of functions, classes and variables that code defines, at any depth."""
    nodes = code_nodes(code)
    names = {node.id for node in nodes if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    kinds = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef
    return names | {node.name for node in nodes if isinstance(node, kinds)}


def not_importable(cell: str) -> tuple[str, str]:
    """Return what is wrong with the import of a cell that runs a benchmark, and what to do."""
    return f"cell {cell} runs a benchmark and cannot be imported", "Move shared code into its own cell"


def imported_cells(cell: Cell, cells: Mapping[str, Cell]) -> dict[str, str]:
    """Return ``Cell.imported``; ``cells`` are those of the notebook. No cell replaces a module of Python's library."""
    needed, waiting = dict[str, Cell](), [cell]
    while waiting:
        for name in waiting.pop().needs:
            if name in cells and name not in {cell.id, *needed, *sys.stdlib_module_names}:
                needed[name] = cells[name]
                waiting.append(cells[name])
    imported, codes = dict[str, str](), [cell.code]
    while codes and needed:
        modules = {module.partition(".")[0] for module in find_imports(codes.pop(), guarded=True)}
        for name in modules & needed.keys() - imported.keys():
            imported[name] = needed[name].code
            if needed[name].measures:  # it would measure again, and its records be lost
                what = ". ".join(not_importable(name))
                imported[name] = f"raise ImportError({what!r})"
            codes.append(imported[name])
    return dict(sorted(imported.items()))
