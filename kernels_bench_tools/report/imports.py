"""The modules of models and what they import, for ``kbt graph`` and the pages of models."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from grimp import ImportGraph

_PACKAGE = __name__.partition(".")[0]
_ROOT = f"{_PACKAGE}.models.baseline"


class Module(msgspec.Struct, frozen=True, order=True):
    """A module of a level."""

    level: int
    file: str
    """Relative to the folder of the levels, such as ``L1/rms_norm.py``."""
    class_name: str


def read_imports() -> tuple[ImportGraph, dict[str, Module]]:
    """Return the imports of this package, and the modules of models by their names in it, in the order of levels."""
    # A build in which nothing changed need not import it.
    import grimp

    imports = grimp.build_graph(_PACKAGE, cache_dir=None)
    return imports, dict(_modules(imports))


def direct_imports(imports: ImportGraph, modules: Mapping[str, Module]) -> dict[Module, list[Module]]:
    """Return the modules that each module imports itself, higher levels first."""
    return {
        module: sorted(
            (modules[one] for one in imports.find_modules_directly_imported_by(name) & modules.keys()),
            reverse=True,
        )
        for name, module in modules.items()
    }


@cache
def imports_of_models() -> Mapping[Module, Sequence[Module]]:
    """Return the modules that each module of the models imports itself."""
    # Read once: the threads that grimp starts do not exist in forked processes, which would wait for them forever.
    return direct_imports(*read_imports())


def _modules(imports: ImportGraph) -> Iterator[tuple[str, Module]]:
    """Yield each module that defines a class."""
    folder = Path(__file__).parents[1] / "models" / "baseline"
    for name in sorted(imports.find_descendants(_ROOT)):
        file = name.removeprefix(f"{_ROOT}.").replace(".", "/") + ".py"
        if not file.startswith("L") or not (folder / file).is_file():
            continue
        tree = ast.parse((folder / file).read_bytes())
        for class_name in [node.name for node in tree.body if isinstance(node, ast.ClassDef)][:1]:
            yield name, Module(int(file[1]), file, class_name)
