"""The classes of models and which of them each class uses, for ``kbt graph`` and the pages of models."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

_LEVELS = Path(__file__).parents[1] / "models" / "baseline"


class Module(msgspec.Struct, frozen=True, order=True):
    """A class of ``models/baseline/L<level>.py``."""

    level: int
    class_name: str


@cache
def imports_of_models() -> Mapping[Module, Sequence[Module]]:
    """Return the classes of all levels, each with those that its code names, higher levels first.

    The code is read, not run: the command has no torch.
    """
    trees = {level: ast.parse((_LEVELS / f"L{level}.py").read_bytes()) for level in (1, 2, 3, 4)}
    classes = {
        node.name: (Module(level, node.name), node)
        for level, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    }
    return {
        module: sorted(
            {classes[name][0] for name in _names_in(node) & classes.keys()} - {module}, reverse=True
        )
        for module, node in sorted(classes.values(), key=lambda item: item[0])
    }


def _names_in(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}
