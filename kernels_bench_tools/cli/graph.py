"""``kbt graph``: which blocks, layers and models a kernel reaches through the classes that use it."""

from __future__ import annotations

from typing import Annotated

import typer

from kernels_bench_tools.cli.options import Json
from kernels_bench_tools.cli.output import print_json, print_table
from kernels_bench_tools.errors import ModelError
from kernels_bench_tools.records.model import DERIVED, ModelTasks, model_keys, read_model_tasks
from kernels_bench_tools.results.models import Module, imports_of_models
from kernels_bench_tools.text.words import did_you_mean, plural


def graph(module: Annotated[str, typer.Argument()] = "", json: Json = False) -> None:
    """Show which blocks, layers and models call a kernel or block.

    Lists the classes that use it, directly or through others, by level, with the models in which they call it: code that
    names a class does not always call it. Without MODULE, lists what each class uses.

    Args:
        module (MODULE): Such as rms_norm or RMSNorm. [default: all]
    """
    uses = imports_of_models()
    if not module and json:
        print_json({user.class_name: [used.class_name for used in own] for user, own in uses.items()})
        return
    if not module:
        lines = [[_label(user), ", ".join(map(_label, own))] for user, own in reversed([*uses.items()])]
        print_table([["class", "uses"], *lines])
        return
    names = {each.class_name.lower(): each for each in uses}
    key = module.replace("_", "").lower()
    if key not in names:
        expected = "A module of the models, such as rms_norm or RMSNorm; `kbt graph` lists them"
        raise ModelError(module, "is not a module of the models", expected, did_you_mean(key, names))
    used, models = names[key], [read_model_tasks(model) for model in model_keys(DERIVED)]
    callers = {model.model: _callers(model, used.class_name) for model in models}
    reached, before = {used}, 0
    while before != len(reached):
        before = len(reached)
        reached |= {user for user, own in uses.items() if not reached.isdisjoint(own)}
    # With the models in whose forward passes an instance of it calls the other one.
    users: list[tuple[Module, list[str]]] = [
        (user, [name for name, own in callers.items() if user.class_name in own])
        for user in sorted(reached - {used})
    ]
    calls = {
        model.model: {
            phase.name: sum(task.calls for task in phase.tasks if task.module == used.class_name)
            for phase in model.phases
        }
        for model in models
    }
    calls = {name: counts for name, counts in calls.items() if any(counts.values())}
    if json:
        named = [{"module": user, "models": own} for user, own in users]
        print_json({"module": used, "users": named, "calls": calls})
        return
    print(f"{_label(used)} is used by {plural(len(users), 'module') if users else 'no module'}\n")
    lines = [[_label(user), ", ".join(own) or "only names it"] for user, own in users]
    print_table([["class", "calls it in"], *lines])
    print()
    phases = list(dict.fromkeys(phase for counts in calls.values() for phase in counts))
    lines = [["calls in a forward pass", *phases]]
    lines += [[name, *(str(counts.get(phase, 0)) for phase in phases)] for name, counts in calls.items()]
    if calls:
        print_table(lines, right=range(1, len(phases) + 1))
    else:
        print("No model calls it on one GPU.")


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


def _label(module: Module) -> str:
    return f"L{module.level} {module.class_name}"
