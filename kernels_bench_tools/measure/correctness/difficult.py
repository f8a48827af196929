"""Difficult values at full size: rows of a workload's inputs, each of which is that of an edge case drawn by the judge.

Kernels choose their code by size, so that what is right for the smaller version of a workload says little about the workload.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from kernels_bench_tools.measure.operator import Inputs, Operator, Workload


def difficult_groups(operator: Operator, workload: Workload, ordinary: Inputs) -> list[list[Inputs]]:
    """Return inputs that have a workload's shapes: the ordinary ones with edge cases, then others that no row may be mixed with.

    Those have other parameters or numbers, such as another eps. An edge case with other integers, which may say where something
    begins, is not used.
    """
    groups = [[ordinary]]
    for _, case in operator.each("edge_cases", operator.edge_cases, workload, ordinary):
        if not _fits(case, ordinary):
            continue
        for group in groups:
            if _mixes(operator, case, group[0]):
                group.append(case)
                break
        else:
            groups.append([case])
    return groups


def mixed(group: Sequence[Inputs], seed: int) -> Inputs:
    """Return inputs whose rows are drawn from a group; rows that belong together, such as logits and their class, are of one."""
    generator = torch.Generator().manual_seed(seed)
    found = list(group[0])
    for used, case in enumerate(group[1:], start=2):
        drawn: dict[tuple[int, ...], Tensor] = {}
        for number, (own, other) in enumerate(zip(found, case, strict=True)):
            if not isinstance(own, Tensor) or (own is other and own is group[0][number]):
                continue
            rows = _rows(own, group[0])
            if rows not in drawn:  # each case is as frequent as any other
                drawn[rows] = (torch.rand(rows, generator=generator) * used < 1).to(own.device)
            chosen = drawn[rows] if own.shape == rows else drawn[rows][..., None]
            found[number] = torch.where(chosen, other, own)
    return tuple(one.contiguous() if isinstance(one, Tensor) else one for one in found)


def _mixes(operator: Operator, case: Inputs, first: Inputs) -> bool:
    if len(case) != len(first):
        return False
    for number, (one, other) in enumerate(zip(case, first, strict=True)):
        if isinstance(one, Tensor) and number not in operator.parameters:
            continue
        if one is other or (isinstance(one, Tensor) and torch.equal(one, other)):
            continue
        if isinstance(one, Tensor) or one != other:
            return False
    return True


def _rows(value: Tensor, inputs: Sequence[Any]) -> tuple[int, ...]:
    """Return the shape of what is drawn for a tensor: of its rows, or of its elements if these belong to another one's rows."""
    shapes = {tuple(one.shape[:-1]) for one in inputs if isinstance(one, Tensor) and one.dim() > 1}
    shape = tuple(value.shape)
    return shape if shape in shapes else shape[:-1]


def _fits(case: Inputs, ordinary: Inputs) -> bool:
    """Return whether rows of a case can take the place of ordinary ones."""
    if len(case) < len(ordinary) or any(isinstance(one, Tensor) for one in case[len(ordinary) :]):
        return False
    for own, other in zip(ordinary, case, strict=False):
        if isinstance(own, Tensor) != isinstance(other, Tensor):
            return False
        if not isinstance(own, Tensor) or own is other:
            continue
        if own.shape != other.shape or own.dtype != other.dtype:
            return False
        fixed = not (own.is_floating_point() or own.is_complex()) and tuple(own.shape) != _rows(own, ordinary)
        if fixed and not torch.equal(own, other):
            return False
    return True
