"""The classes of models and which of them each class uses, for ``kbt graph`` and the pages of models."""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path

import msgspec

from kernels_bench_tools.results.models import ModelReport

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
            {classes[it.id][0] for it in ast.walk(node) if isinstance(it, ast.Name) and it.id in classes}
            - {module},
            reverse=True,
        )
        for module, node in sorted(classes.values(), key=lambda item: item[0])
    }


def model_imports(model: ModelReport) -> dict[Module, Sequence[Module]]:
    """Return what the class of a model uses, directly or through others, each module with its own."""
    imports = imports_of_models()
    top = model.whole.phases[0].tree.class_name
    left = [module for module in imports if module.class_name == top]
    found: dict[Module, Sequence[Module]] = {}
    while left:
        module = left.pop()
        if module not in found:
            found[module] = imports[module]
            left += imports[module]
    return dict(sorted(found.items(), key=lambda item: (-item[0].level, item[0].class_name)))


def imports_json(model: ModelReport) -> bytes:
    """Return the modules of a model, whether some phase calls them, and the modules that they use."""
    called = model.classes
    modules = [
        {
            "level": module.level,
            "class_name": module.class_name,
            "called": module.class_name in called,
            "imports": [one.class_name for one in uses],
        }
        for module, uses in model_imports(model).items()
    ]
    return (
        msgspec.json.format(msgspec.json.encode({"model": model.key, "modules": modules}), indent=1) + b"\n"
    )
