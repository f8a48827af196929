"""Operators of kinds that this package has none of: right implementations are accepted, wrong ones refused for their reason."""

import re
import sys
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from implementations import attempt
from torch import Tensor
from torch.nn import Linear, functional

from kernels_bench_tools.measure import inputs as helpers
from kernels_bench_tools.measure.correctness.check import check
from kernels_bench_tools.measure.correctness.compare import compare
from kernels_bench_tools.measure.inputs import same_choice
from kernels_bench_tools.measure.judge.candidate import TimedCalls
from kernels_bench_tools.measure.judge.guard import Guard
from kernels_bench_tools.measure.modes import in_mode, timed_function
from kernels_bench_tools.measure.operator import Inputs, Operator, Output, Tolerance, Workload
from kernels_bench_tools.records.record import REJECTING, Flag, Status

WORKLOAD = Workload(name="smoke", axes={"n": 1}, dtype="float32")
OFF, UNLIKE, RANDOM = (
    "off by up to",
    "says the operator's `accept`",
    "other values for 'out' when it was called again",
)


def normal(*shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Callable[..., Inputs]:
    def inputs(_: Workload, device: str, seed: int) -> Inputs:
        generator = torch.Generator(device).manual_seed(seed)
        return tuple(torch.randn(shape, generator=generator, dtype=dtype) for shape in shapes)

    return inputs


def with_integers(shape: tuple[int, ...], below: int, *others: tuple[int, ...]) -> Callable[..., Inputs]:
    """Return integers below a limit first, then normal values."""

    def inputs(workload: Workload, device: str, seed: int) -> Inputs:
        generator = torch.Generator(device).manual_seed(seed)
        return torch.randint(below, shape, generator=generator), *normal(*others)(workload, device, seed)

    return inputs


def operator(
    inputs: Callable[..., Inputs], reference: Callable[..., Any], *outputs: Output, **fields: Any
) -> Operator:
    return Operator(
        name="own",
        title="Own",
        axes=("n",),
        workload_sets={"smoke": [WORKLOAD]},
        inputs=inputs,
        reference=reference,
        flops=lambda _: 1,
        outputs=outputs or (Output(),),
        **{"baseline": reference, **fields},
    )


def complexes(workload: Workload, device: str, seed: int) -> Inputs:
    return tuple(map(torch.view_as_complex, normal((32, 16, 2), (32, 16, 2))(workload, device, seed)))


def far_from_zero(workload: Workload, device: str, seed: int) -> Inputs:
    (x,) = normal((32, 64), dtype=torch.float64)(workload, device, seed)
    return (x + 1e6,)


def spd(workload: Workload, device: str, seed: int) -> Inputs:
    (a,) = normal((8, 6, 6))(workload, device, seed)
    return (a @ a.mT + torch.eye(6),)


def csr(workload: Workload, device: str, seed: int) -> Inputs:
    lengths, values, x = with_integers((20,), 7, (200,), (50,))(workload, device, seed)
    ends = lengths.cumsum(0)
    columns = torch.randint(50, (200,), generator=torch.Generator().manual_seed(seed))
    return torch.cat((ends[:1] * 0, ends)), columns[: ends[-1]], values[: ends[-1]], x


def csr_product(starts: Tensor, columns: Tensor, values: Tensor, x: Tensor) -> Tensor:
    rows = torch.repeat_interleave(torch.arange(len(starts) - 1), starts.diff())
    return torch.zeros(len(starts) - 1, dtype=values.dtype).index_add(0, rows, values * x[columns])


def adamw(
    p: Tensor, g: Tensor, m: Tensor, v: Tensor, step: int, decay: float = 0.1, beta: float = 0.9
) -> Any:
    m.lerp_(g, 1 - beta)
    v.mul_(0.99).addcmul_(g, g, value=0.01)
    p.mul_(1 - 0.01 * decay)
    p.sub_(0.01 * (m / (1 - beta**step)) / ((v / (1 - 0.99**step)).sqrt() + 1e-8))
    return p, m, v


def adamw_of_copies(*given: Any) -> Any:
    return adamw(*(value.clone() if isinstance(value, Tensor) else value for value in given))


def pack(x: Tensor) -> Tensor:
    codes = ((2 * x).round().clamp(-8, 7) + 8).to(torch.uint8)
    return codes[:, ::2] | codes[:, 1::2] << 4


def unpack(packed: Tensor, scale: Tensor, zero: int = 8) -> Tensor:
    codes = torch.stack((packed & 15, packed >> 4), -1).flatten(-2)
    return (codes.to(scale.dtype) - zero) * scale


def dropout(x: Tensor, seed: int, scale: float = 2.0) -> Tensor:
    return x * (torch.rand(x.shape, generator=torch.Generator().manual_seed(seed)) < 0.5) * scale


def is_dropout(inputs: Inputs, outputs: tuple[Tensor, ...], _: Any) -> bool:
    kept = outputs[0] != 0
    share = float(kept.double().mean())
    return abs(share - 0.7) < 0.05 and bool(((outputs[0] * 0.7 - inputs[0]).abs() <= 1e-5)[kept].all())


def counts(x: Tensor, bins: int = 8) -> Tensor:
    return torch.bincount(((x + 3) / 0.75).floor().clamp(0, 7).long().flatten(), minlength=8)[:bins]


def softmax(x: Tensor, mask: Tensor) -> Tensor:
    return x.masked_fill(~mask, float("-inf")).softmax(-1)


def masked(workload: Workload, device: str, seed: int) -> Inputs:
    x, y = normal((16, 32), (16, 32))(workload, device, seed)
    mask = y > 0
    mask[:, 0] = True
    return x, mask


def permuted(workload: Workload, device: str, seed: int) -> Inputs:
    (x,) = normal((40, 8))(workload, device, seed)
    return torch.randperm(40, generator=torch.Generator(device).manual_seed(seed)), x


def chosen(position: int) -> Callable[..., Tensor]:
    return lambda inputs, outputs, expected: same_choice(inputs[0], outputs[position], expected[position])


def topk_last(x: Tensor) -> tuple[Tensor, Tensor]:
    """The largest, the last of those that tie."""
    values, indices = x.flip(-1).topk(4)
    return values, x.shape[-1] - 1 - indices


def int8(*shapes: tuple[int, ...]) -> Callable[..., Inputs]:
    return lambda w, d, s: tuple((20 * x).round().to(torch.int8) for x in normal(*shapes)(w, d, s))


TIED = normal((32, 128), dtype=torch.bfloat16)
INDICES = Output("indices", dtype="int64", accept=chosen(0))
TOPK = (Output("values"), Output("indices", dtype="int64", accept=chosen(1)))
P, M, V = Output("p"), Output("m"), Output("v")
X, ROWS = normal((32, 64)), with_integers((40,), 20, (20, 8))
SEEDED = lambda w, d, s: (*X(w, d, s), 7)  # noqa: E731
STEP = lambda w, d, s: (*(x.abs() for x in normal(*[(50,)] * 4)(w, d, s)), 3)  # noqa: E731
COMPLEX = Output(dtype="complex64")
SCATTER = lambda index, src, base: base.index_add(0, index, src)  # noqa: E731
BACKWARD = operator(X, functional.silu, gradients=(0,))

# Name: the operator; what is right; two that are wrong; why both are, or each, if not by values that are off.
KINDS: dict[str, tuple[Any, ...]] = {
    "top-k": (
        operator(TIED, lambda x: tuple(x.topk(4)), *TOPK),
        topk_last,
        lambda x: (x.topk(4)[0], torch.zeros(32, 4, dtype=torch.int64)),
        lambda x: tuple(x.topk(4, largest=False)),
        "'indices' is wrong",
        "'values' is off",
    ),
    "argsort": (
        operator(TIED, lambda x: x.argsort(-1), INDICES),
        lambda x: 127 - x.flip(-1).argsort(-1),
        lambda x: x.argsort(-1).roll(1, -1),
        lambda x: x.argsort(-1).clamp(max=126),
        UNLIKE,
    ),
    "argmax": (
        operator(TIED, lambda x: x.argmax(-1), INDICES),
        lambda x: topk_last(x)[1][:, 0].contiguous(),
        lambda x: torch.zeros(32, dtype=torch.int64),
        lambda x: x.argmax(-1) + 128,
        UNLIKE,
    ),
    "scan": (
        operator(X, lambda x: x.cumsum(-1)),
        lambda x: x.double().cumsum(-1).float(),
        lambda x: x.cumsum(-1) - x,
        lambda x: x.view(64, 32).cumsum(-1).view(32, 64),
    ),
    "AdamW in place": (
        operator(STEP, adamw_of_copies, P, M, V).adapted(in_place=True),
        adamw,
        lambda *given: adamw(*given, decay=0.0),
        lambda p, g, m, v, step: (*adamw(p, g, m, v, step)[:2], v.mul_(0.99)),
        "'p' is off",
        "'v' is off",
    ),
    "int4 pack": (
        operator(X, pack, Output(dtype="uint8")),
        lambda x: pack(x.double()),
        lambda x: pack(x.view(32, 32, 2).flip(-1).view(32, 64)),
        lambda x: pack(x + 0.25),
    ),
    "int4 dequantize": (
        operator(lambda w, d, s: (pack(*X(w, d, s)), torch.tensor(0.3)), unpack, Output(dtype="scale")),
        lambda packed, scale: unpack(packed, scale),
        lambda packed, scale: unpack(packed, scale, zero=0),
        lambda packed, scale: unpack(packed, scale.half()),
        OFF,
        "dtype is torch.float16",
    ),
    "int8 matmul": (
        operator(int8((16, 32), (32, 16)), lambda a, b: a.long() @ b.long(), Output(dtype="int32")),
        lambda a, b: a.int() @ b.int(),
        lambda a, b: (a @ b).int(),
        lambda a, b: (a.bfloat16() @ b.bfloat16()).int(),
    ),
    "dropout with a seed": (
        operator(SEEDED, dropout),
        lambda x, seed: 2 * dropout(x, seed, 1.0),
        lambda x, seed: torch.zeros_like(x),
        lambda x, seed: dropout(x, seed + 1),
    ),
    "dropout without a seed": (
        operator(X, lambda x: functional.dropout(x, 0.3)),
        lambda x: x,
        torch.zeros_like,
        lambda x: functional.dropout(x, 0.3),
        RANDOM,
    ),
    "dropout with a predicate": (
        operator(X, lambda x: functional.dropout(x, 0.3), Output(accept=is_dropout)),
        lambda x: x * (torch.rand_like(x) < 0.7) / 0.7,
        torch.zeros_like,
        lambda x: functional.dropout(x, 0.3) * 0.7,
        UNLIKE,
    ),
    "inverse": (
        operator(spd, torch.linalg.inv),
        lambda a: torch.linalg.solve(a, torch.eye(6).expand(8, 6, 6)),
        lambda a: a.clone(),
        lambda a: torch.diag_embed(1 / a.diagonal(dim1=-2, dim2=-1)),
    ),
    "unique": (
        operator(with_integers((300,), 50), torch.unique, Output(dtype="int64")),
        lambda x: torch.tensor(sorted(set(x.tolist()))),
        lambda x: torch.unique(x).flip(0),
        lambda x: torch.unique(x)[:-1],
        OFF,
        "returned shape",
    ),
    "rfft": (
        operator(X, torch.fft.rfft, COMPLEX),
        lambda x: torch.fft.fft(x)[..., :33].contiguous(),
        lambda x: torch.fft.rfft(x).conj().resolve_conj(),
        lambda x: torch.fft.rfft(x).real + 0j,
    ),
    "complex product": (
        operator(complexes, lambda a, b: a * b),
        lambda a, b: torch.complex(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real),
        lambda a, b: (a * b).real + 0j,
        lambda a, b: a * b.conj(),
    ),
    "gather with integers first": (
        operator(ROWS, lambda ids, x: x[ids], Output(dtype="x")),
        lambda ids, x: x.index_select(0, ids),
        lambda ids, x: x[(ids + 1) % 20],
        lambda ids, x: x[ids].half().float(),
    ),
    "scatter_add": (
        operator(with_integers((40,), 20, (40, 8), (20, 8)), SCATTER, Output(dtype="src")),
        lambda i, src, base: base.clone().scatter_add_(0, i[:, None].expand(40, 8), src),
        lambda i, src, base: base.index_copy(0, i, src),
        lambda i, src, base: SCATTER(i, src, 0 * base),
    ),
    "CSR matvec": (
        operator(csr, csr_product, Output(dtype="values")),
        lambda *csr: csr_product(*csr[:2], csr[2].double(), csr[3]).float(),
        lambda starts, columns, values, x: csr_product(starts, columns.roll(1), values, x),
        lambda starts, columns, values, x: csr_product(starts, columns, values.abs(), x),
    ),
    "permutation": (
        operator(permuted, lambda order, x: x[order], Output(dtype="x")),
        lambda order, x: torch.empty_like(x).index_copy(0, order.argsort(), x),
        lambda order, x: x[order.argsort()],
        lambda order, x: x.clone(),
    ),
    "masked softmax": (
        operator(masked, softmax),
        lambda x, mask: x.exp() * mask / (x.exp() * mask).sum(-1, keepdim=True),
        lambda x, mask: x.softmax(-1),
        lambda x, mask: x.softmax(-1) * mask,
    ),
    "booleans in a batch": (
        operator(int8((4, 8, 16), (4, 8, 16)), lambda a, b: a > b, Output(dtype="bool")),
        lambda a, b: b < a,
        lambda a, b: a >= b,
        lambda a, b: (a > b).int(),
        OFF,
        "dtype is torch.int32",
    ),
    "histogram": (
        operator(X, counts, Output(dtype="int64", slack=1)),
        lambda x: torch.histc(x.clamp(-3, 2.99), 8, -3, 3).long(),
        lambda x: counts(x * 1.01) + 2,
        lambda x: counts(x, 7),
        OFF,
        "returned shape",
    ),
    "several outputs": (
        operator(X, lambda x: torch.var_mean(x, -1), Output("variance"), Output("mean")),
        lambda x: tuple(torch.stack(torch.var_mean(x.double(), -1)).float()),
        lambda x: torch.var_mean(x, -1, correction=0),
        lambda x: x.var(-1),
        "'variance' is off",
        "it returned 1 output, expected 2",
    ),
    "subnormals": (
        operator(lambda w, d, s: (1e-39 * X(w, d, s)[0],), lambda x: x * 2),
        lambda x: x + x,
        torch.zeros_like,
        lambda x: x * 3,
    ),
    "overflow": (
        operator(normal((32, 64), dtype=torch.float16), lambda x: (x * 300) ** 2),
        lambda x: ((x.float() * 300) ** 2).half(),
        lambda x: ((x * 300) ** 2).clamp(max=65504),
        lambda x: torch.zeros_like(x),
        "NaN or infinity",
    ),
    "logarithm": (
        operator(X, torch.log),
        lambda x: x.double().log().float(),
        lambda x: x.abs().log(),
        lambda x: x.log().nan_to_num(0.0),
        "NaN or infinity",
    ),
    "double precision": (
        operator(normal((32, 64), (64, 16), dtype=torch.float64), lambda a, b: a @ b),
        lambda a, b: (b.mT @ a.mT).mT.contiguous(),
        lambda a, b: (a.float() @ b.float()).double(),
        lambda a, b: a @ b.float().double(),
    ),
    "double precision, of which the result has less": (
        operator(far_from_zero, lambda x: x - x.mean(-1, keepdim=True)),
        lambda x: x - x.flip(-1).cumsum(-1)[:, -1:] / 64,
        lambda x: (x.float() - x.float().mean(-1, keepdim=True)).double(),
        lambda x: x - x.float().mean(-1, keepdim=True),
    ),
    "named tuple": (
        operator(X, torch.frexp, Output("mantissa"), Output("exponent", dtype="int32")),
        torch.frexp,
        lambda x: tuple(torch.frexp(x))[::-1],
        lambda x: (torch.frexp(x).mantissa, torch.frexp(x).exponent + 1),
        "its output 'mantissa': its dtype is torch.int32",
        "'exponent' is off",
    ),
    "backward": (
        in_mode(BACKWARD, "fwd_bwd"),
        timed_function(BACKWARD, lambda x: x * x.sigmoid(), "fwd_bwd").call,
        timed_function(BACKWARD, lambda x: x.detach() * x.sigmoid(), "fwd_bwd").call,
        timed_function(BACKWARD, lambda x: x.relu(), "fwd_bwd").call,
        "'gradient of input 1' is off",
        "'out' is off",
    ),
}


@pytest.mark.parametrize("kind", KINDS)
def test_what_is_right_is_accepted_and_what_is_wrong_refused_for_its_reason(kind: str) -> None:
    of, right, first, second, *reasons = KINDS[kind]
    inputs = of.inputs(WORKLOAD, "cpu", 0)

    verdict = check(of, WORKLOAD, right, inputs)
    if kind != "dropout without a seed":
        assert verdict.ok, verdict.reason
        assert not verdict.flags
    for function, reason in zip((first, second), 2 * (reasons or [OFF]), strict=False):
        verdict = check(of, WORKLOAD, function, inputs)
        assert not verdict.ok
        assert reason in verdict.reason


@pytest.mark.usefixtures("few_input_sets", "few_samples")
@pytest.mark.parametrize("kind", sorted(KINDS.keys() - {"dropout without a seed", "backward"}))
def test_what_is_right_is_right_in_timed_calls(kind: str) -> None:
    of, right, *_ = KINDS[kind]

    trial = attempt(of, right)

    assert trial.status in (Status.OK, Status.EXCEEDS_PHYSICS), trial.failure
    assert not {*trial.flags} & REJECTING


@pytest.mark.parametrize(("error", "right"), [(1e-7, True), (1e-5, False)])
def test_an_element_that_no_rounded_input_changes_may_have_roundings_of_others(
    error: float, right: bool
) -> None:
    own = operator(normal((64,)), lambda x: 2 * x * (x > -1), tolerance=lambda _: Tolerance(1e-7, 1e-12))
    (x,) = normal((64,))(WORKLOAD, "cpu", 0)

    found = compare(2 * x * (x > -1) + error * (x <= -1), own, (x,)).worst.found

    assert (found.beyond == 0) == right


def test_one_of_two_outputs_in_the_memory_of_one_of_the_last_four_is_detected() -> None:
    of, right, *_ = KINDS["several outputs"]
    kept = deque(torch.empty(32) for _ in range(4))

    def rotating(x: Tensor) -> tuple[Tensor, Tensor]:
        kept.rotate()
        variance, mean = right(x)
        return variance, kept[0].copy_(mean)

    assert Guard("cpu").inspect(of, rotating, of.inputs(WORKLOAD, "cpu", 0)) == [Flag.ALIASED_OUTPUT]


def one_spd(workload: Workload, device: str, seed: int) -> Inputs:
    return (spd(workload, device, seed)[0][0],)


def keys(workload: Workload, device: str, seed: int) -> Inputs:
    (keys, wanted) = normal((500,), (200,))(workload, device, seed)
    return keys.sort().values, wanted


def bisected(keys: Tensor, wanted: Tensor) -> Tensor:
    return (keys < wanted[:, None]).sum(-1)


def new_keys(inputs: Inputs, generator: torch.Generator) -> Inputs:
    return torch.randn(500, generator=generator).sort().values, torch.randn(200, generator=generator)


@pytest.mark.usefixtures("few_input_sets", "few_samples")
def test_inputs_with_a_structure_are_renewed_or_to_blame() -> None:
    one = operator(one_spd, torch.linalg.cholesky)
    search = operator(keys, torch.searchsorted, Output(dtype="int64", shape=lambda i: i[1].shape))

    blamed = attempt(one, torch.linalg.cholesky)
    assert blamed.status is Status.ERROR
    assert all(word in blamed.failure.msg for word in ("operator own", "to blame", "`renew`", "`fixed`"))
    renewed = replace(
        one, renew=lambda inputs, generator: (inputs[0] * (1 + torch.rand(1, generator=generator)),)
    )
    assert attempt(renewed, torch.linalg.cholesky).status is Status.OK
    assert attempt(search, bisected).status is Status.REJECTED
    assert attempt(replace(search, renew=new_keys), bisected).status is Status.OK


@pytest.mark.usefixtures("few_input_sets", "few_samples")
@pytest.mark.parametrize(
    "of", [replace(BACKWARD, renew=lambda i, g: (torch.randn(32, 64, generator=g),)), KINDS["inverse"][0]]
)
def test_a_result_that_is_kept_is_found_where_inputs_are_renewed_or_entries_change_places(
    of: Operator,
) -> None:
    kept: list[Tensor] = []

    def keeping(x: Tensor) -> Tensor:
        if sys._getframe(1).f_code is not TimedCalls.clocked.__code__:
            kept[:] = [of.reference(x)]
        return kept[0].clone()

    assert attempt(of, keeping).status is not Status.OK


MISTAKES = {
    "`reference` raised RuntimeError": operator(X, lambda x: x @ x),
    "`inputs` returned a float first": operator(lambda *given: (0.5, *X(*given)), lambda half, x: half * x),
    "`inputs` returned a list as input 2": operator(lambda *given: (*X(*given), [1]), lambda x, _: x),
    "`inputs` returned a Linear as input 2": operator(
        lambda *given: (*X(*given), Linear(64, 64)), lambda x, f: f(x)
    ),
    "`inputs` returned nothing": operator(lambda *_: (), lambda: torch.zeros(1)),
    "`inputs` returned a Tensor": operator(lambda *given: X(*given)[0], lambda x: x),
    "`slices` raised IndexError": operator(X, lambda x: x, slices=lambda inputs: [(0, (inputs[1][0],))]),
    "its reference returned float": operator(X, lambda x: float(x.sum())),
    "its reference returned 2 outputs": operator(X, lambda x: torch.var_mean(x, -1)),
    "has the dtype 'y' for its output": operator(X, lambda x: x, Output(dtype="y")),
    "`accept` of 'out' refuses": operator(X, lambda x: x, Output(accept=lambda *_: False)),
}


@pytest.mark.usefixtures("few_input_sets", "few_samples")
@pytest.mark.parametrize("said", MISTAKES)
def test_a_mistake_of_an_operator_is_an_error_of_its_module_with_its_line(said: str) -> None:
    trial = attempt(MISTAKES[said], lambda *given: given[0].clone())

    assert trial.status is Status.ERROR
    assert trial.failure.type == "OperatorError"
    assert said in trial.failure.msg
    if said.startswith("`") and "accept" not in said:
        assert f"{Path(__file__).name}:" in trial.failure.msg


@pytest.mark.usefixtures("few_input_sets", "few_samples")
def test_the_examples_of_the_documentation_are_operators() -> None:
    text = (Path(__file__).parents[2] / "docs/own-repository.md").read_text(encoding="utf-8")
    names = {
        "torch": torch,
        "Operator": Operator,
        "Output": Output,
        "helpers": helpers,
        "normal": normal,
        "fields": {
            "name": "own",
            "title": "Own",
            "axes": ("n",),
            "flops": lambda _: 1,
            "workload_sets": {"smoke": [WORKLOAD]},
        },
    }
    (examples,) = [
        code for code in re.findall(r"```python\n(.*?)```", text, re.S) if "# Several outputs" in code
    ]
    exec(examples, names)
    found = {name: value for name, value in names.items() if isinstance(value, Operator)}

    assert len(found) == 8
    for name, of in found.items():
        convert = {"codes": lambda x: x.to(torch.int8), "top_k": tuple}.get(name, lambda x: x)
        trial = attempt(of, lambda *given, of=of, convert=convert: convert(of.reference(*given)))
        assert trial.status in (Status.OK, Status.EXCEEDS_PHYSICS), (name, trial.failure)
    fields = set(Operator.__dataclass_fields__) | set(Output.__dataclass_fields__)
    assert not {field for field in fields if not re.search(rf"`[^`]*\b{field}\b[^`]*`", text)}


ZERO, ONE = (lambda x: x - x), (lambda x: x - x + 1)


@pytest.mark.parametrize(
    ("formula", "outputs", "tolerance", "flagged"),
    [
        (ZERO, (Output(),), 1e-3, True),
        (lambda x: x * 1e-4, (Output(),), 1e-3, True),  # within a tolerance that is not relative to it
        (lambda x: x, (Output(),), 1e-3, False),
        (lambda x: (x - x, x - x), (Output("a"), Output("b")), 1e-3, True),
        (lambda x: (x - x, x - x + 1), (Output("a"), Output("b")), 1e-3, False),
        (ZERO, (Output(accept=lambda _, found, __: found[0] <= 0),), 1e-3, True),
        (ONE, (Output(accept=lambda _, found, __: found[0] > 0),), 1e-3, False),
    ],
)
def test_a_result_is_marked_if_zeros_would_be_correct(
    formula: Callable[..., Any], outputs: tuple[Output, ...], tolerance: float, flagged: bool
) -> None:
    own = operator(normal((16, 8)), formula, *outputs, tolerance=lambda _: Tolerance(tolerance, tolerance))

    verdict = check(own, WORKLOAD, formula, own.inputs(WORKLOAD, "cpu", 0))

    assert verdict.ok, verdict.reason
    assert (Flag.ZEROS_PASS in verdict.flags) is flagged
