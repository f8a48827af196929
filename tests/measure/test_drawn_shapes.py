"""Workload sets that are drawn: legal shapes of every operator, the same in every process."""

import pytest

from kernels_bench_tools.errors import OperatorError
from kernels_bench_tools.measure.drawn_sets import with_drawn_sets
from kernels_bench_tools.measure.operator import Operator, Workload, built_in_modules, find_operator

NAMES = [*built_in_modules()]
FIXED = "causal_lm"
"""All of its sizes are those of a model."""


def drawn(operator: Operator, name: str, device: str = "cpu") -> list[Workload]:
    return with_drawn_sets(operator, name, device).workloads(name)


@pytest.mark.parametrize("name", [name for name in NAMES if name != FIXED])
def test_every_operator_has_inputs_for_its_drawn_shapes_which_are_in_no_table(name: str) -> None:
    operator = find_operator(name)
    table = [one.axes for sets in operator.workload_sets.values() for one in sets]

    found = drawn(operator, "random:6:3")

    assert found == drawn(operator, "random:6:3")
    assert len({one.name for one in found}) == len(found) >= 3
    for one in found:
        assert one.axes not in table
        operator.for_workload(one).made_inputs(one, "cpu", 0)
        for axis, step in operator.multiples.items():
            if isinstance(size := one.axes[axis], int) and step:
                assert size % step == 0


def test_sizes_that_depend_on_each_other_fit_also_where_only_smaller_ones_are_made() -> None:
    operator = find_operator("kv_store")

    found = drawn(operator, "random:20:1", "cuda")

    assert len(found) == 20
    assert len({one.axes["tokens"] for one in found}) > 10
    for axes in (one.axes for one in found):
        assert axes["tokens"] % axes["sequences"] == 0
        slots = axes["blocks"] // axes["sequences"] * axes["block_size"]
        assert axes["tokens"] // axes["sequences"] <= slots


def test_another_seed_draws_other_shapes_and_a_smaller_count_the_first_of_them() -> None:
    operator = find_operator("rms_norm")
    first, few, other = (
        [one.name for one in drawn(operator, name)] for name in ("random:6:1", "random:2:1", "random:6:2")
    )

    assert first[:2] == few
    assert not {*first} & {*other}
    assert {one.group for one in drawn(operator, "random:6:1")} == {"RMSNorm", "RMSNorm with residual"}


def test_sizes_are_those_of_the_devices_sets_or_of_a_named_one() -> None:
    operator = find_operator("layer_norm")

    widest = {
        name: max(one.axes["hidden_dim"] for one in drawn(operator, name, device))
        for name, device in (("random:20:1", "cuda"), ("random:20:1:cpu", "cuda"))
    }

    assert widest["random:20:1:cpu"] <= 1024 < widest["random:20:1"]


def test_only_operators_with_sizes_to_draw_have_such_a_set() -> None:
    assert find_operator("rms_norm").own_sets(["random:2:1"]) == "random:2:1"
    assert find_operator(FIXED).own_sets(["random:2:1", "smoke"]) == "smoke"


@pytest.mark.parametrize(
    "name", ["random:few:1", "random:3", "random:0:1", "random:99999:1", "random:3:1:nosuch"]
)
def test_a_set_that_is_not_drawn_is_named(name: str) -> None:
    with pytest.raises(OperatorError, match=r"random:COUNT:SEED|nosuch"):
        drawn(find_operator("rms_norm"), name)
