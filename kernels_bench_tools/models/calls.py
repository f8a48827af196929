"""The calls of a model's modules in a forward pass."""

from __future__ import annotations

import inspect
import re
import sys
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

_TRANSFORMERS_LEVELS = (
    ("RMSNorm", 1),
    ("RMSNormGated", 1),
    ("MLP", 2),
    ("Attention", 2),
    ("Experts", 2),
    ("MoeBlock", 2),
    ("Mixer", 2),
    ("GatedDeltaNet", 2),
    ("MambaBlock", 3),
    ("DecoderLayer", 3),
)
"""Ends of the names of classes."""
_LEVEL = re.compile(r"\.L([1-4])$")

Key = tuple[int, str, tuple[str, ...]]
"""Level, class and inputs."""


@dataclass(frozen=True)
class ModuleCall:
    module: nn.Module
    args: tuple[Any, ...]
    named: dict[str, Any]

    def __call__(self) -> Any:
        return self.module(*self.args, **self.named)

    @property
    def inputs(self) -> tuple[Any, ...]:
        return (*self.args, *self.named.values())

    @property
    def tensors(self) -> dict[str, Tensor]:
        """Those of the inputs that are tensors, by argument."""
        # Of the class: what replaces ``forward`` of an instance may take anything.
        names = inspect.signature(type(self.module).forward)
        given = names.bind(self.module, *self.args, **self.named).arguments
        return {name: value for name, value in given.items() if isinstance(value, Tensor)}

    @property
    def key(self) -> Key:
        """What calls with inputs of the same shapes have in common; tensors are ``x bfloat16[2048, 4096]``."""
        inputs = (f"{name} {describe(value)}" for name, value in self.tensors.items())
        return level_of(self.module), type(self.module).__name__, tuple(inputs)


@dataclass
class ModuleCalls:
    """Calls of one class with inputs of the same shapes."""

    level: int
    name: str
    first: list[ModuleCall] = field(default_factory=list)
    """The first of them, up to the number to keep."""
    count: int = 0
    nested: int = 0
    """Those of them that are inside of a call of another of the classes."""
    inside: Counter[Key] = field(default_factory=Counter)
    """Calls of the classes inside of these calls, without nested ones; empty for one of the classes itself."""


def note_calls(
    model: nn.Module, classes: Collection[type[nn.Module]], forward: Callable[[], Any], keep: int = 1
) -> dict[Key, ModuleCalls]:
    """Return the calls, in a forward pass, of modules of ``classes``, and of the blocks and layers that call them."""
    found: dict[Key, ModuleCalls] = {}
    running: list[Key] = []
    names = {kind.__name__ for kind in classes}

    def before(call: ModuleCall) -> None:
        level, name, _ = key = call.key
        calls = found.setdefault(key, ModuleCalls(level, name))
        calls.count += 1
        if len(calls.first) < keep:
            calls.first.append(call)
        if name in names:
            if any(outer[1] in names for outer in running):
                calls.nested += 1
            else:
                for outer in running:
                    found[outer].inside[key] += 1
        running.append(key)

    def after(*_: Any) -> None:
        running.pop()

    with hooked(modules_of_levels(model, 1, 2, 3), before, after):
        forward()
    found = {key: calls for key, calls in found.items() if calls.inside or calls.name in names}
    for key, calls in found.items():
        calls.name = _label(key, [other for other in found if other[1] == key[1]])
    return found


def first_calls(forward: Callable[[], Any], modules: Mapping[str, nn.Module]) -> dict[str, ModuleCall]:
    paths = {module: path for path, module in modules.items()}
    found: dict[str, ModuleCall] = {}
    with ExitStack() as stack:
        stack.enter_context(hooked(paths, lambda call: found.setdefault(paths[call.module], call)))
        if "torch._dynamo" in sys.modules:  # compiled code calls no hooks
            stack.enter_context(torch.compiler.set_stance("force_eager"))
        forward()
    return found


@contextmanager
def hooked(
    modules: Collection[nn.Module],
    before: Callable[[ModuleCall], object] | None = None,
    after: Callable[[ModuleCall, Any], Any] | None = None,
) -> Iterator[None]:
    """Call ``before(call)`` and ``after(call, output)`` around each call of the modules.

    What ``after`` returns replaces the output, unless it is None.
    """

    def enter(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> None:
        assert before
        before(ModuleCall(module, args, named))

    def leave(module: nn.Module, args: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
        assert after
        return after(ModuleCall(module, args, named), output)

    with ExitStack() as stack:
        for module in modules:
            if before:
                stack.callback(module.register_forward_pre_hook(enter, with_kwargs=True).remove)
            if after:
                stack.callback(module.register_forward_hook(leave, with_kwargs=True).remove)
        yield


def _label(key: Key, alike: Sequence[Key]) -> str:
    """Return the name of a class, with what distinguishes its inputs from those of its other calls."""
    label = key[1]
    arguments = [dict(tensor.split(" ", 1) for tensor in inputs) for *_, inputs in alike]
    own = dict(tensor.split(" ", 1) for tensor in key[2])
    if extra := [name for name in own if not all(name in other for other in arguments)]:
        label += f" with {', '.join(extra)}"
    same_names = [other for other in arguments if other.keys() == own.keys()]
    if shapes := [shape for name, shape in own.items() if any(other[name] != shape for other in same_names)]:
        sizes = (shape.partition("[")[2].rstrip("]").replace(", ", "×") for shape in shapes)
        label += f" of {', '.join(sizes)}"
    return label


def modules_of_levels(model: nn.Module, *levels: int) -> list[nn.Module]:
    return [module for module in model.modules() if level_of(module) in levels]


def level_of(module: nn.Module) -> int:
    """Return the level of a module of this project or of transformers; 0 for modules of no level, such as lists."""
    kind = type(module)
    if kind.__module__.startswith("transformers.models."):
        return next((level for end, level in _TRANSFORMERS_LEVELS if kind.__name__.endswith(end)), 0)
    match = _LEVEL.search(kind.__module__)
    return int(match[1]) if match else 0


def describe(tensor: Tensor) -> str:
    return f"{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
