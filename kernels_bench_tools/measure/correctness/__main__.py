"""``kbt check --operators``: call what operators define once, with their smallest inputs, and print a line for each mistake."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from math import prod

import torch

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.measure.correctness.check import check
from kernels_bench_tools.measure.judge.changing_inputs import InputChanges
from kernels_bench_tools.measure.modes import changing
from kernels_bench_tools.measure.operator import Operator, Workload, find_operator, tensors_of


def problems_of(operator: Operator) -> Iterator[str]:
    """Yield what is wrong with an operator, for the smallest workload of each of its groups."""
    sets = operator.workloads(",".join(operator.workload_sets))
    smallest: dict[str, Workload] = {}
    for workload in sorted(sets, key=lambda one: prod(n for n in one.axes.values() if isinstance(n, int))):
        smallest.setdefault(workload.group, workload)
    for group, workload in smallest.items():
        of_group = operator.for_workload(workload)
        baseline = of_group.baseline or of_group.reference
        inputs = of_group.made_inputs(workload, "cpu", 0)
        of_group.work(inputs, tensors_of(of_group.call("baseline", baseline, *inputs)))
        verdict = check(of_group, workload, lambda *given, f=baseline: _plain(f(*given)), inputs)
        if not verdict.ok:
            where = f" ({group})" if group else ""
            said = f"torch's own operator{where} is wrong by its own check: {verdict.reason}"
            yield verdict.reason if "Expected:" in verdict.reason else f"operator {operator.name}: {said}"
        positions = changing(of_group, "fwd")(inputs)
        changed = InputChanges.of(of_group, inputs, positions).apply(inputs, [1])
        if (
            of_group.renew
            and not check(of_group, workload, lambda *given, f=baseline: _plain(f(*given)), changed).ok
        ):
            yield f"operator {operator.name}: torch's own operator is wrong for what `renew` returned"


def _plain(found: object) -> object:
    return tuple(found) if isinstance(found, tuple) else found


def main(folder: str, *names: str) -> None:
    for name in names:
        try:
            for problem in problems_of(find_operator(name, folder)):
                print(problem)
        except KbtError as error:
            print(error)


if __name__ == "__main__":
    with torch.no_grad():
        main(*sys.argv[1:])
