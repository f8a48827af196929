"""``kbt graph``: which blocks, layers and models a kernel reaches through the classes that use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
import typer

from kernels_bench_tools.cli.options import Json
from kernels_bench_tools.cli.output import print_json, terminal_width
from kernels_bench_tools.errors import ModelError
from kernels_bench_tools.records.model import DERIVED, ModelTasks, model_keys, read_model_tasks
from kernels_bench_tools.report.imports import Module, imports_of_models
from kernels_bench_tools.text import did_you_mean, plural, table, wrapped

Uses = Mapping[Module, Sequence[Module]]
"""The classes that each class uses itself."""


class User(msgspec.Struct):
    """A class that uses another one, directly or through others."""

    module: Module
    through: list[str]
    """Classes of a shortest chain of uses, from this one to the other one."""
    models: list[str]
    """Those in whose forward passes an instance of it calls the other one."""


class Reach(msgspec.Struct):
    """What a replacement of a class reaches."""

    module: Module
    users: list[User]
    calls: dict[str, dict[str, int]]
    """Calls in a forward pass, by model and phase."""


def graph(module: Annotated[str, typer.Argument()] = "", json: Json = False) -> None:
    """Show which blocks, layers and models call a kernel or block.

    Classes that use it are listed by level, each with a shortest chain of uses and the number of models in which it
    calls the module: code that names a class does not always call it. Without MODULE, print what each model uses.

    Args:
        module (MODULE): Such as rms_norm or RMSNorm. [default: all, as a tree]
    """
    uses = imports_of_models()
    if not module:
        _print_trees(uses, json)
        return
    names = {each.class_name.lower(): each for each in uses}
    key = module.replace("_", "").lower()
    if key not in names:
        expected = "A module of the models, such as rms_norm or RMSNorm; `kbt graph` lists them"
        raise ModelError(module, "is not a module of the models", expected, did_you_mean(key, names))
    reach = _reach(uses, names[key])
    if json:
        print_json(msgspec.to_builtins(reach))
    else:
        _print_reach(reach)


def _reach(uses: Uses, module: Module) -> Reach:
    models = [read_model_tasks(model) for model in model_keys(DERIVED)]
    callers = {model.model: _callers(model, module.class_name) for model in models}
    users = [
        User(
            user,
            [step.class_name for step in chain],
            [name for name in callers if user.class_name in callers[name]],
        )
        for user in uses
        if user != module and (chain := _chain(uses, user, module))
    ]
    calls = {
        model.model: {
            phase.name: sum(task.calls for task in phase.tasks if task.module == module.class_name)
            for phase in model.phases
        }
        for model in models
    }
    return Reach(module, users, {model: counts for model, counts in calls.items() if any(counts.values())})


def _callers(model: ModelTasks, name: str) -> set[str]:
    """Return the classes of which an instance calls a module in some phase: the module's path is below its own."""
    return {
        outer.module
        for phase in model.phases
        for inner in phase.tasks
        if inner.module == name
        for outer in phase.tasks
        for above in outer.paths
        if any(f"{path}.".startswith(f"{above}." if above else "") for path in inner.paths)
    }


def _chain(uses: Uses, user: Module, used: Module) -> tuple[Module, ...]:
    """Return the first of the shortest chains from a class to one that it uses; empty if it does not."""
    chains: list[tuple[Module, ...]] = [(user,)]
    while chains and not any(used == chain[-1] for chain in chains):
        chains = [(*chain, step) for chain in chains for step in uses[chain[-1]]]
    return min((chain for chain in chains if chain[-1] == used), default=())


def _print_reach(reach: Reach) -> None:
    number = plural(len(reach.users), "module") if reach.users else "no module"
    print(f"{_label(reach.module)} is used by {number}\n")
    for user in reach.users:
        called = f"calls it in {plural(len(user.models), 'model')}" if user.models else "only names it"
        print(f"{_label(user.module)} {called}")
        print(*wrapped(f"    {' > '.join(user.through)}", terminal_width()), sep="\n")
    phases = list(dict.fromkeys(phase for calls in reach.calls.values() for phase in calls))
    lines = [["calls in a forward pass", *phases]]
    for model, calls in reach.calls.items():
        lines.append([model, *(str(calls.get(phase, 0)) for phase in phases)])
    print()
    if reach.calls:
        print(table(lines, right=range(1, len(phases) + 1)))
    else:
        print("No model calls it on one GPU.")


def _print_trees(uses: Uses, json: bool) -> None:
    """Print what each model uses; what a tree has already shown is shown there without what it uses."""
    if json:
        print_json({module.class_name: [each.class_name for each in used] for module, used in uses.items()})
        return

    def show(module: Module, before: str, shown: set[Module]) -> None:
        print(f"{before}{_label(module)}")
        if module not in shown:
            shown.add(module)
            for each in uses[module]:
                show(each, f"{before}  ", shown)

    used = {each for modules in uses.values() for each in modules}
    for module in uses:
        if module not in used:
            show(module, "", set())


def _label(module: Module) -> str:
    return f"L{module.level} {module.class_name}"
