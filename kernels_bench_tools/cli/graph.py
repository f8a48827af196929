"""``kbt graph``: which blocks, layers and models a kernel reaches through the classes that use it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from kernels_bench_tools.cli.options import Json
from kernels_bench_tools.cli.output import print_json, terminal_width
from kernels_bench_tools.errors import ModelError
from kernels_bench_tools.records.model import DERIVED, ModelTasks, model_keys, read_model_tasks
from kernels_bench_tools.report.imports import Module, imports_of_models
from kernels_bench_tools.text import did_you_mean, plural, table, wrapped


def graph(module: Annotated[str, typer.Argument()] = "", json: Json = False) -> None:
    """Show which blocks, layers and models call a kernel or block.

    Classes that use it are listed by level, each with a shortest chain of uses and the number of models in which it
    calls the module: code that names a class does not always call it. Without MODULE, print what each model uses.

    Args:
        module (MODULE): Such as rms_norm or RMSNorm. [default: all, as a tree]
    """
    uses = imports_of_models()
    if not module and json:
        print_json({each.class_name: [one.class_name for one in found] for each, found in uses.items()})
        return
    if not module:
        inner = {each for found in uses.values() for each in found}
        for each in (one for one in uses if one not in inner):
            _print_tree(uses, each, "", set())
        return
    names = {each.class_name.lower(): each for each in uses}
    key = module.replace("_", "").lower()
    if key not in names:
        expected = "A module of the models, such as rms_norm or RMSNorm; `kbt graph` lists them"
        raise ModelError(module, "is not a module of the models", expected, did_you_mean(key, names))
    used, models = names[key], [read_model_tasks(model) for model in model_keys(DERIVED)]
    callers = {model.model: _callers(model, used.class_name) for model in models}
    chains = {user: _chain(uses, user, used) for user in uses if user != used}
    calls = {
        model.model: {
            phase.name: sum(task.calls for task in phase.tasks if task.module == used.class_name)
            for phase in model.phases
        }
        for model in models
    }
    calls = {name: counts for name, counts in calls.items() if any(counts.values())}
    users: list[dict[str, Any]] = [
        {
            "module": user,
            # Classes of a shortest chain of uses, from this one to the other one.
            "through": [step.class_name for step in chain],
            # Those in whose forward passes an instance of it calls the other one.
            "models": [name for name, found in callers.items() if user.class_name in found],
        }
        for user, chain in chains.items()
        if chain
    ]
    if json:
        print_json({"module": used, "users": users, "calls": calls})
        return
    print(f"{_label(used)} is used by {plural(len(users), 'module') if users else 'no module'}\n")
    for user in users:
        count = plural(len(user["models"]), "model")
        print(f"{_label(user['module'])} {f'calls it in {count}' if user['models'] else 'only names it'}")
        print(*wrapped(f"    {' > '.join(user['through'])}", terminal_width()), sep="\n")
    phases = list(dict.fromkeys(phase for counts in calls.values() for phase in counts))
    lines = [["calls in a forward pass", *phases]]
    lines += [[name, *(str(counts.get(phase, 0)) for phase in phases)] for name, counts in calls.items()]
    print()
    print(table(lines, right=range(1, len(phases) + 1)) if calls else "No model calls it on one GPU.")


def _print_tree(
    uses: Mapping[Module, Sequence[Module]], module: Module, before: str, shown: set[Module]
) -> None:
    """Print what a module uses; what the tree has already shown is shown without what it uses."""
    print(f"{before}{_label(module)}")
    if module not in shown:
        shown.add(module)
        for each in uses[module]:
            _print_tree(uses, each, f"{before}  ", shown)


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


def _chain(uses: Mapping[Module, Sequence[Module]], user: Module, used: Module) -> tuple[Module, ...]:
    """Return the first of the shortest chains from a class to one that it uses; empty if it does not."""
    chains: list[tuple[Module, ...]] = [(user,)]
    while chains and not any(used == chain[-1] for chain in chains):
        chains = [(*chain, step) for chain in chains for step in uses[chain[-1]]]
    return min((chain for chain in chains if chain[-1] == used), default=())


def _label(module: Module) -> str:
    return f"L{module.level} {module.class_name}"
