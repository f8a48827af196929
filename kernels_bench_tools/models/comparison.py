"""Whether a model, and each replaced module, returns the same results with an implementation as without it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from math import inf
from typing import Any

import torch
from torch import Tensor, nn

from kernels_bench_tools.measure.correctness.compare import HARD_CAP
from kernels_bench_tools.measure.judge.memory import same_bits
from kernels_bench_tools.measure.operator import dtype_tolerance, tensors_of
from kernels_bench_tools.models.agreement import (
    Trained,
    compare_gradients,
    compare_logits,
    compare_with_same_experts,
    error_of_parts,
    has_experts,
    keep_experts,
    relative_error,
    untied_tokens,
)
from kernels_bench_tools.models.baseline.L2 import FusedMoE
from kernels_bench_tools.models.calls import Key, ModuleCall, ModuleCalls, describe, hooked, modules_of_levels
from kernels_bench_tools.models.changed_model import ChangedModel
from kernels_bench_tools.models.forward_pass import EffectError, ForwardPass
from kernels_bench_tools.models.replacement import Replacement

HALF_FACTOR, BLOCK_FACTOR, ROUTER_FACTOR = 0.5, 2, 2
"""Limits of a result's norm: in half precision as a multiple of that of a single element, of a block with a kernel inside as a
multiple of a kernel's, and once more of one that computes its router's logits itself. In bfloat16 kernels that round elsewhere
differ by at most 0.6 eps of their norm, with 16 partial sums in half precision by 0.7 eps, and feed-forward layers by 0.9 eps. A
product with weights in 8 bits differs by 1.05 eps, and by 1.5 eps if its inputs are in 8 bits, too."""


class Comparison:
    def __init__(self, model: nn.Module, changed: Replacement | ChangedModel, forward: ForwardPass) -> None:
        self._model, self._changed, self._forward = model, changed, forward
        self._models = (model,) if isinstance(changed, Replacement) else (model, changed.copy)
        chooses = has_experts(model) and any(map(has_experts, changed.instances.values()))
        self._replaces_routers = chooses and isinstance(changed, Replacement)
        self._compares_logits = not (forward.trains or chooses)
        """In timed passes, in which all sides have the same experts, unless what chooses them is replaced."""
        self._watches = False
        self._timed_logits: dict[str, Tensor] = {}
        self._timed_calls: dict[str, tuple[ModuleCall, Any]] = {}

    def side(self, name: str) -> AbstractContextManager[None]:
        return self._changed.active() if name == "candidate" else nullcontext()

    def same_experts(self) -> AbstractContextManager[None]:
        """Return the context in which all sides have the same experts, unless what chooses them is replaced."""
        return keep_experts(() if self._replaces_routers else self._models, self._forward)

    def instances(self, blocks: Mapping[Key, ModuleCalls], when: str = "") -> None:
        """Compare each replaced module by itself, after its first call: a kernel may be right with the weights of one only."""
        waiting = {*self._changed.instances.values()}
        comparing = False

        def after(call: ModuleCall, _: Any) -> None:
            nonlocal comparing
            if call.module in waiting and not comparing:  # comparing calls modules, too
                waiting.remove(call.module)
                comparing = True
                block = blocks[call.key]
                with torch.no_grad():
                    self.module(block.name, block.level, call, call, when=when)
                comparing = False

        with hooked(modules_of_levels(self._model, 1, 2), after=after):
            self._forward()

    def module(
        self, name: str, level: int, call: ModuleCall, changed: ModuleCall, output: Any = None, when: str = ""
    ) -> None:
        """Raise ``EffectError`` unless a module returns the same with the implementation, or has returned it as ``output``.

        ``when``, such as " in a timed pass", is part of the message.
        """
        args, named = _copied(changed.args), _copied(changed.named)  # it may overwrite these
        with self._forward.context():
            theirs = call()
            expected = [tensor.clone() for tensor in tensors_of(theirs) if tensor is not None]
            with self.side("candidate"):
                ours = changed.module(*args, **named) if output is None else output
        found = [tensor for tensor in tensors_of(ours) if tensor is not None]
        if changed.module is not call.module:  # some attention of transformers returns its weights, too
            del found[len(expected) :], expected[len(found) :]
        kinds, wanted = (
            [describe(value) if isinstance(value, Tensor) else type(value).__name__ for value in values]
            for values in (found, expected)
        )
        if kinds != wanted or isinstance(ours, tuple) is not isinstance(theirs, tuple):
            a_tuple = "a tuple of " if isinstance(ours, tuple) and not isinstance(theirs, tuple) else ""
            returned, right = ", ".join(kinds) or "nothing", ", ".join(wanted)
            raise EffectError(f"{name} returns {a_tuple}{returned} with the implementation, not {right}")
        dtypes = {tensor.dtype for tensor in expected}
        limits = (dtype_tolerance(it).rtol * (HALF_FACTOR if it.itemsize == 2 else 1) for it in dtypes)
        limit = max(limits, default=0.0) * (1 if level == 1 else BLOCK_FACTOR)
        of_part = HARD_CAP * limit
        # Of experts that are tied either may be chosen, which changes a row.
        if isinstance(call.module, FusedMoE):
            untied = untied_tokens(call.args[1], call.module.top_k)
            found, expected = ([tensor[untied] for tensor in tensors] for tensors in (found, expected))
        elif has_experts(call.module):
            limit, of_part = ROUTER_FACTOR * limit, inf
        other = f"{name} returns a different result with the implementation{when}"
        for number, both in enumerate(zip(found, expected, strict=True)):
            if not (error := relative_error(*both)) <= limit:
                raise EffectError(f"{other}: output {number} differs by {error:.2g} of its norm")
            if not (error := error_of_parts(*both)) <= of_part:
                raise EffectError(
                    f"{other}: output {number} differs by {error:.2g} of the norm of a row or column"
                )
        given = zip(changed.inputs, (*args, *named.values()), strict=True)
        tensors = ((before, after) for before, after in given if isinstance(before, Tensor))
        if not self._changed.in_place and not all(same_bits(*both) for both in tensors):
            raise EffectError(
                f"{name} overwrites its input, but the implementation does not declare in_place=True"
            )

    def whole(self) -> dict[str, float]:
        def logits(side: str) -> Tensor:
            with self.side(side):
                return self._forward()

        def trained(side: str) -> Trained:
            loss = logits(side)
            gradients = {name: weight.grad for name, weight in self._model.named_parameters()}
            self._model.zero_grad()
            return loss, gradients

        run, compare = (trained, compare_gradients) if self._forward.trains else (logits, compare_logits)
        found = compare_with_same_experts(
            self._models, partial(run, "baseline"), partial(run, "candidate"), compare
        )
        if found.beyond:
            raise EffectError(f"the model returns a different result with the implementation: {found.beyond}")
        return dict(found.data)

    @contextmanager
    def watched(self, side: str) -> Iterator[None]:
        """Note what timed passes of a side compute: logits or, where they cannot be compared, replaced modules' last results."""
        compared = side == "candidate" and self._replaces_routers and not self._changed.in_place
        modules = {*self._changed.instances.values()} if compared else ()

        def note(call: ModuleCall, output: Any) -> None:
            self._timed_calls[type(call.module).__name__] = call, output

        self._watches = True
        try:
            with hooked(modules, after=note):
                yield
        finally:
            self._watches = False

    def timed_pass(self, side: str) -> None:
        logits = self._forward()
        if self._watches and self._compares_logits:
            self._timed_logits[side] = logits

    def require_same_when_timed(self) -> None:
        """Raise ``EffectError`` unless what was noted of the sides since the last call agrees."""
        logits, calls = self._timed_logits, self._timed_calls
        self._timed_logits, self._timed_calls = {}, {}
        if logits and (beyond := compare_logits(logits["candidate"], logits["baseline"]).beyond):
            raise EffectError(
                f"the model returns a different result with the implementation in a timed pass: {beyond}"
            )
        for name, (call, output) in calls.items():
            self.module(name, call.key[0], call, call, output, " in a timed pass")


def _copied(value: Any) -> Any:
    """Return a copy of a tensor in the same layout, also inside of a tuple or dictionary; other values as they are."""
    if isinstance(value, tuple):
        return tuple(_copied(inner) for inner in value)
    if isinstance(value, dict):
        return {name: _copied(inner) for name, inner in value.items()}
    if not isinstance(value, Tensor):
        return value
    copy = torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device)
    return copy.copy_(value)
