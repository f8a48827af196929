"""Draw the workloads of sets ``random:COUNT:SEED``: shapes that are in no table."""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from math import exp, log, prod
from typing import Any

from kernels_bench_tools.errors import OperatorError
from kernels_bench_tools.measure.correctness.compare import is_valid
from kernels_bench_tools.measure.operator import Operator, Workload
from kernels_bench_tools.records.request import DRAWN_SET, RANDOM
from kernels_bench_tools.text.tables import grouped

_DRAWS = 16
"""How often axes are drawn until they are legal and new."""


def with_drawn_sets(operator: Operator, names: str, device: str) -> Operator:
    """Return the operator with those of the comma-separated workload sets that are drawn, for a device of this kind."""
    drawn = [name for name in map(str.strip, names.split(",")) if name.startswith(RANDOM)]
    sets = {name: _drawn_workloads(operator, name, device) for name in drawn}
    return replace(operator, workload_sets={**operator.workload_sets, **sets}) if drawn else operator


def _drawn_workloads(operator: Operator, name: str, device: str) -> list[Workload]:
    """Return the set ``random:COUNT:SEED``, or ``random:COUNT:SEED:SETS`` with ``+`` between sets: shapes that are in no table.

    Each size is one of any set of the operator, which has those of its models, or log-uniform up to the largest of SETS, by
    default the device's. No shape has more elements than the largest of SETS; sizes fit together, and torch's operator is
    right for a smaller shape like it.
    """
    parts = DRAWN_SET.fullmatch(name)
    if parts is None:
        what, expected = f"has no workload set {name!r}", "random:COUNT:SEED, with up to 9999 shapes"
        raise OperatorError(f"operator {operator.name}", what, expected)
    count, seed, of = parts.groups()
    table = operator.workloads(of.replace("+", ",") if of else operator.default_sets(device))
    known = [one.axes for sets in operator.workload_sets.values() for one in sets]
    groups = list(grouped((one.group, one) for one in table).values())
    draw, found = random.Random(int(seed)), dict[str, Workload]()  # noqa: S311 - the same in all processes
    for number in range(int(count)):
        alike = groups[number % len(groups)]
        largest = max(_elements(one.axes) for one in alike)
        for _ in range(_DRAWS):
            made = _draw(operator, alike, known, f"random{seed}", draw)
            is_new = made.name not in found and made.axes not in known
            if is_new and _elements(made.axes) <= largest and _is_legal(operator, made):
                found[made.name] = made
                break
    return list(found.values())


def _draw(
    operator: Operator,
    alike: Sequence[Workload],
    known: Sequence[Mapping[str, Any]],
    prefix: str,
    draw: random.Random,
) -> Workload:
    """Return one of these workloads with other sizes."""
    base = draw.choice(alike)
    axes = dict(base.axes)
    for axis, size in base.axes.items():
        step = operator.multiples.get(axis, 1)
        if type(size) is int and step:
            sizes = [int(one.axes[axis]) or 1 for one in alike]
            usual = [int(one[axis]) for one in known if int(one[axis]) <= max(sizes)]
            odd = step * max(1, round(exp(draw.uniform(log(min(sizes)) / 2, log(max(sizes)))) / step))
            axes[axis] = odd if draw.random() > 1 / 3 else draw.choice(usual)
    extents = "x".join(str(size) for size in axes.values() if type(size) is int)
    group = "".join(filter(str.isalnum, base.group))
    return replace(base, name=f"{prefix}_{group}{extents}_{base.dtype}", axes=axes)


def _elements(axes: Mapping[str, Any]) -> int:
    return prod(size for size in axes.values() if type(size) is int)


def _is_legal(operator: Operator, workload: Workload) -> bool:
    """Return whether sizes fit together, and torch's operator is right for a smaller workload like it."""
    of_group = operator.for_workload(workload)
    with suppress(OperatorError, NotImplementedError):
        # On a CPU: other devices fail for good where indices are none.
        return of_group.fit(workload.axes) and is_valid(
            of_group, of_group.made_inputs(of_group.smaller(workload), "cpu", workload.seed)
        )
    return False
