"""Check the result of an implementation before it is timed: on ordinary inputs of several seeds and on edge cases."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from kernels_bench_tools.errors import OperatorError
from kernels_bench_tools.measure.correctness.compare import (
    OutputComparison,
    compare,
    is_valid,
    require_outputs,
    sensitivity,
    some_slices,
)
from kernels_bench_tools.measure.correctness.difficult import difficult_groups, mixed
from kernels_bench_tools.measure.correctness.errors import WrongResultError
from kernels_bench_tools.measure.inputs import with_axes
from kernels_bench_tools.measure.judge.memory import copied, fingerprint, is_dense, poison_memory, same_bits
from kernels_bench_tools.measure.operator import (
    Inputs,
    Operator,
    Workload,
    failed_status,
    failure_of,
    tensors_of,
)
from kernels_bench_tools.records.record import Flag, Status
from kernels_bench_tools.text.hiding import without_styles

SMALL_SEEDS = 2
"""Further seeds that are checked, on the operator's smaller version of the workload."""
NAN_TURNS = 3
"""In one of so many checks after timing, there is a NaN among the difficult values."""
DRAWN_SHAPES = 2
"""Shapes that are drawn for each function and dtype of an operator, in each process."""
SHARE_OF_SLICES, LEAST_SLICES = 1 / 8, 4
"""How much of the output of a timed call, and of one on difficult values, is compared, chosen at random after the call: the
reference of a long attention takes a second. An eighth of some ten outputs in each of three processes are 120 slices or more:
an implementation that leaves out 5 % of each timed call, which saves as much, passes once in 400."""
_DRAWS = 16
"""How often axes are drawn until the operator has results for them; after every fourth, fewer of them change."""
_MOST = 2**20
"""Product of the sizes that are drawn: a shape costs no time."""
_SEEDS = 10**6
_RANDOM = secrets.SystemRandom()
_MAX_REASON = 120
MORE_SENSITIVE = 10.0
"""Exchanged elements that make rounding errors grow by more are of inputs that have a structure."""


@dataclass(frozen=True)
class Case:
    """Names the inputs of one call, which follow from the workload."""

    seed: int
    smaller: bool = False
    """Whether they are of the operator's smaller version of the workload."""
    edge: int = -1
    """Number of the edge case; -1 for ordinary inputs."""
    axes: Mapping[str, int | bool | str] = field(default_factory=dict)
    """With sizes that were drawn."""
    value: str = ""
    """NaN or infinity, which one element has instead of its own."""
    position: int = 0
    element: int = 0
    """Number of that input, and of its element."""
    sorted: bool = False
    """Whether indices are."""
    group: int = -1
    """Of difficult inputs, see :mod:`.difficult`; -1 for others."""

    @property
    def name(self) -> str:
        if self.group >= 0:
            return "mixed edge cases"
        if self.axes:
            return f"shape {'x'.join(map(str, self.axes.values()))}"
        return (
            f"{self.value} at {self.element} of input {self.position + 1}" if self.value else "sorted indices"
        )

    def inputs(self, operator: Operator, workload: Workload, device: str) -> Inputs:
        """Make the inputs of a case that is no edge case of the operator's."""
        of = operator.smaller(workload) if self.smaller else workload
        made = list(operator.made_inputs(with_axes(of, **self.axes), device, self.seed))
        if self.group >= 0:
            made = list(mixed(difficult_groups(operator, of, tuple(made))[self.group], self.seed))
        made = _with_value(self, made)
        for number in _indices(operator, made) if self.sorted else ():
            made[number] = made[number].sort().values
        return tuple(made)


def _with_value(case: Case, made: list[Any]) -> list[Any]:
    if case.value:
        changed = made[case.position] = copied(made[case.position])
        # Not torch.unravel_index, which imports sympy: a second of each process.
        changed[tuple(map(int, np.unravel_index(case.element, changed.shape)))] = float(case.value)
    return made


def _indices(operator: Operator, inputs: Sequence[Any]) -> list[int]:
    """Return the positions of indices that may change places."""
    integers = torch.int32, torch.int64
    return [
        number
        for number, one in enumerate(inputs)
        if isinstance(one, Tensor) and one.dtype in integers and one.dim() == 1 and operator.changes(number)
    ]


CallCase = Callable[[Case, Inputs], tuple[Any, bool]]
"""Calls an implementation on the inputs of a case; returns its output, and whether it changed inputs that it may not."""


@dataclass
class Correctness:
    ok: bool
    reason: str = ""
    absmax: float | None = None
    corr: dict[str, Any] = field(default_factory=dict)
    """For the record: reference, tolerances, errors, number of cases, refused cases."""
    flags: list[Flag] = field(default_factory=list)
    """``input_mutated``, ``precision``, ``nondeterministic``, ``zeros_pass``."""
    refuses_size: bool = False
    """Whether it refused all values of the smaller size."""

    def add(self, flag: Flag) -> None:
        if flag not in self.flags:
            self.flags.append(flag)

    def merge(self, other: Correctness) -> None:
        self.corr["cases"] += other.corr["cases"]
        self.corr |= {name: value for name, value in other.corr.items() if name != "cases"}
        for flag in other.flags:
            self.add(flag)


SmallerResults = dict[tuple[Any, ...], Correctness]
"""Results on smaller workloads that passed, by their fields: several workloads often share one."""


def check(
    operator: Operator, workload: Workload, function: Callable[..., Any], inputs: Inputs
) -> Correctness:
    """Check a function of this process on copies of its inputs, with poisoned memory; see :func:`check_calls`.

    A mistake of the operator is a reason, too.
    """
    of_workload = operator.for_workload(workload)
    like: list[Tensor] = []

    def call(_: Case, given: Inputs) -> tuple[Any, bool]:
        copies = tuple(copied(value) for value in given)
        for one in (given[0], *like):
            poison_memory(one, str(given[0].device))
        output = function(*copies)
        like[:] = without_memory(output)
        return output, changed_inputs(of_workload, copies, given)

    try:
        return check_calls(operator, workload, call, inputs)
    except OperatorError as error:
        return Correctness(ok=False, reason=str(error), corr={"cases": 0})


def check_calls(
    operator: Operator,
    workload: Workload,
    call: CallCase,
    inputs: Inputs,
    known: SmallerResults | None = None,
    *,
    thorough: bool = True,
    turn: int = 0,
) -> Correctness:
    """Compare an implementation with the reference, and its error with that of torch's operator.

    Checks the workload's inputs, twice; then other seeds, and if ``thorough``, the edge cases and drawn shapes on the operator's
    smaller version of the workload, whose results are taken from ``known`` and added to it, and difficult values of its own
    size: ``turn`` decides on those. An edge case, or all values of the smaller size, may be refused by an exception, which is
    noted. Refusing only some values of a size is wrong. Exceptions on the workload's inputs are raised.
    """
    operator = operator.for_workload(workload)
    tolerance = operator.tolerance_of(operator.outputs[0], inputs)
    corr: dict[str, Any] = {"ref": "float64", "rtol": tolerance.rtol, "atol": tolerance.atol, "cases": 0}
    checks = _Checks(operator, call, str(inputs[0].device), Correctness(ok=False, corr=corr), thorough)
    result = checks.result
    try:
        checks.workload(workload, inputs)
        smaller = checks.smaller(workload, {} if known is None else known)
        result.merge(smaller)
        if smaller.refuses_size and (error := checks.seeds(workload)):
            raise _refused_values(error)
        if thorough:
            checks.difficult(workload, turn)
    except WrongResultError as wrong:
        result.reason = str(wrong)
        corr["reason"] = result.reason[:_MAX_REASON]
    result.ok = not result.reason
    if not result.ok and Flag.NONDETERMINISTIC in result.flags:
        result.flags.remove(Flag.NONDETERMINISTIC)  # means nothing for a wrong result
    return result


def check_again(
    operator: Operator, workload: Workload, call: CallCase, device: str, found: Correctness, turn: int
) -> None:
    """Check a call with other difficult values, now that calls were timed; ``turn`` is one more than that of before."""
    try:
        _Checks(operator.for_workload(workload), call, device, found).difficult(workload, turn, after=True)
    except WrongResultError as wrong:
        found.ok, found.reason = False, found.reason or str(wrong)
        found.corr.setdefault("reason", found.reason[:_MAX_REASON])


@dataclass(frozen=True, slots=True)  # an implementation of this process cannot give it other methods
class _Checks:
    """Calls and compares; what it finds is in ``result``."""

    operator: Operator
    call: CallCase
    device: str
    result: Correctness
    thorough: bool = True

    def workload(self, workload: Workload, inputs: Inputs) -> None:
        case, operator, result = Case(workload.seed), self.operator, self.result
        outputs = require_outputs(self._output(case, inputs), operator, inputs)
        first = self._fingerprints(outputs)
        del outputs
        # The second call is compared: the size of the outputs is known now, so that memory for them can be poisoned.
        output = self._output(case, inputs)
        compared = compare(output, operator, inputs, zeros=self.thorough)
        if compared.takes_zeros:
            result.add(Flag.ZEROS_PASS)
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
        if self._fingerprints(require_outputs(output, operator, inputs)) != first:
            result.add(Flag.NONDETERMINISTIC)
        self._conclude(compared, precision=True)

    def _fingerprints(self, outputs: Sequence[Tensor]) -> list[int]:
        kinds = zip(self.operator.outputs, outputs, strict=True)
        return [fingerprint(value) for kind, value in kinds if not kind.accept]

    def smaller(self, workload: Workload, known: SmallerResults) -> Correctness:
        """Return the result on the smaller workload, computed now or for an earlier workload with the same one."""
        smaller = self.operator.smaller(workload)
        key = (smaller.mode, smaller.group, smaller.dtype, smaller.seed, *smaller.axes.items())
        if key in known:
            return known[key]
        checks = replace(self, result=Correctness(ok=True, corr={"cases": 0}))
        refused: list[tuple[str, Exception]] = []
        if error := checks.seeds(smaller, smaller=True):
            checks.result.refuses_size = True
            refused.append(("size " + " x ".join(map(str, smaller.axes.values())), error))
        ordinary = self.operator.made_inputs(smaller, self.device, workload.seed)
        for number, (name, inputs) in enumerate(
            self.operator.each("edge_cases", self.operator.edge_cases, smaller, ordinary)
            if self.thorough
            else ()
        ):
            case = Case(workload.seed, smaller=True, edge=number)
            # Precision is not compared on edge cases: torch's operator may lose fewer digits there by chance.
            if error := checks._refusal(name, case, inputs, precision=False):
                refused.append((name, error))
        first = not any(one[:3] == key[:3] for one in known)
        for case in checks._drawn(smaller) if first else ():
            inputs = case.inputs(self.operator, workload, self.device)
            if error := checks._refusal(f"{case.name}, drawn by the judge", case, inputs, precision=False):
                refused.append(("a drawn shape" if case.axes else case.value or case.name, error))
        if refused:
            checks.result.corr |= {
                "refused": [name for name, _ in refused],
                "refusal": _first_line(refused[0][1])[:200],
            }
        known[key] = checks.result
        return checks.result

    def difficult(self, workload: Workload, turn: int, *, after: bool = False) -> None:
        """Check slices of what it makes of difficult values at full size; ``after`` timing now and then with a NaN.

        Other parameters and numbers, such as eps, take turns with ordinary ones. Where torch's own operator is wrong for them,
        or where they have numbers that it refuses, nothing follows.
        """
        operator, seed = self.operator, _RANDOM.randrange(_SEEDS)
        ordinary = operator.made_inputs(workload, self.device, seed)
        groups = difficult_groups(operator, workload, ordinary)
        other = turn % 2 and len(groups) > 1
        case = Case(seed, group=1 + turn // 2 % (len(groups) - 1) if other else 0)
        alone = len(groups[0]) == len(groups) == 1
        # It may spread over the whole output, and hide what comes of the other values.
        spoiled = after and (alone or not _RANDOM.randrange(NAN_TURNS))
        if spoiled and (positions := operator.nonfinite.get("nan")) and not operator.rounded:
            position = _RANDOM.choice(positions)
            element = _RANDOM.randrange(ordinary[position].numel())
            case = replace(case, value="nan", position=position, element=element)
        if operator.baseline is None or (alone and not case.value):
            return
        inputs = tuple(_with_value(self._note(case), list(mixed(groups[case.group], seed))))
        try:
            output = self._output(case, inputs)
        except Exception as error:
            if failed_status(error) is Status.OOM:
                raise
            if case.group == 0 and is_valid(operator, inputs, finite=False):
                raise _refused_values(error) from None
            return
        only = some_slices(operator, inputs, least=LEAST_SLICES, share=SHARE_OF_SLICES)
        try:
            self._conclude(compare(output, operator, inputs, only), precision=False)
        except WrongResultError as wrong:
            if is_valid(operator, inputs, finite=False):
                raise WrongResultError(f"on {case.name}: {wrong}") from None

    def seeds(self, workload: Workload, *, smaller: bool = False) -> Exception | None:
        """Check other values of a size; return the first exception if it refuses all of them. Refusing only some is wrong."""
        errors = []
        for seed in _RANDOM.sample(range(_SEEDS), SMALL_SEEDS):
            self._note(seed)
            inputs = self.operator.made_inputs(workload, self.device, seed)
            errors.append(self._refusal(f"seed {seed}", Case(seed, smaller=smaller), inputs, precision=True))
        refused = [error for error in errors if error is not None]
        if 0 < len(refused) < SMALL_SEEDS:
            raise _refused_values(refused[0])
        return refused[0] if refused else None

    def _drawn(self, smaller: Workload) -> Iterator[Case]:
        """Yield cases of sizes and elements that no implementation can know before; those of sizes first."""
        operator, seed = self.operator, _RANDOM.randrange(_SEEDS)
        found = 0
        for draw in range(_DRAWS if self.thorough else 0):
            axes = _draw_axes(operator, smaller, 1 + draw // 4)
            if found < DRAWN_SHAPES and axes != smaller.axes:
                case = Case(seed + draw, smaller=True, axes=axes)
                with suppress(OperatorError, NotImplementedError):
                    # On a CPU: other devices fail for good where indices are none.
                    if is_valid(operator, case.inputs(operator, smaller, "cpu")):
                        found += 1
                        yield self._note(case)
        ordinary = operator.made_inputs(smaller, self.device, seed)
        for value, positions in {} if operator.rounded else operator.nonfinite.items():
            position = _RANDOM.choice(positions)
            element = _RANDOM.randrange(ordinary[position].numel())
            case = Case(seed, smaller=True, value=value, position=position, element=element)
            if is_valid(operator, case.inputs(operator, smaller, self.device), finite=False):
                yield self._note(case)
        if not operator.renew and _indices(operator, ordinary):
            yield self._note(Case(seed, smaller=True, sorted=True))

    def _note(self, drawn: Any) -> Any:
        """Note in the record what was drawn."""
        name = f"{drawn.name}, seed {drawn.seed}" if isinstance(drawn, Case) else f"seed {drawn}"
        self.result.corr.setdefault("drawn", []).append(name)
        return drawn

    def _refusal(self, name: str, case: Case, inputs: Inputs, *, precision: bool) -> Exception | None:
        """Check a case; return the exception by which it was refused."""
        try:
            output = self._output(case, inputs)
        except Exception as error:
            if failed_status(error) is Status.OOM:
                raise
            return error
        try:
            self._conclude(compare(output, self.operator, inputs), precision=precision)
        except WrongResultError as wrong:
            raise WrongResultError(f"on {name}: {wrong}") from None
        return None

    def _output(self, case: Case, inputs: Inputs) -> Any:
        tensors = [one for one in inputs if isinstance(one, Tensor)]
        before = list(map(fingerprint, tensors))
        output, changed = self.call(case, inputs)
        if before != list(map(fingerprint, tensors)):  # of NaN any result would be right
            raise WrongResultError("it changed inputs that it was not given")
        if changed:
            self.result.add(Flag.INPUT_MUTATED)
        return output

    def _conclude(self, compared: OutputComparison, *, precision: bool) -> None:
        self.result.corr["cases"] += 1
        if precision and compared.imprecise:
            self.result.add(Flag.PRECISION)
        compared.require_correct(mean=precision)


def _draw_axes(operator: Operator, smaller: Workload, share: int) -> dict[str, int | bool | str]:
    """Return axes of which some, all divided by ``share``, have other sizes, up to those of ``smaller``, that no workload has."""
    known = [one.axes for sets in operator.workload_sets.values() for one in sets]
    choices: dict[str, list[int]] = {}
    for axis, size in smaller.axes.items():
        if type(size) is int and (step := operator.multiples.get(axis, 1)):
            public = {one[axis] for one in known}
            choices[axis] = [other for other in range(step, size + 1, step) if other not in public]
    names = [axis for axis, sizes in choices.items() if sizes]
    chosen = _RANDOM.sample(names, -(-len(names) // share))
    drawn, most = dict(smaller.axes), _MOST
    for axis in chosen:
        few = [size for size in choices[axis] if size <= most] or choices[axis][:1]
        drawn[axis] = size = _RANDOM.choice(few)
        most //= size
    return drawn


class ChangedInputsError(OperatorError):
    """Changes between timed calls made inputs that are none of the operator's."""


def require_usual(operator: Operator, before: Inputs, changed: Inputs) -> None:
    """Raise ``ChangedInputsError`` if torch's own operator is right for inputs before changes, but not for changed ones.

    Or if rounding errors have grown more than those of inputs that have no structure.
    """
    if operator.baseline is None:
        return
    failed = ""
    with suppress(OperatorError, WrongResultError):  # not the changes are to blame
        usual = sensitivity(operator, before)
        try:
            if (found := sensitivity(operator, changed)) > MORE_SENSITIVE * usual:
                failed = f"rounded inputs change its result {found / usual:,.0f} times as much"
        except (OperatorError, WrongResultError) as error:
            failed = f"torch's own operator is wrong for them ({_first_line(error)})"
    if failed:
        raise ChangedInputsError(
            f"operator {operator.name}",
            f"its inputs are to blame, not the implementation: after the changes between timed calls {failed}",
            "",
            "Give it `renew`, which makes other inputs of the same kind, or name in `fixed` those that stay as they are",
        )


def without_memory(output: Any) -> list[Tensor]:
    """Return tensors like the dense ones of an output that hold no memory."""
    plain = (one for one in tensors_of(output) if type(one) is Tensor and is_dense(one))
    return [torch.empty_like(value, device="meta") for value in plain]


def changed_inputs(operator: Operator, after: Sequence[Any], before: Inputs) -> bool:
    """Return whether inputs differ that the operator may not overwrite."""
    return len(after) != len(before) or any(
        isinstance(original, Tensor)
        and not operator.may_overwrite(number)
        and not (type(value) is Tensor and same_bits(value, original))
        for number, (value, original) in enumerate(zip(after, before, strict=True))
    )


def _refused_values(error: Exception) -> WrongResultError:
    return WrongResultError(f"it refused other values of a size that it accepts: {_first_line(error)}")


def _first_line(error: Exception) -> str:
    failure = failure_of(error)
    return f"{failure.type}: {(without_styles(failure.msg).splitlines() or [''])[0]}"
