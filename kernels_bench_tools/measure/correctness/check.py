"""Check the result of an implementation before it is timed: on ordinary inputs of several seeds and on edge cases."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kernels_bench_tools.measure.correctness.compare import (
    OutputComparison,
    WrongResultError,
    compare,
    require_outputs,
)
from kernels_bench_tools.measure.integrity.memory import fingerprint, poison_memory, same_bits
from kernels_bench_tools.measure.operator import Inputs, Operator, Workload
from kernels_bench_tools.schema.record import Flag

SMALL_SEEDS = 2
"""Further seeds that are checked, on the operator's smaller version of the workload."""
_MAX_REASON = 120


@dataclass
class Correctness:
    """Result of checking an implementation on a workload."""

    ok: bool
    reason: str = ""
    absmax: float | None = None
    corr: dict[str, Any] = field(default_factory=dict)
    """For the record: reference, tolerances, errors, number of cases, refused cases."""
    flags: list[Flag] = field(default_factory=list)
    """``input_mutated``, ``precision``, ``nondeterministic``."""
    refuses_size: bool = False
    """Whether it refused all values of the smaller size."""

    def add(self, flag: Flag) -> None:
        """Add a flag once."""
        if flag not in self.flags:
            self.flags.append(flag)

    def merge(self, other: Correctness) -> None:
        """Add the result on other inputs."""
        self.corr["cases"] += other.corr["cases"]
        self.corr |= {name: value for name, value in other.corr.items() if name != "cases"}
        for flag in other.flags:
            self.add(flag)


SmallerResults = dict[tuple[Any, ...], Correctness]
"""Results on smaller workloads that passed, by their fields: several workloads often share one."""


def check(
    operator: Operator,
    workload: Workload,
    function: Callable[..., Any],
    inputs: Inputs,
    known: SmallerResults | None = None,
) -> Correctness:
    """Compare ``function`` with the reference, and its error with that of torch's operator.

    Checks the workload's inputs, twice, with poisoned memory; then other seeds and the edge cases on the operator's
    smaller version of the workload, whose results are taken from ``known`` and added to it. An edge case, or all values
    of the smaller size, may be refused by an exception, which is noted. Refusing only some values of a size is wrong.
    Exceptions on the workload's inputs are raised.
    """
    operator = operator.for_workload(workload)
    tolerance = operator.tolerance_of(operator.outputs[0], inputs)
    corr: dict[str, Any] = {"ref": "float64", "rtol": tolerance.rtol, "atol": tolerance.atol, "cases": 0}
    result = Correctness(ok=False, corr=corr)
    given = [fingerprint(value) for value in inputs if isinstance(value, Tensor)]
    try:
        _check_workload(result, operator, function, inputs)
        device = str(inputs[0].device)
        smaller = _on_smaller(operator, workload, function, device, {} if known is None else known)
        result.merge(smaller)
        if smaller.refuses_size and (error := _check_seeds(result, operator, function, workload, device)):
            raise _refused_values(error)
    except WrongResultError as wrong:
        result.reason = str(wrong)
        corr["reason"] = result.reason[:_MAX_REASON]
    result.ok = not result.reason
    if not result.ok and Flag.NONDETERMINISTIC in result.flags:
        result.flags.remove(Flag.NONDETERMINISTIC)  # means nothing for a wrong result
    if given != [fingerprint(value) for value in inputs if isinstance(value, Tensor)]:
        result.add(Flag.INPUT_MUTATED)  # these were passed to no call: it reached for them by other ways
    return result


def _check_workload(
    result: Correctness, operator: Operator, function: Callable[..., Any], inputs: Inputs
) -> None:
    outputs = require_outputs(_call(result, operator, function, inputs), operator, inputs)
    first = [fingerprint(value) for value in outputs]
    # The second call is compared: the size of the outputs is known now, so that memory for them can be poisoned.
    for value in outputs:
        poison_memory(value)
    del outputs, value
    output = _call(result, operator, function, inputs)
    compared = compare(output, operator, inputs)
    worst = compared.worst.found
    result.absmax = worst.absmax
    result.corr.update(
        absmax=worst.absmax,
        mae=worst.mae,
        error_over_allowed=worst.ratio,
        matched=round(worst.matched, 6),
    )
    if compared.precision is not None:
        result.corr["error_over_baseline"] = compared.precision
    if [fingerprint(value) for value in require_outputs(output, operator, inputs)] != first:
        result.add(Flag.NONDETERMINISTIC)
    _conclude(result, compared, precision=True)


def _on_smaller(
    operator: Operator, workload: Workload, function: Callable[..., Any], device: str, known: SmallerResults
) -> Correctness:
    """Return the result on the smaller workload, computed now or for an earlier workload with the same one."""
    smaller = operator.smaller(workload)
    key = (smaller.mode, smaller.group, smaller.dtype, smaller.seed, *smaller.axes.items())
    if key in known:
        return known[key]
    result = Correctness(ok=True, corr={"cases": 0})
    error = _check_seeds(result, operator, function, smaller, device)
    if error is not None:
        result.refuses_size = True
        _note_refused(result.corr, "size " + " x ".join(map(str, smaller.axes.values())), error)
    for name, case in operator.edge_cases(smaller, operator.inputs(smaller, device, workload.seed)):
        # Precision is not compared on edge cases: torch's operator may lose fewer digits there by chance.
        error = _check_case(result, operator, function, name, case, False)
        if error is not None:
            _note_refused(result.corr, name, error)
    known[key] = result
    return result


def _check_seeds(
    result: Correctness, operator: Operator, function: Callable[..., Any], workload: Workload, device: str
) -> Exception | None:
    """Check other values of a size; return the first exception if it refuses all of them. Refusing only some is wrong."""
    errors = [
        _check_case(result, operator, function, f"seed {seed}", operator.inputs(workload, device, seed), True)
        for seed in range(workload.seed + 1, workload.seed + 1 + SMALL_SEEDS)
    ]
    refused = [error for error in errors if error is not None]
    if 0 < len(refused) < SMALL_SEEDS:
        raise _refused_values(refused[0])
    return refused[0] if refused else None


def _check_case(
    result: Correctness,
    operator: Operator,
    function: Callable[..., Any],
    name: str,
    inputs: Inputs,
    precision: bool,
) -> Exception | None:
    """Check one case; return the exception by which it was refused."""
    try:
        output = _call(result, operator, function, inputs)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        return error
    try:
        _conclude(result, compare(output, operator, inputs), precision=precision)
    except WrongResultError as wrong:
        raise WrongResultError(f"on {name}: {wrong}") from None
    return None


def _conclude(result: Correctness, compared: OutputComparison, *, precision: bool) -> None:
    result.corr["cases"] += 1
    if precision and compared.imprecise:
        result.add(Flag.PRECISION)
    compared.require_correct()


def _call(result: Correctness, operator: Operator, function: Callable[..., Any], inputs: Inputs) -> Any:
    """Return the result on copies of ``inputs``, with poisoned memory; add a flag if it changed them."""
    copies = tuple(_copy(value) for value in inputs)
    poison_memory(inputs[0])
    output = function(*copies)
    for number, (copy, original) in enumerate(zip(copies, inputs, strict=True)):
        if isinstance(original, Tensor) and number not in operator.in_place and not same_bits(copy, original):
            result.add(Flag.INPUT_MUTATED)
    return output


def _copy(value: Any) -> Any:
    """Return a copy of a tensor with the same strides, since the layout may be the edge case; others as they are."""
    if not isinstance(value, Tensor):
        return value
    if value.is_contiguous():
        return value.clone()
    size = value.untyped_storage().nbytes() // value.element_size()
    memory = value.as_strided((size,), (1,), 0).clone()
    return memory.as_strided(value.shape, value.stride(), value.storage_offset())


def _note_refused(corr: dict[str, Any], name: str, error: Exception) -> None:
    corr.setdefault("refused", []).append(name)
    corr.setdefault("refusal", _first_line(error)[:60])


def _refused_values(error: Exception) -> WrongResultError:
    return WrongResultError(f"it refused other values of a size that it accepts: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {(str(error).splitlines() or [''])[0]}"
