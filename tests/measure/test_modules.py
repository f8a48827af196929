"""A module and a function that draws its inputs as an operator."""

import time
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn import Linear, Module

from kernels_bench_tools.measure.correctness.check import check
from kernels_bench_tools.measure.correctness.compare import compare
from kernels_bench_tools.measure.hf_benchmarks import their_tolerance
from kernels_bench_tools.measure.modules import ModuleProblem, run_module
from kernels_bench_tools.measure.operator import Workload
from kernels_bench_tools.records.record import Flag, Status

pytestmark = pytest.mark.usefixtures("few_input_sets", "few_samples")
WORKLOAD = Workload(name="x", axes={}, dtype="float32")


class Net(Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = Linear(8, 8)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return scale * self.linear(x)


class Renamed(Module):
    """Has the same weights under another name."""

    def __init__(self) -> None:
        super().__init__()
        self.own = Linear(8, 8)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return scale * self.own(x)


def _draw() -> list[object]:
    return [torch.rand(4, 8), 2.0]


@pytest.mark.parametrize("candidate", [Net, Renamed])
def test_a_candidate_has_the_reference_weights_of_its_seed(candidate: type[Module]) -> None:
    problem = ModuleProblem("net", Net, _draw, "cpu")
    operator = problem.operator()
    inputs = operator.inputs(WORKLOAD, "cpu", 7)
    prepared = problem.prepare(candidate)(*(inputs[number] for number in operator.parameters))
    given = dict(zip(operator.parameters, prepared, strict=True))
    called = problem.call(*(given.get(number, value) for number, value in enumerate(inputs)))
    torch.testing.assert_close(called, operator.reference(*inputs))


def test_weights_and_inputs_follow_from_the_seed() -> None:
    operator = ModuleProblem("net", Net, _draw, "cpu").operator()
    first, again, other = (operator.inputs(WORKLOAD, "cpu", seed)[:3] for seed in (1, 1, 2))
    assert all(map(torch.equal, first, again))
    assert not any(map(torch.equal, first, other))


def test_changes_are_drawn_as_inputs_are() -> None:
    operator = ModuleProblem("sorted", Net, lambda: [torch.rand(4, 8).sort().values], "cpu").operator()
    inputs = operator.inputs(WORKLOAD, "cpu", 0)
    assert operator.renew is not None
    renewed = operator.renew(inputs, torch.Generator().manual_seed(3))
    assert not torch.equal(renewed[0], inputs[0])
    assert bool((renewed[0].diff() >= 0).all())


def test_constant_inputs_change_too() -> None:
    operator = ModuleProblem("ones", Net, lambda: [torch.ones(4, 8)], "cpu").operator()
    first, other = (operator.inputs(WORKLOAD, "cpu", seed)[0] for seed in (1, 2))
    assert not torch.equal(first, other)
    torch.testing.assert_close(first, other, rtol=0.02, atol=0)


@pytest.mark.parametrize(
    ("candidate", "status"),
    [(lambda x, y: x + y, Status.OK), (lambda x, y: x - y, Status.INCORRECT)],
    ids=["right", "wrong"],
)
def test_run_module_takes_functions(tmp_path: Path, candidate: object, status: Status) -> None:
    def draw() -> list[Tensor]:
        return [torch.rand(16, 16), torch.rand(16, 16)]

    records = run_module(torch.add, candidate, draw, name="add", output=tmp_path / "r.jsonl", device="cpu")
    assert [record.outcome for record in records] == [Status.OK, status]


class Keeps(Net):
    """Returns what it has computed once, after a pause: few calls are timed."""

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        time.sleep(0.002)
        if not hasattr(self, "kept"):
            self.kept = super().forward(x, scale)
        return self.kept


def test_a_result_kept_for_each_set_of_inputs_is_stale_even_if_no_set_comes_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernels_bench_tools.measure.timing.caches.MAX_INPUT_SETS", 256)
    record = run_module(Net, Keeps, _draw, output=tmp_path / "r.jsonl", device="cpu")[-1]
    assert record.lat_ms is not None
    assert record.lat_ms.reps + record.lat_ms.warmup < record.lat_ms.input_sets
    assert (record.outcome, Flag.STALE_OUTPUT in record.flags) == (Status.REJECTED, True)


def test_a_single_number_may_be_rounded_otherwise(tmp_path: Path) -> None:
    def own(x: Tensor, target: Tensor) -> Tensor:
        return -torch.log_softmax(x, 1).gather(1, target[:, None]).mean()

    def draw() -> list[Tensor]:
        return [torch.rand(16, 10), torch.randint(0, 10, (16,))]

    reference = torch.nn.functional.cross_entropy
    records = run_module(reference, own, draw, output=tmp_path / "r.jsonl", device="cpu")
    assert [record.outcome for record in records] == [Status.OK, Status.OK]


def _norm(x: Tensor) -> Tensor:
    return x / torch.linalg.vector_norm(x)


def _from_the_end(x: Tensor) -> Tensor:
    return x / torch.linalg.vector_norm(x.view(-1).flip(0))


def _off(x: Tensor) -> Tensor:
    return 1.0003 * _norm(x)


@pytest.mark.parametrize("reference", [_norm, torch.linalg.vector_norm])
@pytest.mark.parametrize("seed", range(3))
def test_the_reference_is_right_however_long_its_sums_are(
    reference: Callable[..., Tensor], seed: int
) -> None:
    """Torch's norm of four million elements on a CPU is off by 700 eps of float32."""
    operator = ModuleProblem("norm", lambda: reference, lambda: [torch.randn(4, 2**20)], "cpu").operator()
    (workload,) = operator.workloads("problem")
    inputs = operator.made_inputs(workload, "cpu", seed)

    verdict = check(operator, workload, lambda x, *_: reference(x), inputs)

    assert verdict.ok, verdict.reason
    assert verdict.corr["error_over_allowed"] > 1


@pytest.mark.parametrize(("candidate", "right"), [(_from_the_end, True), (_off, False)])
def test_another_order_of_additions_is_right_and_another_factor_is_not(
    candidate: Callable[[Tensor], Tensor], right: bool
) -> None:
    operator = ModuleProblem("norm", lambda: _norm, lambda: [torch.randn(4, 2**20)], "cpu").operator()
    (workload,) = operator.workloads("problem")
    inputs = operator.made_inputs(workload, "cpu", 0)
    assert check(operator, workload, lambda x, *_: candidate(x), inputs).ok is right


@pytest.mark.parametrize(
    ("dtype", "size", "error", "right"),
    [
        (torch.float32, 1.0, 0.009, True),
        (torch.float32, 1e-4, 0.009, True),
        (torch.float32, 1e-4, 0.03, False),  # of the values' own size
        (torch.bfloat16, 1e-4, 0.1, True),  # rounding's own tolerance is larger
    ],
)
def test_the_tolerance_of_others_is_relative_to_the_size_of_small_outputs(
    dtype: torch.dtype, size: float, error: float, right: bool
) -> None:
    def scaled(x: Tensor) -> Tensor:
        return size * x

    def draw() -> list[Tensor]:
        return [torch.randn(64, 64, dtype=dtype)]

    operator = ModuleProblem("scaled", lambda: scaled, draw, "cpu", their_tolerance).operator()
    inputs = operator.made_inputs(*operator.workloads("problem"), "cpu", 0)
    compared = compare(scaled(inputs[0]) + error * size, operator, inputs)
    assert (compared.worst.found.beyond == 0) is right


@pytest.mark.parametrize(
    ("formula", "draw", "notes"),
    [
        (torch.relu, torch.rand, [Flag.NO_NEGATIVE]),
        (torch.relu, torch.randn, []),
        (lambda x: x.softmax(1).sum(1), torch.randn, [Flag.CONSTANT_OUTPUT]),  # but for its roundings
        (lambda x: (x / 8).sigmoid().mean(), torch.randn, []),  # by less than a thousandth
    ],
)
def test_what_makes_the_outputs_of_a_problem_say_little_is_noted(
    formula: Callable[[Tensor], Tensor], draw: Callable[..., Tensor], notes: list[Flag], tmp_path: Path
) -> None:
    def inputs() -> list[Tensor]:
        return [draw(128, 512)]

    records = run_module(formula, formula, inputs, name="own", output=tmp_path / "r.jsonl", device="cpu")
    both = [Flag.NO_NEGATIVE, Flag.CONSTANT_OUTPUT]
    assert [[flag for flag in both if flag in record.flags] for record in records] == [notes, notes]
