"""``kbt graph``: which blocks, layers and models a kernel reaches through the imports of their modules."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated

import grimp
import msgspec
import typer
from rich.tree import Tree

from kernels_bench_tools.cli.options import Json
from kernels_bench_tools.cli.output import print_json
from kernels_bench_tools.cli.tables import new_table, table_console
from kernels_bench_tools.errors import ModelError
from kernels_bench_tools.records.model import DERIVED, ModelTasks, Phase, model_keys, read_model_tasks
from kernels_bench_tools.report.imports import Module, direct_imports, read_imports
from kernels_bench_tools.text import did_you_mean, plural

_WIDTH = 80


class Importer(msgspec.Struct):
    """A module that imports another one, directly or through others."""

    module: Module
    through: list[str]
    """Files of a shortest chain of imports, from this module to the other one."""
    models: list[str]
    """Those in whose forward passes an instance of its class calls the other one."""


class Reach(msgspec.Struct):
    """What a replacement of a module reaches."""

    module: Module
    importers: list[Importer]
    calls: dict[str, dict[str, int]]
    """Calls in a forward pass, by model and phase."""


def graph(
    module: Annotated[
        str,
        typer.Argument(
            metavar="MODULE",
            help="Such as rms_norm or RMSNorm. [default: all, as a tree]",
            show_default=False,
        ),
    ] = "",
    json: Json = False,
) -> None:
    """Show which blocks, layers and models call a kernel or block.

    Modules that import it are listed by level, each with a shortest chain of imports and the number of models in which
    it calls the module: an import does not imply a call. Without MODULE, print what each model imports.
    """
    imports, modules = read_imports()
    if not module:
        _print_trees(direct_imports(imports, modules), json)
        return
    found = _reach(imports, modules, _find(modules.values(), module))
    if json:
        print_json(msgspec.to_builtins(found))
    else:
        _print_reach(found)


def _find(modules: Iterable[Module], wanted: str) -> Module:
    names = {name: one for one in modules for name in (Path(one.file).stem, one.class_name)}
    if wanted not in names:
        expected = "A module of the models, such as rms_norm or RMSNorm; `kbt graph` lists them"
        raise ModelError(wanted, "is not a module of the models", expected, did_you_mean(wanted, names))
    return names[wanted]


def _reach(imports: grimp.ImportGraph, modules: Mapping[str, Module], module: Module) -> Reach:
    (name,) = (name for name, one in modules.items() if one == module)
    models = [read_model_tasks(model) for model in model_keys(DERIVED)]
    importers = []
    for importer in sorted(imports.find_downstream_modules(name) & modules.keys(), key=modules.__getitem__):
        chain = _chain(imports, importer, name)
        calling = [one.model for one in models if _calls(one, modules[importer], module)]
        importers.append(Importer(modules[importer], [modules[step].file for step in chain], calling))
    calls = {one.model: {phase.name: _count(phase, module) for phase in one.phases} for one in models}
    return Reach(module, importers, {model: found for model, found in calls.items() if any(found.values())})


def _chain(imports: grimp.ImportGraph, importer: str, imported: str) -> tuple[str, ...]:
    """Return the first of the shortest chains between two modules, one of which imports the other."""
    # ``find_shortest_chain`` returns any of them.
    chains: list[tuple[str, ...]] = [(importer,)]
    while not any(imported == chain[-1] for chain in chains):
        chains = [
            (*chain, one)
            for chain in chains
            for one in imports.find_modules_directly_imported_by(chain[-1])
            if one == imported or imports.chain_exists(one, imported)
        ]
    return min(chain for chain in chains if chain[-1] == imported)


def _calls(model: ModelTasks, importer: Module, module: Module) -> bool:
    """Return whether an instance of a class calls a module in some phase: whether the module's path is below its own."""
    return any(
        f"{inner}.".startswith(f"{outer}." if outer else "")
        for phase in model.phases
        for outer in _paths(phase, importer)
        for inner in _paths(phase, module)
    )


def _paths(phase: Phase, module: Module) -> set[str]:
    tasks = [task for task in phase.tasks if task.module == module.class_name]
    return {path for task in tasks for path in task.paths}


def _count(phase: Phase, module: Module) -> int:
    return sum(task.calls for task in phase.tasks if task.module == module.class_name)


def _print_reach(found: Reach) -> None:
    console = table_console(_WIDTH)
    number = plural(len(found.importers), "module") if found.importers else "no module"
    print(f"{found.module.class_name}, {found.module.file}, is imported by {number}\n")
    for one in found.importers:
        called = f"calls it in {plural(len(one.models), 'model')}" if one.models else "only imports it"
        print(f"L{one.module.level}  {one.module.class_name} {called}")
        console.print(f"    {' > '.join(one.through)}")
    table = new_table()
    phases = list(dict.fromkeys(phase for calls in found.calls.values() for phase in calls))
    table.add_column("calls in a forward pass", no_wrap=True)
    for phase in phases:
        table.add_column(phase, justify="right")
    for model, calls in found.calls.items():
        table.add_row(model, *(str(calls.get(phase, 0)) for phase in phases))
    print()
    if found.calls:
        console.print(table)
    else:
        print("No model calls it on one GPU.")


def _print_trees(direct: Mapping[Module, list[Module]], json: bool) -> None:
    """Print what each model imports; what a tree has already shown is shown there without its imports."""
    if json:
        print_json({module.file: [one.file for one in found] for module, found in direct.items()})
        return
    imported = {one for found in direct.values() for one in found}
    for module in direct:
        if module not in imported:
            tree = Tree(_label(module), guide_style="dim")
            _add(tree, module, direct, set())
            table_console(_WIDTH).print(tree)


def _add(tree: Tree, module: Module, direct: Mapping[Module, list[Module]], shown: set[Module]) -> None:
    for one in direct[module]:
        branch = tree.add(_label(one))
        if one not in shown:
            shown.add(one)
            _add(branch, one, direct, shown)


def _label(module: Module) -> str:
    return f"{module.file} ({module.class_name})"
