"""A model of Hugging Face transformers beside a copy that was changed, on the same weights."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from copy import deepcopy
from dataclasses import replace
from importlib.metadata import version
from typing import Any

import torch
from torch import nn

from kernels_bench_tools.hub.kernel import switched_off
from kernels_bench_tools.hub.status import HubError, HubStatus
from kernels_bench_tools.models.calls import ModuleCall, first_calls
from kernels_bench_tools.models.forward_pass import EffectError

_WHOLE = "whole model"


class NothingChangedError(EffectError):
    """A function that changes a model replaced none of its modules, or none by the kernels that it asked for."""


class ChangedModel:
    """A model and a copy that a function changed, of which one is called; the model without changes at first.

    Both have the same tensors as weights and buffers. Functions of transformers that ``kernelize`` replaces belong to
    all models of a process, so they are put back while the model without changes is called.
    """

    in_place = True
    """Whether inputs are overwritten is not checked."""

    def __init__(self, model: nn.Module, change: Callable[[Any], Any]) -> None:
        """Change a copy of the model.

        Raises:
            NothingChangedError: Nothing of the copy computes with another function now, or ``use_kernels`` replaced nothing.
            HubError: A kernel is not available, or ``USE_HUB_KERNELS`` forbids what the function asked for.
            EffectError: The function changed weights, which both models have.
        """
        self.config, self.dtype = model.config, model.dtype
        self._plain = self._running = model
        functions, weights = _functions(model), _weights(model)
        before = {name: function.forward for name, function in functions.items()}
        shared = [*model.parameters(), *model.buffers(), *functions.values()]
        self.copy = deepcopy(model, {id(part): part for part in shared})
        changed = _change(self.copy, change)
        self._changed = self.copy if changed is None else changed
        if weights != _weights(model):
            raise EffectError(
                "the change converts or overwrites weights, which it shares with the unchanged model"
            )
        replaced = {
            name: function
            for name, function in functions.items()
            if _function_of(function.forward) is not _function_of(before[name])
        }
        self._swapped = [(function, before[name], function.forward) for name, function in replaced.items()]
        for function, forward, _ in self._swapped:
            function.forward = forward
        self.instances: dict[str, nn.Module] = replaced | _replaced(model, self.copy)
        """What computes with another function, by path, or by name."""
        can = kernel_layers(self.copy)
        by_kernels = can.keys() & self.instances.keys()
        self.kept = dict(Counter(name for path, name in can.items() if by_kernels and path not in by_kernels))
        """Instances for which transformers names a kernel, but none for this mode and device, by the kernel's name."""
        if self._changed is not self.copy or "" in self.instances:
            self.instances.pop("", None)
            self.instances[_WHOLE] = self._changed
        if not self.instances or (getattr(self.copy, "use_kernels", False) and not by_kernels):
            if reason := switched_off():
                raise HubError(HubStatus.DISABLED, f"{reason}, so no module was replaced")
            packages = " and ".join(f"{name} {version(name)}" for name in ("transformers", "kernels"))
            raise NothingChangedError(
                f"no module was replaced, with {packages}. Possible reasons: no kernel is available for this device "
                "and mode, these versions are not compatible, or USE_HUB_KERNELS disables kernels"
            )

    def __call__(self, **named: Any) -> Any:
        return self._running(**named)

    def zero_grad(self) -> None:
        self._plain.zero_grad()

    @contextmanager
    def active(self) -> Iterator[None]:
        for function, _, forward in self._swapped:
            function.forward = forward
        self._running = self._changed
        try:
            yield
        finally:
            self._running = self._plain
            for function, forward, _ in self._swapped:
                function.forward = forward

    def called(self, forward: Callable[[], Any]) -> set[str]:
        with self.active():
            parts = {path: module for path, module in self.instances.items() if path != _WHOLE}
            return first_calls(forward, parts).keys() | {_WHOLE} & self.instances.keys()

    def first_calls(self, forward: Callable[[], Any]) -> Iterator[tuple[ModuleCall, ModuleCall]]:
        """Yield a call of each changed module: of the model, and the same of the changed one.

        They are the first of each class in a forward pass; other modules of the class with weights of the same shapes get its
        inputs, because a kernel may be right with the weights of one only.
        """
        modules = dict(self._plain.named_modules()) | _functions(self._plain)
        of_kind: dict[object, list[str]] = {}
        for path, module in self.instances.items():
            if path in modules:
                weights = () if _is_attention(module) else module.parameters()
                of_kind.setdefault((type(module), *(weight.shape for weight in weights)), []).append(path)
        paths = {same[0]: same for same in of_kind.values()}
        plain = first_calls(forward, {path: modules[path] for path in paths})
        with self.active():
            changed = first_calls(forward, {path: self.instances[path] for path in paths})
        for path, call in plain.items():
            if _is_attention(call.module):  # the inputs of another attention have another mask
                yield call, changed[path]
            else:
                for same in paths[path]:
                    yield replace(call, module=modules[same]), replace(call, module=self.instances[same])


def kernel_layers(model: nn.Module) -> dict[str, str]:
    """Return the names that transformers' table has for layers and functions of a model, by path, or name of the function."""
    return {
        path: type(module).kernel_layer_name
        for path, module in (dict(model.named_modules()) | _functions(model)).items()
        if hasattr(type(module), "kernel_layer_name")
    }


def _weights(model: nn.Module) -> list[tuple[int, torch.dtype, int]]:
    """Return what is another if a weight is converted or overwritten."""
    return [(weight.data_ptr(), weight.dtype, weight._version) for weight in model.parameters()]


def _change(model: Any, change: Callable[[Any], Any]) -> Any:
    try:
        return change(model)
    except ValueError as error:  # what transformers raises where it cannot do what it was asked for
        if isinstance(error.__context__, HubError):
            raise error.__context__ from error
        if reason := switched_off():
            raise HubError(HubStatus.DISABLED, f"{reason}: {error}") from error
        raise


def _functions(model: nn.Module) -> dict[str, nn.Module]:
    """Return the functions that ``kernelize`` finds in a model, which are modules that belong to all models."""
    return {
        name: function
        for module in model.modules()
        for name, function in getattr(module, "_kernel_funcs", {}).items()
    }


def _replaced(model: nn.Module, copied: nn.Module) -> dict[str, nn.Module]:
    """Return the modules of a copy that compute with another function than those of the model, by path."""
    plain = dict(model.named_modules())
    implementation = "_attn_implementation"
    has_other = getattr(copied.config, implementation, "") != getattr(model.config, implementation, "")
    return {
        path: module
        for path, module in copied.named_modules()
        if path not in plain
        or _function_of(module.forward) is not _function_of(plain[path].forward)
        or (has_other and _is_attention(module))
    }


def _is_attention(module: nn.Module) -> bool:
    return type(module).__name__.endswith("Attention")


def _function_of(forward: Callable[..., Any]) -> object:
    return getattr(forward, "__func__", forward)
