"""Forward, backward, or both passes. A backward pass is timed by itself, never as the difference of two times."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial, wraps
from typing import Any

import torch
import torch._functorch.config as functorch
from torch import Tensor

from kernels_bench_tools.errors import OperatorError, Unsupported
from kernels_bench_tools.measure.inputs import padded_rows
from kernels_bench_tools.measure.operator import Inputs, Operator, Output, Workload, tensors_of
from kernels_bench_tools.records.request import FORWARD, MODES
from kernels_bench_tools.text.words import plural

_grad = torch.autograd.grad  # bound before an implementation can replace it
_GRADIENT_SEED = 7919
"""Added to the seed for gradients, so that they differ from the inputs."""


@dataclass(frozen=True)
class TimedFunction:
    """``run(*prepare(*inputs))`` is one whole call; only ``run`` is timed."""

    run: Callable[..., Any]
    prepare: Callable[..., Inputs]
    backward: bool = False
    """Whether ``prepare`` is a forward pass, and ``run`` returns gradients only."""

    def call(self, *inputs: Any) -> Any:
        """Make a whole call; return the result of what is timed."""
        return self.run(*self.prepare(*inputs))

    def checked_call(self, *inputs: Any) -> Any:
        """Make a whole call; return all that is checked, of a backward pass also what its forward pass returned."""
        if not self.backward:
            return self.call(*inputs)
        arguments = self.prepare(*inputs)
        outputs = [output.detach().clone() for output in arguments[0]]  # the backward pass may overwrite them
        return (*outputs, *tensors_of(self.run(*arguments)))


def timed_function(
    operator: Operator,
    function: Callable[..., Any],
    mode: str,
    prepare: Callable[..., Any] | None = None,
) -> TimedFunction:
    """Return what is timed of an implementation of the forward operator, in one of ``MODES``.

    ``prepare`` makes what the implementation gets in place of the parameters. It is part of the call in backward
    modes, where gradients flow through it.
    """
    prepared = (lambda *inputs: inputs) if prepare is None else Prepared(operator, prepare)
    if mode == FORWARD:
        return TimedFunction(function, prepared)
    passes = _Passes(operator, lambda *inputs: function(*prepared(*inputs)))
    if mode == "bwd":
        return TimedFunction(passes.backward, passes.forward, backward=True)
    return TimedFunction(passes.both, passes.leaves)


def changing(operator: Operator, mode: str) -> Callable[[Inputs], Sequence[int]]:
    """Return the function of a mode's inputs that returns the positions of those that change between timed calls.

    They are the activations; of a backward pass the gradients, since its forward pass is over.
    """

    def positions(inputs: Inputs) -> Sequence[int]:
        start = len(inputs) - len(operator.outputs) if mode == "bwd" else 0
        return [
            n
            for n in range(start, len(inputs))
            if isinstance(inputs[n], Tensor) and operator.changes(n) and not _is_sorted(inputs[n])
        ]

    return positions


def _is_sorted(value: Tensor) -> bool:
    """Return whether a tensor may say where something begins: exchanged elements would say nothing."""
    of_numbers = not value.is_floating_point() and not value.is_complex() and value.dtype is not torch.bool
    return of_numbers and value.dim() == 1 and value.numel() > 1 and bool((value[1:] >= value[:-1]).all())


def in_mode(operator: Operator, mode: str) -> Operator:
    """Return the operator whose outputs are those of this mode.

    Its inputs are followed by a random gradient for each output. Its reference and baseline are the forward ones
    with autograd. Groups without gradients have no workloads.
    """
    if mode not in MODES:
        raise OperatorError(f"mode {mode!r}", "is not known", f"One of {', '.join(MODES)}")
    if mode == FORWARD:
        return operator
    if not operator.gradients:
        raise OperatorError(
            f"operator {operator.name}", f"has no {mode} mode", "An operator that defines `gradients`"
        )
    groups = {
        group: replace(operator, **variant, variants={}) for group, variant in operator.variants.items()
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
            group: {**operator.variants[group], **_fields_in_mode(of_group, mode)}
            for group, of_group in groups.items()
            if of_group.gradients
        },
    )
    return replace(changed, **_fields_in_mode(operator, mode))


def _fields_in_mode(operator: Operator, mode: str) -> dict[str, Any]:
    both = mode == "fwd_bwd"
    gradients = tuple(Output(f"gradient of input {number + 1}") for number in operator.gradients)
    flops = operator.backward_flops + (1 if both else 0)
    return {
        "inputs": wraps(operator.inputs)(
            lambda workload, device, seed: _with_gradients(
                operator, operator.made_inputs(workload, device, seed), seed
            )
        ),
        "outputs": (*operator.outputs, *gradients) if both else gradients,
        "reference": _Passes(operator, operator.reference).whole(both=both),
        "baseline": _Passes(operator, operator.baseline).whole(both=both) if operator.baseline else None,
        "flops": lambda inputs: int(flops * operator.flops(inputs[: -len(operator.outputs)])),
        "slices": operator.gradient_slices,
        "renew": (lambda *given: _renewed(operator, *given)) if operator.renew and both else None,
        "edge_cases": partial(_edge_cases, operator),
        "nonfinite": {},
        "unread": () if both else operator.backward_unread,
    }


def start_autograd(device: str) -> None:
    """Run a backward pass, so that autograd's threads exist before new threads are looked for."""
    # Compiled backward passes otherwise reuse saved tensors, and can run only once.
    functorch.donated_buffer = False
    with torch.enable_grad():
        leaf = torch.ones(1, device=device, requires_grad=True)
        (leaf * 2).backward()


class _Passes:
    """The passes of one function, called with the operator's inputs and a gradient for each output."""

    def __init__(self, operator: Operator, function: Callable[..., Any]) -> None:
        self._gradients = operator.gradients
        self._count = len(operator.outputs)
        self._function = function

    def leaves(self, *given: Any) -> Inputs:
        """Return the arguments, with leaves of a graph for those that get gradients; copies no memory."""
        return tuple(
            value.detach().requires_grad_() if number in self._gradients else value
            for number, value in enumerate(given)
        )

    def forward(self, *given: Any) -> Inputs:
        arguments = self.leaves(*given)
        inputs, gradients = arguments[: -self._count], arguments[-self._count :]
        with torch.enable_grad():
            outputs = tensors_of(self._function(*inputs))
        if not all(isinstance(output, Tensor) and output.requires_grad for output in outputs):
            raise Unsupported("has no backward pass: its result carries no gradient")
        return outputs, [inputs[number] for number in self._gradients], gradients

    def backward(self, outputs: Any, leaves: Any, gradients: Any) -> Any:
        """Return the gradients of the leaves; the graph is kept for the next call."""
        found = _gradients(outputs, leaves, gradients, keep_graph=True)
        return found if len(found) > 1 else found[0]

    def both(self, *arguments: Any) -> tuple[Any, ...]:
        """Return the outputs and the gradients; builds and frees a graph."""
        outputs, leaves, gradients = self.forward(*arguments)
        found = _gradients(outputs, leaves, gradients, keep_graph=False)
        return (*(output.detach() for output in outputs), *found)

    def whole(self, *, both: bool) -> Callable[..., Any]:
        whole = self.both if both else lambda *given: self.backward(*self.forward(*given))
        return wraps(self._function)(lambda *given: whole(*given))


def _gradients(outputs: Any, leaves: Any, gradients: Any, *, keep_graph: bool) -> tuple[Tensor, ...]:
    try:
        return _grad(outputs, leaves, gradients, retain_graph=keep_graph)
    except RuntimeError:
        # The result of an operation without a formula for autograd looks as if it carried a gradient.
        with suppress(RuntimeError):
            found = _grad(outputs, leaves, gradients, allow_unused=True)
            if all(one is None for one in found):
                raise Unsupported("has no backward pass: no gradient reaches its inputs") from None
        raise


class Prepared:
    """Replaces parameters among inputs by what ``prepare`` makes of them."""

    def __init__(self, operator: Operator, prepare: Callable[..., Any]) -> None:
        self._parameters, self._prepare = operator.parameters, prepare

    def __call__(self, *inputs: Any) -> Inputs:
        made = tensors_of(self._prepare(*(inputs[number] for number in self._parameters)))
        if len(made) != len(self._parameters):
            raise ValueError(f"prepare= returned {len(made)} of {plural(len(self._parameters), 'parameter')}")
        replaced = dict(zip(self._parameters, made, strict=True))
        return tuple(replaced.get(number, value) for number, value in enumerate(inputs))


def _with_gradients(operator: Operator, inputs: Inputs, seed: int) -> Inputs:
    device = inputs[0].device
    generator = torch.Generator(device=device).manual_seed(seed + _GRADIENT_SEED)
    return *inputs, *(
        torch.randn(
            tuple(output.shape(inputs)),
            generator=generator,
            device=device,
            dtype=operator.dtype_of(output, inputs),
        )
        for output in operator.outputs
    )


def _renewed(operator: Operator, inputs: Inputs, generator: torch.Generator) -> Inputs:
    assert operator.renew is not None
    count = len(operator.outputs)
    gradients = (torch.empty_like(one).normal_(generator=generator) for one in inputs[-count:])
    return *operator.renew(inputs[:-count], generator), *gradients


def _edge_cases(operator: Operator, workload: Workload, inputs: Inputs) -> Iterator[tuple[str, Inputs]]:
    """Yield gradients with gaps between elements, as those of a sum, and the forward edge cases with ordinary values.

    These have other shapes, strides or integers. A bound for the gradient's error is not known where values are extreme.
    """
    given, gradients = inputs[: -len(operator.outputs)], inputs[-len(operator.outputs) :]
    yield "gradients with gaps", (*given, *(padded_rows(one[..., None])[..., 0] for one in gradients))
    for name, case in operator.edge_cases(workload, given):
        if all(map(_is_ordinary, case, given)):
            yield name, _with_gradients(operator, case, workload.seed)


def _is_ordinary(value: Any, given: Any) -> bool:
    """Return whether a value has the elements of a given one, or is random in another shape."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return True
    return value.shape != given.shape or torch.equal(value, given)
