"""Operators made of a torch module and a function that draws its inputs, such as a problem of KernelBench.

``python -m kernels_bench_tools.measure.modules REQUEST`` times a reference and a candidate in a process of its own.
"""

from __future__ import annotations

import random
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from copy import deepcopy
from dataclasses import replace
from functools import cached_property
from importlib.util import module_from_spec, spec_from_file_location
from inspect import isclass
from pathlib import Path
from types import MappingProxyType, ModuleType
from typing import Any, NamedTuple

import msgspec
import numpy as np
import torch
from torch import Tensor
from torch.nn import Module
from torch.utils._pytree import tree_flatten, tree_unflatten

from kernels_bench_tools.errors import OperatorError
from kernels_bench_tools.file_io import read_file, write_atomically
from kernels_bench_tools.measure.correctness.compare import alike, precise
from kernels_bench_tools.measure.correctness.errors import numbers
from kernels_bench_tools.measure.device.environment import torch_device
from kernels_bench_tools.measure.harness import run_benchmark
from kernels_bench_tools.measure.hf_benchmarks import HfWorkload, load_kernel, their_tolerance, workload_names
from kernels_bench_tools.measure.operator import (
    SMALL,
    Inputs,
    Operator,
    Output,
    Outputs,
    Tolerance,
    Workload,
    dtype_tolerance,
    product_tolerance,
    tensors_of,
)
from kernels_bench_tools.measure.traces import TraceProblem
from kernels_bench_tools.records.problem import REFERENCE, Definition, ProblemRequest, Solution, TraceWorkload
from kernels_bench_tools.records.record import Flag, Record

_SET = "problem"
_FEWEST_FOR_MEAN = 1024
"""Elements of an output whose mean error is compared with torch's: of a loss, a single number, it is chance."""
_NEAR = 1e-3
"""Relative difference of outputs that may be the same but for rounding."""
_NO_NAME = re.compile(r"[^\w.+-]+")
"""What is in no name of a workload, such as between a problem and the folder of its level."""
_JITTER = 0.01
"""Largest share by which elements of inputs change that are drawn without a random number."""
Make = Callable[[], Callable[..., Any]]
"""Makes a module with its weights, or returns a function, which has none."""
Draw = Callable[[], Sequence[Any]]
"""Draws arguments of a module from torch's generator; they may be lists and dictionaries of tensors."""


@contextmanager
def _seeded(seed: int, device: str | torch.device) -> Iterator[None]:
    """Let what is drawn follow from a seed, and be made on a device."""
    # torch.manual_seed keeps a traceback of each call where there is no GPU.
    torch.default_generator.manual_seed(seed)
    random.seed(seed)  # the judge draws the same inputs as the candidate's process
    np.random.seed(seed % 2**32)
    on_cpu = str(device) == "cpu"
    if not on_cpu:
        torch.cuda.manual_seed_all(seed)
    with nullcontext() if on_cpu else torch.device(device):
        yield


def _state(module: Any) -> dict[str, Tensor]:
    found = module.state_dict() if isinstance(module, Module) else {}
    return {name: value.detach() for name, value in found.items() if type(value.detach()) is Tensor}


class ModuleProblem:
    """How a module becomes an operator: its inputs are tensors that are drawn, the weights, other values, and the seed.

    Weights are new for each seed, and a candidate gets those of the reference, so that neither has others.
    """

    def __init__(
        self,
        name: str,
        make: Make,
        draw: Draw,
        device: str,
        tolerance: Callable[[torch.dtype], Tolerance] | None = None,
    ) -> None:
        """With a ``tolerance``, the reference is computed in its own precision, as those who chose it did."""
        self._make, self._draw, self._tolerance = make, draw, tolerance
        self.name = _NO_NAME.sub("-", name)
        self._constant = False
        self._constant = not self._is_random()
        with _seeded(0, device), torch.no_grad():
            self._module = self._made(0, device)
            self._weights = [*_state(self._module)]
            given = self.inputs(Workload(name=name, axes={}, dtype="float32"), device, 0)
            self._dtypes = [value.dtype if isinstance(value, Tensor) else None for value in given]
            outputs = tensors_of(self.own(*given))
        if not outputs or not all(type(value) is Tensor for value in outputs):
            raise OperatorError(
                name, "its reference returns something else than tensors", "A tensor, or a tuple of them"
            )
        self._outputs = [(value.dtype, value.shape) for value in outputs]
        # Those of a lower precision are computed with it where torch computes a float64 module with other numbers.
        self._double: Any = deepcopy(self._module)
        if isinstance(self._double, Module):
            self._double.double()
        self._device = device

    @cached_property
    def notes(self) -> tuple[Flag, ...]:
        """What somebody who reads a result should know of the inputs and outputs; computes some outputs."""
        with torch.no_grad():
            tensors, _ = self._drawn(0, self._device)
            floats = [one for one in tensors if one.is_floating_point() and one.numel()]
            positive = bool(floats) and all(bool((one >= 0).all()) for one in floats)
            found = {Flag.NO_NEGATIVE: positive, Flag.CONSTANT_OUTPUT: self._is_constant(self._device)}
        return tuple(flag for flag, holds in found.items() if holds)

    def operator(self, *, noted: bool = True) -> Operator:
        """Return the operator; ``noted``: with its notes, which only a judge needs."""
        first, last = self._tensors, self._tensors + len(self._weights)
        floats = (str(one) for one in self._dtypes if one and one.is_floating_point)
        workload = Workload(
            name=self.name, axes={}, dtype=next(floats, "torch.float32").removeprefix("torch.")
        )
        outputs = [self._output(number, dtype, shape) for number, (dtype, shape) in enumerate(self._outputs)]
        return Operator(
            name=self.name,
            title=self.name,
            axes=(),
            workload_sets={_SET: [workload]},
            inputs=self.inputs,
            reference=self.reference,
            baseline=self.own,
            flops=lambda _: 0,
            outputs=tuple(outputs),
            tolerance=self._tolerance or product_tolerance,
            parameters=(*range(first, last), len(self._dtypes) - 1),
            renew=self._renew if self._is_random() else None,
            declared=self.notes if noted else (),
        )

    def _output(self, number: int, dtype: torch.dtype, shape: torch.Size) -> Output:
        few = shape.numel() < _FEWEST_FOR_MEAN and dtype.is_floating_point and self._tolerance is None
        return Output(
            f"out{number}" if number else "out",
            str(dtype).removeprefix("torch."),
            tolerance=(lambda _: replace(dtype_tolerance(dtype), small=SMALL)) if few else None,
            shape=lambda _: shape,
        )

    def inputs(self, _: Workload, device: str, seed: int) -> Inputs:
        with torch.no_grad():
            weights = [value.clone() for value in _state(self._made(seed, device)).values()]
            tensors, others = self._drawn(seed, device)
        return (*tensors, *weights, *others, seed)

    def _drawn(self, seed: int, device: str | torch.device) -> tuple[list[Tensor], list[Any]]:
        with _seeded(seed, device):
            leaves, self._tree = tree_flatten(list(self._draw()))
            tensors = [leaf.detach().to(device).clone() for leaf in leaves if isinstance(leaf, Tensor)]
            if self._constant:  # else a result that was kept would be right
                tensors = [
                    one * (1 + _JITTER * torch.rand_like(one)) if one.is_floating_point() else one
                    for one in tensors
                ]
        self._is_tensor = [isinstance(leaf, Tensor) for leaf in leaves]
        self._tensors = len(tensors)
        return tensors, [leaf for leaf in leaves if not isinstance(leaf, Tensor)]

    def _is_random(self) -> bool:
        first, second = (self._drawn(seed, "cpu")[0] for seed in (1, 2))
        return not all(map(torch.equal, first, second))

    def _is_constant(self, device: str) -> bool:
        """Return whether the outputs are the same for the inputs of two seeds, with the same weights."""
        workload = Workload(name=self.name, axes={}, dtype="float32")
        rest = self.inputs(workload, device, 0)[self._tensors :]

        def pairs(compute: Callable[..., Outputs], change: Callable[[Any], Any]) -> Iterator[Any]:
            drawn = (self._drawn(seed, device)[0] for seed in (1, 2))
            return zip(*(tensors_of(compute(*map(change, (*one, *rest)))) for one in drawn), strict=True)

        # Float64 takes longer, and only in it do few roundings differ from none.
        return all(
            a.shape == b.shape and torch.allclose(numbers(a), numbers(b), _NEAR)
            for a, b in pairs(self.own, lambda one: one)
        ) and all(alike(*both) for both in pairs(self.reference, precise))

    def _renew(self, inputs: Inputs, generator: torch.Generator) -> Inputs:
        seed = int(torch.randint(2**31, (), generator=generator, device=generator.device))
        tensors, _ = self._drawn(seed, generator.device)
        return (*tensors, *inputs[len(tensors) :])

    def arguments(self, inputs: Sequence[Any]) -> list[Any]:
        """Return the arguments of a module, as they are drawn."""
        tensors = iter(inputs[: self._tensors])
        others = iter(inputs[self._tensors + len(self._weights) :])
        leaves = [next(tensors if is_tensor else others) for is_tensor in self._is_tensor]
        return list(tree_unflatten(leaves, self._tree))

    def _made(self, seed: int, device: str | torch.device, make: Make | None = None) -> Any:
        with _seeded(seed, device):
            module = (make or self._make)()
        return module.to(device) if isinstance(module, Module) else module

    def own(self, *inputs: Any) -> Outputs:
        """Compute it as the reference does, in its own precision."""
        return self._called(self._module, inputs)

    def reference(self, *inputs: Any) -> Outputs:
        """Compute it in float64 if the inputs are, unless those who chose the tolerance did not."""
        like = list(zip(inputs, self._dtypes, strict=True))
        drawn = any(kind and kind.is_floating_point and value.dtype is kind for value, kind in like)
        torch.set_default_dtype(torch.float64)  # of tensors that a module makes
        try:
            if self._tolerance is None and (not drawn or torch.float64 in self._dtypes):
                return self._called(self._double, inputs)
        except RuntimeError:  # it converts to a type of its own
            pass
        finally:
            torch.set_default_dtype(torch.float32)
        return self.own(*(value.to(kind) if kind else value for value, kind in like))

    def _called(self, module: Any, inputs: Sequence[Any]) -> Outputs:
        if self._weights:
            weights = inputs[self._tensors : self._tensors + len(self._weights)]
            module.load_state_dict(dict(zip(self._weights, weights, strict=True)), strict=False)
        return _plain(module(*self.arguments(inputs)))

    def prepare(self, make: Make) -> Callable[..., tuple[Any, ...]]:
        """Return the ``prepare`` of an implementation: it makes a module, and gives it the weights of the reference.

        Those that it does not name alike are only equal if they are made in the same order, from the same seed.
        """

        def prepared(*parameters: Any) -> tuple[Any, ...]:
            *weights, seed = parameters
            device = weights[0].device if weights else torch_device()
            module = self._made(seed, device, make)
            own = _state(module)
            given = {name: value for name, value in zip(self._weights, weights, strict=True) if name in own}
            with torch.no_grad():
                for name, value in given.items():
                    if own[name].shape == value.shape:
                        own[name].copy_(value)
            return (module, *[None] * (len(parameters) - 1))

        return prepared

    def call(self, *inputs: Any) -> Any:
        """Call what was prepared: it is in the place of the first parameter."""
        place = self._tensors if self._weights else len(inputs) - 1
        return _plain(inputs[place](*self.arguments(inputs)))


def _plain(found: Any) -> Any:
    """Return a list as a tuple, and a tuple of one as what is in it, as an operator's outputs are."""
    if type(found) not in (tuple, list):
        return found
    return found[0] if len(found) == 1 else tuple(found)


def run_module(
    reference: Any,
    candidate: Any,
    inputs: Draw,
    *,
    name: str = "",
    output: str | Path | None = None,
    device: str | None = None,
) -> list[Record]:
    """Check and time a module or function and its reference as an operator; return the records of both.

    Args:
        reference: A module, a function, or a class of modules without arguments, whose weights are then new for each seed.
        candidate: The same; it gets the reference's weights.
        inputs: Draws the arguments from torch's generator: a list, as ``get_inputs`` of KernelBench.
        name: Of the operator. Default: that of the reference.
        output: The file of records. Default: ``<name>.jsonl`` in the working directory.
        device: As of ``run_benchmark``.
    """
    where = device or torch_device()
    problem = ModuleProblem(name or _name(reference), _maker(reference), inputs, where)
    options: dict[str, Any] = {"output": output, "device": where}
    records = _measure(problem, REFERENCE, lambda: _maker(reference), **options)
    return records + _measure(problem, _name(candidate), lambda: _maker(candidate), **options)


def _measure(
    problem: ModuleProblem,
    implementation: str,
    load: Callable[[], Make],
    *,
    noted: bool = True,
    **options: Any,
) -> list[Record]:
    loaded: list[Make] = []

    def loading() -> Callable[..., Any]:
        loaded.append(load())
        return problem.call

    return run_benchmark(
        problem.operator(noted=noted),
        load=loading,
        prepare=lambda *parameters: problem.prepare(loaded[0])(*parameters),
        workloads=_SET,
        impl_name=implementation,
        **options,
    )


def _maker(given: Any) -> Make:
    def make() -> Any:
        return given() if isclass(given) else deepcopy(given) if isinstance(given, Module) else given

    return make


def _name(given: Any) -> str:
    return str(getattr(given, "__name__", type(given).__name__))


def load_file(path: Path, name: str) -> ModuleType:
    """Import a file under a name; its exceptions are raised."""
    spec = spec_from_file_location(name, path)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def _attribute(module: ModuleType, name: str) -> Any:
    if not hasattr(module, name):
        raise OperatorError(
            str(module.__file__), f"defines no {name}", "Model, get_inputs and, for a candidate, ModelNew"
        )
    return getattr(module, name)


class Problem(NamedTuple):
    """A problem of another harness, in the process that judges and in that of the candidate."""

    module: ModuleProblem
    own: Make
    """The reference, as it is timed."""
    load: Callable[[], Make]
    """Reads the candidate's file."""
    tags: Mapping[str, str] = MappingProxyType({})


def main(path: str) -> None:
    """Time what a request names: the reference before the candidate's file is read."""
    request, device = msgspec.json.decode(read_file(path), type=ProblemRequest), torch_device()
    if request.kernel and not request.name:
        names = workload_names(load_file(Path(request.reference), "imported_reference"))
        write_atomically(Path(request.output), msgspec.json.encode([*names]))
        return
    found = open_problem(request, Path(path).parent, device)
    options: dict[str, Any] = {"output": request.output, "device": device, "tags": found.tags, "noted": False}
    _measure(found.module, REFERENCE, lambda: found.own, **options)
    if request.candidate or request.kernel:
        _measure(found.module, request.implementation, found.load, **options)


def open_problem(request: ProblemRequest, folder: Path, device: str) -> Problem:
    """Load a problem, but not its candidate; its sources are written into ``folder`` if they are text."""
    if request.workload:
        return _open_trace(request, request.workload, folder, device)
    module = load_file(Path(request.reference), "imported_reference")
    return (_open_hf if request.kernel else _open_kernelbench)(module, request, device)


def _open_kernelbench(module: ModuleType, request: ProblemRequest, device: str) -> Problem:
    given = getattr(module, "get_init_inputs", list)

    def making(kind: Any) -> Make:
        def make() -> Any:
            arguments = list(given())
            if len(arguments) == 2 and isinstance(arguments[0], list) and isinstance(arguments[1], dict):
                return kind(*arguments[0], **arguments[1])
            return kind(*arguments)

        return make

    def load() -> Make:
        return making(_attribute(load_file(Path(request.candidate), "imported_candidate"), "ModelNew"))

    own, draw = making(_attribute(module, "Model")), _attribute(module, "get_inputs")
    return Problem(ModuleProblem(request.name, own, draw, device), own, load)


def _open_hf(module: ModuleType, request: ProblemRequest, device: str) -> Problem:
    with _seeded(0, device):
        workload = HfWorkload(module, request.name, device)

    def load() -> Make:
        workload.kernel = load_kernel(request.kernel)
        return lambda: workload.run

    problem = ModuleProblem(request.name, lambda: workload.verify, workload.draw, device, their_tolerance)
    return Problem(problem, lambda: workload.verify, load, {"reference": "theirs"})


def _open_trace(request: ProblemRequest, workload: TraceWorkload, folder: Path, device: str) -> Problem:
    definition = msgspec.json.decode(read_file(request.reference), type=Definition)
    trace = TraceProblem(definition, workload, Path(request.root), folder)

    def load() -> Make:
        found = trace.solution(msgspec.json.decode(read_file(request.candidate), type=Solution))
        return lambda: found

    problem = ModuleProblem(definition.name, lambda: trace.reference, trace.draw, device, their_tolerance)
    return Problem(problem, lambda: trace.reference, load)


if __name__ == "__main__":
    main(sys.argv[1])
