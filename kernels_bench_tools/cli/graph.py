"""``kbt graph``: which blocks, layers and models a kernel reaches through the classes that use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec
import typer

from kernels_bench_tools.cli.options import Json
from kernels_bench_tools.cli.output import print_json, terminal_width
from kernels_bench_tools.errors import ModelError
from kernels_bench_tools.records.model import DERIVED, ModelTasks, Phase, model_keys, read_model_tasks
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


def graph(
    module: Annotated[str, typer.Argument()] = "",
    json: Json = False,
) -> None:
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
    found = _reach(uses, _find(uses, module))
    if json:
        print_json(msgspec.to_builtins(found))
    else:
        _print_reach(found)


def _find(uses: Uses, wanted: str) -> Module:
    names = {module.class_name.lower(): module for module in uses}
    key = wanted.replace("_", "").lower()
    if key not in names:
        expected = "A module of the models, such as rms_norm or RMSNorm; `kbt graph` lists them"
        near = did_you_mean(key, names)
        raise ModelError(wanted, "is not a module of the models", expected, near)
    return names[key]


def _reach(uses: Uses, module: Module) -> Reach:
    models = [read_model_tasks(model) for model in model_keys(DERIVED)]
    users = []
    for user in uses:
        if user != module and (chain := _chain(uses, user, module)):
            calling = [one.model for one in models if _calls(one, user, module)]
            users.append(User(user, [step.class_name for step in chain], calling))
    calls = {one.model: {phase.name: _count(phase, module) for phase in one.phases} for one in models}
    return Reach(module, users, {model: found for model, found in calls.items() if any(found.values())})


def _chain(uses: Uses, user: Module, used: Module) -> tuple[Module, ...]:
    """Return the first of the shortest chains from a class to one that it uses; empty if it does not."""
    chains: list[tuple[Module, ...]] = [(user,)]
    while chains and not any(used == chain[-1] for chain in chains):
        chains = [(*chain, step) for chain in chains for step in uses[chain[-1]]]
    return min((chain for chain in chains if chain[-1] == used), default=())


def _calls(model: ModelTasks, user: Module, module: Module) -> bool:
    """Return whether an instance of a class calls a module in some phase: whether the module's path is below its own."""
    return any(
        f"{inner}.".startswith(f"{outer}." if outer else "")
        for phase in model.phases
        for outer in _paths(phase, user)
        for inner in _paths(phase, module)
    )


def _paths(phase: Phase, module: Module) -> set[str]:
    tasks = [task for task in phase.tasks if task.module == module.class_name]
    return {path for task in tasks for path in task.paths}


def _count(phase: Phase, module: Module) -> int:
    return sum(task.calls for task in phase.tasks if task.module == module.class_name)


def _print_reach(found: Reach) -> None:
    number = plural(len(found.users), "module") if found.users else "no module"
    print(f"{_label(found.module)} is used by {number}\n")
    for user in found.users:
        called = f"calls it in {plural(len(user.models), 'model')}" if user.models else "only names it"
        print(f"{_label(user.module)} {called}")
        print(*wrapped(f"    {' > '.join(user.through)}", terminal_width()), sep="\n")
    phases = list(dict.fromkeys(phase for calls in found.calls.values() for phase in calls))
    lines = [["calls in a forward pass", *phases]]
    for model, calls in found.calls.items():
        lines.append([model, *(str(calls.get(phase, 0)) for phase in phases)])
    print()
    if found.calls:
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
