"""Is the result right? Asked before any timing, on ordinary inputs of several seeds and on hard ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from kernels_bench_tools.measure.correctness.compare import compare, require_outputs
from kernels_bench_tools.measure.correctness.errors import Comparison, WrongResultError
from kernels_bench_tools.measure.integrity.fingerprint import fingerprint, same_bits
from kernels_bench_tools.measure.integrity.poison import poison_memory
from kernels_bench_tools.measure.operator import Inputs, Operator, Workload
from kernels_bench_tools.schema.record import Flag

SMALL_SEEDS = 2
"""Further seeds, on the operator's smaller version of the workload."""
_LONGEST_REASON = 120
_MOST_REFUSED = 4


@dataclass
class Verdict:
    """Whether an implementation is right on a workload, and how that was found."""

    ok: bool
    reason: str = ""
    absmax: float | None = None
    corr: dict[str, Any] = field(default_factory=dict)
    """For the record, some 300 bytes: reference, tolerance, errors, number of cases, those refused."""
    flags: list[Flag] = field(default_factory=list)
    """``input_mutated``, ``precision``, ``nondeterministic``."""

    def add(self, flag: Flag) -> None:
        """Add a flag once."""
        if flag not in self.flags:
            self.flags.append(flag)

    def take(self, other: Verdict) -> None:
        """Add what was found on other inputs."""
        self.corr["cases"] += other.corr["cases"]
        self.corr |= {name: value for name, value in other.corr.items() if name != "cases"}
        for flag in other.flags:
            self.add(flag)


@dataclass
class SmallerCases:
    """What a process has found on smaller workloads: several workloads often have the same one."""

    found: dict[tuple[Any, ...], Verdict] = field(default_factory=dict)
    """By what makes the smaller workload; those on which the implementation was right."""


def check(
    operator: Operator,
    workload: Workload,
    function: Callable[..., Any],
    inputs: Inputs,
    known: SmallerCases | None = None,
) -> Verdict:
    """Compare ``function`` with the reference, and its error with that of torch's own operator.

    First on the workload's inputs, twice, with poisoned memory; then, on the operator's smaller version
    of the workload, with other seeds and with its hard cases. A hard case that the implementation refuses
    with an exception is noted, not held against it. Exceptions on ordinary inputs are the caller's.
    Inputs are copied for each call, and the reference is computed after it.

    Args:
        operator: What is computed.
        workload: The problem size.
        function: The implementation.
        inputs: The workload's inputs.
        known: What the same function was already found right on; added to.
    """
    operator = operator.form(workload)
    tolerance = operator.allowed(operator.outputs[0], inputs)
    corr: dict[str, Any] = {"ref": "float64", "rtol": tolerance.rtol, "atol": tolerance.atol, "cases": 0}
    verdict = Verdict(ok=False, corr=corr)
    given = [fingerprint(value) for value in inputs if isinstance(value, Tensor)]
    try:
        _check_workload(verdict, operator, function, inputs)
        device = str(inputs[0].device)
        verdict.take(_on_smaller(operator, workload, function, device, known or SmallerCases()))
    except WrongResultError as wrong:
        verdict.reason = str(wrong)
        corr["reason"] = verdict.reason[:_LONGEST_REASON]
    verdict.ok = not verdict.reason
    if not verdict.ok and Flag.NONDETERMINISTIC in verdict.flags:
        verdict.flags.remove(Flag.NONDETERMINISTIC)  # what is wrong may well vary
    if given != [fingerprint(value) for value in inputs if isinstance(value, Tensor)]:
        verdict.add(Flag.INPUT_MUTATED)  # those that no call was given: it went looking for them
    return verdict


def _check_workload(
    verdict: Verdict, operator: Operator, function: Callable[..., Any], inputs: Inputs
) -> None:
    outputs = require_outputs(_call(verdict, operator, function, inputs), operator, inputs)
    first = [fingerprint(value) for value in outputs]
    # What is judged is the second call's: by now the size of the outputs is known, and can be poisoned.
    for value in outputs:
        poison_memory(value)
    del outputs, value
    output = _call(verdict, operator, function, inputs)
    found = compare(output, operator, inputs)
    worst = found.worst.found
    verdict.absmax = worst.absmax
    verdict.corr.update(
        absmax=_short(worst.absmax),
        mae=_short(worst.mae),
        error_over_allowed=_short(worst.ratio),
        matched=round(worst.matched, 6),
    )
    if found.precision is not None:
        verdict.corr["error_over_baseline"] = _short(found.precision)
    if [fingerprint(value) for value in require_outputs(output, operator, inputs)] != first:
        verdict.add(Flag.NONDETERMINISTIC)
    _conclude(verdict, found, precision=True)


def _on_smaller(
    operator: Operator, workload: Workload, function: Callable[..., Any], device: str, known: SmallerCases
) -> Verdict:
    """Return what was found on the smaller workload, now or for an earlier workload with the same one."""
    smaller = operator.smaller(workload)
    key = (smaller.mode, smaller.group, smaller.dtype, smaller.seed, *smaller.axes.items())
    if key in known.found:
        return known.found[key]
    verdict = Verdict(ok=True, corr={"cases": 0})
    for seed in range(workload.seed + 1, workload.seed + 1 + SMALL_SEEDS):
        _check_case(verdict, operator, function, f"seed {seed}", operator.inputs(smaller, device, seed), True)
    for name, case in operator.cases(smaller, operator.inputs(smaller, device, workload.seed)):
        # Extreme values may lose digits in ways that torch's operator happens not to: only right or wrong.
        _check_case(verdict, operator, function, name, case, False)
    known.found[key] = verdict
    return verdict


def _check_case(
    verdict: Verdict,
    operator: Operator,
    function: Callable[..., Any],
    name: str,
    inputs: Inputs,
    ordinary: bool,
) -> None:
    try:
        output = _call(verdict, operator, function, inputs)
    except torch.OutOfMemoryError:
        raise
    except Exception as error:
        _note_refused(verdict.corr, name, error)
        return
    try:
        _conclude(verdict, compare(output, operator, inputs), precision=ordinary)
    except WrongResultError as wrong:
        raise WrongResultError(f"on {name}: {wrong}") from None


def _conclude(verdict: Verdict, found: Comparison, *, precision: bool) -> None:
    verdict.corr["cases"] += 1
    if precision and found.imprecise:
        verdict.add(Flag.PRECISION)
    found.require_right()


def _call(verdict: Verdict, operator: Operator, function: Callable[..., Any], inputs: Inputs) -> Any:
    """Return the result on copies of ``inputs``, with poisoned memory; flag it if it changed them."""
    copies = tuple(_copy(value) for value in inputs)
    poison_memory(inputs[0])
    output = function(*copies)
    for number, (copy, original) in enumerate(zip(copies, inputs, strict=True)):
        if isinstance(original, Tensor) and number not in operator.in_place and not same_bits(copy, original):
            verdict.add(Flag.INPUT_MUTATED)
    return output


def _copy(value: Any) -> Any:
    """Return a copy with the same strides, where it is a tensor: the layout may be the hard part."""
    if not isinstance(value, Tensor):
        return value
    if value.is_contiguous():
        return value.clone()
    size = value.untyped_storage().nbytes() // value.element_size()
    memory = value.as_strided((size,), (1,), 0).clone()
    return memory.as_strided(value.shape, value.stride(), value.storage_offset())


def _note_refused(corr: dict[str, Any], name: str, error: Exception) -> None:
    first_line = (str(error).splitlines() or [""])[0]
    refused = corr.setdefault("refused", [])
    if len(refused) < _MOST_REFUSED:
        refused.append(name)
    corr.setdefault("refusal", f"{type(error).__name__}: {first_line}"[:60])


def _short(value: float) -> float:
    return float(f"{value:.4g}")
