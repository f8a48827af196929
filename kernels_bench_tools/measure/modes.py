"""Forward, backward, or both: what is timed of an implementation, and what its result is then compared with.

A backward pass is timed by itself, on the graph that an untimed forward pass left; it is never a difference of two
times.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
import torch._functorch.config as functorch
from torch import Tensor

from kernels_bench_tools.errors import OperatorError, Unsupported
from kernels_bench_tools.measure.operator import Inputs, Operator, Output, Workload, no_cases, tensors_of
from kernels_bench_tools.schema.build import FORWARD, MODES

_GRADIENT_SEED = 7919
"""Gradients must not repeat the values of inputs."""


@dataclass(frozen=True)
class Subject:
    """What is timed: ``run(*prepare(*inputs))`` is one whole call, of which only ``run`` counts."""

    run: Callable[..., Any]
    prepare: Callable[..., Inputs]

    def call(self, *inputs: Any) -> Any:
        """Make a whole call; what is checked is its result."""
        return self.run(*self.prepare(*inputs))


def subject(operator: Operator, function: Callable[..., Any], mode: str) -> Subject:
    """Return what is timed of an implementation.

    Args:
        operator: What it implements, as it is forward.
        function: The implementation.
        mode: One of ``MODES``.
    """
    if mode == FORWARD:
        return Subject(function, _as_given)
    passes = _Passes(operator, function)
    if mode == "bwd":
        return Subject(passes.backward, passes.forward)
    return Subject(passes.both, passes.leaves)


def in_mode(operator: Operator, mode: str) -> Operator:
    """Return the operator whose outputs are those of this mode.

    Groups without a gradient have no workloads in it. Its inputs have a random gradient for each output behind
    them. Its reference and baseline are what autograd makes of the forward ones. Hard cases are left to the
    forward mode: how large a gradient's error may be where a forward result is extreme is not known.

    Raises:
        OperatorError: There is no such mode, or the operator has no gradients.
    """
    if mode not in MODES:
        raise OperatorError(f"mode {mode!r}", "is not known", f"One of {', '.join(MODES)}")
    if mode == FORWARD:
        return operator
    if not operator.gradients:
        raise OperatorError(
            f"operator {operator.name}", f"has no {mode} mode", "An operator that names its `gradients`"
        )
    groups = {
        group: replace(operator, **differing, variants={}) for group, differing in operator.variants.items()
    }
    changed = replace(
        operator,
        workload_sets={
            name: [
                replace(workload, name=f"{workload.name}_{mode}", mode=mode)
                for workload in workloads
                if groups.get(workload.group, operator).gradients
            ]
            for name, workloads in operator.workload_sets.items()
        },
        variants={
            group: {**operator.variants[group], **_passes_of(form, mode)}
            for group, form in groups.items()
            if form.gradients
        },
    )
    return replace(changed, **_passes_of(operator, mode))


def _passes_of(operator: Operator, mode: str) -> dict[str, Any]:
    """Return the fields of an operator, of one group, that are others in this mode."""
    both = mode == "fwd_bwd"
    gradients = tuple(Output(f"gradient of input {number + 1}") for number in operator.gradients)
    return {
        "inputs": partial(_inputs, operator),
        "outputs": (*operator.outputs, *gradients) if both else gradients,
        "reference": _Passes(operator, operator.reference).whole(both=both),
        "baseline": _Passes(operator, operator.baseline).whole(both=both) if operator.baseline else None,
        "flops": partial(_flops, operator, both),
        "pieces": operator.gradient_pieces,
        "cases": no_cases,
        "unread": () if both else operator.backward_unread,
    }


def start_autograd(device: str) -> None:
    """Run a backward pass, so that autograd's own threads are there before anyone looks for new ones."""
    # Compiled backward passes otherwise reuse what the forward one saved, and can run once only.
    functorch.donated_buffer = False
    leaf = torch.ones(1, device=device, requires_grad=True)
    (leaf * 2).backward()


class _Passes:
    """The passes of one function, called with the operator's inputs and a gradient for each output."""

    def __init__(self, operator: Operator, function: Callable[..., Any]) -> None:
        self._gradients = operator.gradients
        self._count = len(operator.outputs)
        self._function = function

    def leaves(self, *given: Any) -> Inputs:
        """Return the same arguments, those that get gradients as leaves of a graph; no memory is copied."""
        return tuple(
            value.detach().requires_grad_() if number in self._gradients else value
            for number, value in enumerate(given)
        )

    def forward(self, *given: Any) -> Inputs:
        """Return outputs with a graph, leaves and gradients."""
        arguments = self.leaves(*given)
        inputs, gradients = arguments[: -self._count], arguments[-self._count :]
        with torch.enable_grad():
            outputs = tensors_of(self._function(*inputs))
        if not all(isinstance(output, Tensor) and output.requires_grad for output in outputs):
            raise Unsupported("has no backward pass: its result carries no gradient")
        return outputs, [inputs[number] for number in self._gradients], gradients

    def backward(self, outputs: Any, leaves: Any, gradients: Any) -> Any:
        """Return the gradients of the leaves; the graph stays, for the next call."""
        found = torch.autograd.grad(outputs, leaves, gradients, retain_graph=True)
        return found if len(found) > 1 else found[0]

    def both(self, *arguments: Any) -> tuple[Any, ...]:
        """Return the outputs and the gradients, of a graph that is built and used up."""
        outputs, leaves, gradients = self.forward(*arguments)
        found = torch.autograd.grad(outputs, leaves, gradients)
        return (*(output.detach() for output in outputs), *found)

    def whole(self, *, both: bool) -> Callable[..., Any]:
        """Return the function of a whole call."""
        return self.both if both else lambda *given: self.backward(*self.forward(*given))


def _as_given(*inputs: Any) -> Inputs:
    return inputs


def _inputs(operator: Operator, workload: Workload, device: str, seed: int) -> Inputs:
    """Return the operator's inputs and a random gradient for each output."""
    inputs = operator.inputs(workload, device, seed)
    # Shapes alone: on the meta device nothing is computed.
    shapes = [value.to("meta") if isinstance(value, Tensor) else value for value in inputs]
    generator = torch.Generator(device=device).manual_seed(seed + _GRADIENT_SEED)
    return *inputs, *(
        torch.randn(output.shape, generator=generator, device=device, dtype=kind.type_for(inputs))
        for kind, output in zip(operator.outputs, tensors_of(operator.reference(*shapes)), strict=True)
    )


def _flops(operator: Operator, both: bool, inputs: Inputs) -> int:
    forward = operator.flops(inputs[: -len(operator.outputs)])
    return int(forward * (operator.backward_flops + (1 if both else 0)))
