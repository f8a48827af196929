"""Implementations in place of modules of models: what is replaced, refused, compared and predicted."""

import itertools
import time
from collections import Counter
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from changed_models import LAYERS, NORMS, request
from implementations import function_of
from torch import Tensor
from torch.nn import functional

from kernels_bench_tools.measure.operator import find_operator
from kernels_bench_tools.measure.task import Task
from kernels_bench_tools.models import phase
from kernels_bench_tools.models.baseline.L1 import SiluAndMul
from kernels_bench_tools.models.effect import measure_effect
from kernels_bench_tools.models.forward_pass import random_model
from kernels_bench_tools.models.phase import fastest, without_drift
from kernels_bench_tools.models.replacement import ReplacementError, Substitute, replace
from kernels_bench_tools.operators import flash_attn, mlp, moe, paged_attention, rotary
from kernels_bench_tools.records.codec import read_records
from kernels_bench_tools.records.model import CONFIGS
from kernels_bench_tools.records.outcome import reason_of
from kernels_bench_tools.records.record import Effect, Record, Status, Timer
from kernels_bench_tools.records.request import TRANSFORMERS, CellContext, EffectRequest, Request

pytestmark = pytest.mark.usefixtures("few_samples")
SLOWER_SECONDS = 0.01

Function = Callable[..., Any]

without_transformers = pytest.mark.skipif(find_spec("transformers") is None, reason="needs transformers")
HALF = {"dtype": "bfloat16"}


def transformers_only(test: Function) -> Function:
    """Mark a test of transformers, which warns of much that is not ours."""
    return pytest.mark.filterwarnings("ignore")(without_transformers(test))


def rms_norm(x: Tensor, weight: Tensor, residual: Tensor | None = None, eps: float = 1e-6) -> Any:
    hidden = x if residual is None else x + residual
    normalized = functional.rms_norm(hidden, x.shape[-1:], weight, eps)
    return normalized if residual is None else (normalized, hidden)


def gated(x: Tensor, gate: Tensor, weight: Tensor, eps: float) -> Tensor:
    return rms_norm(x, weight, None, eps) * functional.silu(gate)


def swiglu(gate: Tensor, up: Tensor) -> Tensor:
    return functional.silu(gate) * up


def swiglu_halves(x: Tensor) -> Tensor:
    return swiglu(*x.chunk(2, -1))


def substitute(
    operator: str, function: Function, prepare: Function | None = None, device: str = "cpu", **options: Any
) -> Substitute:
    found = find_operator(operator)
    given = {"workloads": ",".join(found.workload_sets), "implementation": "mine", "file": "records.jsonl"}
    return Substitute(Task(operator=operator, device=device, **given, **options), found, function, prepare)


def measured(
    operator: str,
    function: Function,
    *phases: str,
    kind: str = "llama",
    framework: str = "",
    dtype: str = "float32",
    **options: Any,
) -> list[Record]:
    asked = request(kind, *phases, framework=framework, dtype=dtype)
    Path("records.jsonl").unlink(missing_ok=True)
    found = measure_effect(
        [substitute(operator, function, **options)],
        CellContext(request=Request(effect=asked)),
        lambda _: None,
    )
    written = read_records(Path("records.jsonl"))
    assert [(one.wl, one.status) for one in written] == [(one.wl, one.status) for one in found]
    return found


def effect_of(records: list[Record], level: int) -> Effect:
    return next(one.effect for one in records if one.effect is not None and one.effect.level == level)


@pytest.mark.parametrize(
    ("operators", "options", "message"),
    [
        (["rms_norm", "rms_norm"], {}, "rms_norm is replaced twice"),
        (["layer_norm"], {}, "no module of a model calls layer_norm, only rms_norm"),
        (
            ["activation"],
            {"only": {"function": "gelu"}},
            r"computes GELU \(erf\), but SiluAndMul needs SwiGLU",
        ),
    ],
)
def test_what_a_model_does_not_call_is_refused_by_name(
    operators: list[str], options: dict[str, Any], message: str
) -> None:
    given = [substitute(operator, rms_norm, **options) for operator in operators]

    with pytest.raises(ReplacementError, match=message):
        replace(random_model(request(framework=""), "cpu"), given)


@pytest.mark.parametrize("framework", ["", TRANSFORMERS])
def test_what_cannot_be_replaced_is_refused_before_810_gb_of_weights_are_made(framework: str) -> None:
    config = msgspec.json.decode((CONFIGS / "llama-3.1-405b.json").read_bytes())
    asked = EffectRequest(model="llama-3.1-405b", config=config, phases=["prefill-8"], framework=framework)
    context = CellContext(implementation="mine", request=Request(effect=asked))

    [record] = measure_effect([substitute("layer_norm", rms_norm)], context, lambda _: None)

    assert "no module of a model calls layer_norm" in reason_of(record)


@pytest.mark.parametrize(
    ("operator", "function", "kind", "phase", "level", "module", "calls"),
    [
        ("rms_norm", rms_norm, "llama", "prefill-8", 1, "RMSNorm", 1),
        ("activation", swiglu_halves, "llama", "prefill-8", 1, "SiluAndMul", LAYERS),
        ("flash_attn", flash_attn.reference, "llama", "prefill-8", 1, "FlashAttnPrefill", LAYERS),
        ("paged_attention", paged_attention.torch_paged, "llama", "decode-2", 1, "FlashAttnDecode", LAYERS),
        ("mlp", mlp.reference, "llama", "prefill-8", 2, "LlamaMLP", LAYERS),
        ("moe", moe.torch_moe, "mixtral", "prefill-8", 2, "FusedMoE", LAYERS),
    ],
)
def test_every_level_is_measured_with_equal_logits(
    operator: str, function: Function, kind: str, phase: str, level: int, module: str, calls: int
) -> None:
    records = measured(operator, function, phase, kind=kind)

    assert [one.err for one in records if one.err] == []
    assert {one.effect.level for one in records if one.effect} >= {level, 3, 4}
    first, whole = effect_of(records, level), effect_of(records, 4)
    assert (first.module.partition(" ")[0], first.calls) == (module, calls)
    assert whole.called == whole.replaced > 0
    assert whole.predicted_ms is not None
    assert records[-1].corr["relative_error"] < 1e-5
    assert records[-1].corr["top1"] == 1.0


def test_the_head_s_embedding_is_replaced_but_never_called() -> None:
    records = measured("embedding", lambda weight, ids: weight[ids], "prefill-8")

    assert {record.outcome for record in records} == {Status.OK}
    assert effect_of(records, 1).calls == 1
    assert effect_of(records, 4).missing == ["lm_head.embedding"]
    assert records[-1].corr["top1"] == 1.0


def test_a_slower_kernel_is_found_at_every_level_with_the_predicted_size(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    records = measured("rms_norm", slowed(monkeypatch)(rms_norm), "decode-2")
    whole = effect_of(records, 4)

    lost = {
        one.effect.level: one.lat_ms.p50 - one.effect.baseline.p50
        for one in records
        if one.effect and one.lat_ms
    }
    assert lost[1] == pytest.approx(1000 * SLOWER_SECONDS)
    assert lost[3] == pytest.approx(2 * lost[1])
    assert lost[4] == pytest.approx(NORMS * lost[1])
    assert whole.predicted_ms == pytest.approx(whole.baseline.p50 + lost[4])


def slowed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Function], Function]:
    """Replace the clock of measurements; return what makes a kernel slower by it."""
    clock = Clock()
    monkeypatch.setattr(phase, "perf_counter", clock)

    def slower(function: Function) -> Function:
        def run(*inputs: Any) -> Any:
            clock.now += SLOWER_SECONDS
            return function(*inputs)

        return run

    return slower


class Clock:
    """A clock that a kernel can advance; each reading takes a millisecond."""

    now = 0.0

    def __call__(self) -> float:
        self.now += 0.001
        return self.now


def test_calls_with_other_inputs_are_rows_of_their_own() -> None:
    records = measured("rms_norm", rms_norm, "prefill-8", kind="qwen3")

    labels = {one.effect.module: one.effect.calls for one in records if one.effect and one.effect.level == 1}
    assert labels["RMSNorm with residual"] == NORMS - 1
    assert sum(labels.values()) == NORMS + 2 * LAYERS


def test_a_phase_that_does_not_call_the_kernel_is_left_out() -> None:
    records = measured("flash_attn", flash_attn.reference, "decode-2", "prefill-8")

    assert {one.effect.phase for one in records if one.effect} == {"prefill-8"}


def test_a_replaced_module_inside_of_a_replaced_block_counts_as_part_of_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    slower = slowed(monkeypatch)
    given = [substitute("mlp", slower(mlp.reference)), substitute("activation", slower(swiglu_halves))]
    found = measure_effect(
        given,
        CellContext(request=Request(effect=request("llama", "prefill-8", framework=""))),
        lambda _: None,
    )

    assert {one.outcome for one in found} == {Status.OK}, [one.err for one in found]
    block, whole = effect_of(found, 2), effect_of(found, 4)
    assert (block.module, block.predicted_ms) == ("LlamaMLP", None)
    assert whole.predicted_ms == pytest.approx(whole.baseline.p50 + 1000 * LAYERS * SLOWER_SECONDS)
    assert whole.missing == [f"model.layers.{layer}.mlp.act_fn" for layer in range(LAYERS)]


def _kept(function: Function) -> Function:
    results: dict[Any, Any] = {}
    return lambda *given: results.setdefault(given[0].shape, function(*given))


def _kept_for_the_same_tensor() -> Function:
    results: dict[int, Any] = {}
    return lambda x, *rest: results.setdefault(id(x), (x, rms_norm(x, *rest)))[1]


def _overwriting(x: Tensor, *rest: Any) -> Any:
    found = rms_norm(x, *rest)
    x.mul_(1.01)
    return found


def _scaling_the_weight(x: Tensor, weight: Tensor, *rest: Any) -> Any:
    found = rms_norm(x, weight, *rest)
    weight.data[:1].mul_(1.01)
    return found


def _scaled(function: Function, factor: float, first: int = 0) -> Function:
    """Return a function whose rows from the ``first`` one are scaled."""

    def scaled(*given: Any) -> Any:
        found = function(*given)
        found[first:].mul_(factor)
        return found

    return scaled


def _first_result(change: Function) -> Function:
    """Return a norm with another result, where it gets no residual."""

    def mine(x: Tensor, weight: Tensor, residual: Tensor | None, eps: float) -> Any:
        found = rms_norm(x, weight, residual, eps)
        return change(found) if residual is None else (change(found[0]), found[1])

    return mine


def _with_first_weight() -> Function:
    kept: dict[torch.Size, Tensor] = {}
    return lambda x, weight, *rest: rms_norm(x, kept.setdefault(weight.shape, weight), *rest)


def _whole_blocks(query: Tensor, keys: Tensor, values: Tensor, tables: Tensor, seq_lens: Tensor) -> Tensor:
    ends = torch.full_like(seq_lens, tables.shape[1] * keys.shape[1])
    return paged_attention.torch_paged(query, keys, values, tables, ends)


def _wrong_after_some_calls() -> Function:
    calls = itertools.count()
    return lambda x, *rest: rms_norm(x if next(calls) < 10 * NORMS else x + 1, *rest)


OTHER = "returns a different result with the implementation"
OWN_EPS = lambda *inputs: rms_norm(*inputs[:3], 1e-6)  # noqa: E731 - of the model it is 0.01
THEIRS = {"framework": TRANSFORMERS}
MOE = HALF | {"kind": "qwen3_moe"}


@pytest.mark.parametrize(
    ("operator", "function", "phase", "options", "message"),
    [
        ("rms_norm", _first_result(lambda x: x[None].half()), "prefill-8", {}, "float16[1, 8, 48] with the"),
        ("rms_norm", _first_result(lambda x: [x]), "prefill-8", {}, "returns a tuple of float32[8, 48] with"),
        ("rms_norm", OWN_EPS, "decode-2", {}, f"RMSNorm {OTHER}: output 0 differs by"),
        ("rms_norm", OWN_EPS, "decode-2", THEIRS, OTHER),
        ("rms_norm", _wrong_after_some_calls(), "prefill-4", {}, OTHER),
        ("rms_norm", _kept_for_the_same_tensor(), "prefill-8", HALF, f"{OTHER} after its inputs"),
        ("rms_norm", _with_first_weight(), "prefill-8", HALF, f"RMSNorm with residual {OTHER}: output 0"),
        ("rms_norm", _overwriting, "prefill-8", HALF, "overwrites its input"),
        ("rms_norm", _scaling_the_weight, "prefill-8", HALF, "weights of the model, such as"),
        ("rotary", _kept(rotary.reference), "prefill-8", HALF, "logits differ by"),
        ("rotary", rotary.reference, "decode-2", THEIRS, "the model has no module RotaryEmbedding"),
        ("activation", _scaled(swiglu_halves, 1.012), "prefill-8", HALF, "output 0 differs by 0.01"),
        ("moe", _scaled(moe.torch_moe, 0.7, 900), "prefill-901", MOE, "0.3 of the norm of a row"),
        ("paged_attention", _whole_blocks, "decode-2", {}, f"{OTHER} with shorter contexts"),
        ("flash_attn", flash_attn.reference, "decode-2", {}, "calls no FlashAttnPrefill in decode-2"),
    ],
)
@transformers_only
def test_what_changes_the_result_or_nothing_is_one_record_with_the_reason(
    operator: str, function: Function, phase: str, options: dict[str, str], message: str
) -> None:
    (record,) = measured(operator, function, phase, **options)

    assert record.outcome in {Status.ERROR, Status.UNSUPPORTED}
    assert message in record.err.msg


@pytest.mark.parametrize(
    ("kind", "operator", "function", "message"),
    [
        ("llama", "rms_norm", rms_norm, f"the model {OTHER}"),
        ("mixtral", "moe", moe.torch_moe, f"FusedMoE {OTHER}"),
    ],
)
def test_a_result_that_is_right_before_and_after_it_is_timed_is_compared_in_a_timed_pass(
    kind: str, operator: str, function: Function, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    timing: list[bool] = []
    wall_ms = phase._wall_ms

    def noting(*given: Any) -> float:
        timing.append(True)
        try:
            return wall_ms(*given)
        finally:
            timing.pop()

    def wrong_when_timed(x: Tensor, *rest: Any) -> Any:
        found = function(x, *rest)
        return found if not timing else x if isinstance(found, Tensor) else (x, found[1])

    monkeypatch.setattr(phase, "_wall_ms", noting)
    (record,) = measured(operator, wrong_when_timed, "prefill-8", kind=kind)

    assert record.status is Status.ERROR
    assert f"{message} in a timed pass: " in reason_of(record)


@transformers_only
@pytest.mark.parametrize(
    ("kind", "operator", "function", "layout", "replaced"),
    [
        ("qwen3", "rms_norm", rms_norm, "", NORMS + 2 * LAYERS),
        ("llama", "activation", swiglu_halves, "", LAYERS),
        ("qwen2", "activation", swiglu, "two_tensors", LAYERS),
        ("mixtral", "flash_attn", flash_attn.reference, "", LAYERS),
        ("falcon_mamba", "rms_norm", rms_norm, "", LAYERS + 1),  # not those without a weight
        ("qwen3_next", "rms_norm", gated, "gated", 1),  # not those that add 1 to their weight
        ("qwen3_next", "activation", swiglu_halves, "", LAYERS),
        ("qwen3_next", "flash_attn", flash_attn.reference, "", 1),
    ],
)
def test_kernels_of_transformers_models_are_replaced_with_equal_logits(
    kind: str, operator: str, function: Function, layout: str, replaced: int
) -> None:
    records = measured(
        operator, function, "prefill-8", "decode-2", kind=kind, framework=TRANSFORMERS, layout=layout
    )

    assert [one.err for one in records if one.err] == []
    models = [one for one in records if one.effect and one.effect.level == 4]
    assert {one.effect.phase for one in models if one.effect} == {"prefill-8", "decode-2"}
    for one in models:
        assert (one.effect.replaced, one.effect.called, one.effect.missing) == (replaced, replaced, [])
        assert one.corr["relative_error"] < 1e-5


@transformers_only
@pytest.mark.parametrize(
    ("kind", "operators", "replaced"),
    [
        ("falcon_mamba", ["selective_scan"], LAYERS),
        ("falcon_mamba", ["causal_conv1d", "selective_scan"], LAYERS),
        ("qwen3_next", ["gated_delta_rule"], 1),
        ("qwen3_next", ["causal_conv1d", "gated_delta_rule"], 1),
    ],
)
def test_functions_of_recurrent_layers_are_replaced_for_many_tokens_and_for_one(
    kind: str, operators: list[str], replaced: int
) -> None:
    tokens: dict[str, set[int]] = {name: set() for name in operators}

    def noting(name: str) -> Function:
        function = function_of(name, f"torch_{name}")

        def run(*inputs: Any) -> Any:
            tokens[name].add(inputs[0].shape[1 if name == "gated_delta_rule" else 2])
            return function(*inputs)

        return run

    asked = request(kind, "prefill-8", "decode-2", framework=TRANSFORMERS)
    given = [substitute(name, noting(name)) for name in operators]
    found = measure_effect(given, CellContext(request=Request(effect=asked)), lambda _: None)

    assert {one.outcome for one in found} == {Status.OK}, [one.err for one in found]
    models = [one for one in found if one.effect and one.effect.level == 4]
    assert {one.effect.phase for one in models if one.effect} == {"prefill-8", "decode-2"}
    for one in models:
        assert one.effect
        assert (one.effect.replaced, one.effect.called, one.effect.missing) == (replaced, replaced, [])
        assert one.corr["relative_error"] < 1e-5
    cached = 4  # tokens before the new one, which the convolution keeps
    for name, lengths in tokens.items():
        assert {8, 1 + cached * (name == "causal_conv1d")} <= lengths


@transformers_only
@pytest.mark.parametrize(
    ("kind", "operator"), [("falcon_mamba", "selective_scan"), ("qwen3_next", "gated_delta_rule")]
)
def test_a_recurrent_layer_that_loses_its_state_is_found(kind: str, operator: str) -> None:
    function = function_of(operator, f"torch_{operator}")

    def without_state(*inputs: Any) -> Any:
        return function(*inputs[:-1], None)

    (record,) = measured(operator, without_state, "prefill-8", "decode-2", kind=kind, framework=TRANSFORMERS)[
        -1:
    ]

    assert record.outcome is Status.ERROR
    assert OTHER in record.err.msg


@transformers_only
def test_norms_inside_of_replaced_attention_are_replaced_together_with_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked = request("qwen3", "prefill-8", framework=TRANSFORMERS)
    slower = slowed(monkeypatch)
    given = [substitute("rms_norm", slower(rms_norm)), substitute("flash_attn", slower(flash_attn.reference))]
    found = measure_effect(given, CellContext(request=Request(effect=asked)), lambda _: None)

    assert {one.outcome for one in found} == {Status.OK}, [one.err for one in found]
    whole = effect_of(found, 4)
    assert whole.called == whole.replaced == NORMS + 3 * LAYERS
    assert whole.predicted_ms == pytest.approx(whole.baseline.p50 + 1000 * SLOWER_SECONDS * whole.called)


@transformers_only
def test_a_configuration_that_only_transformers_can_refuse_is_an_error_with_its_reason() -> None:
    asked = request("llama", "prefill-8", framework=TRANSFORMERS)
    asked.config["pad_token_id"] = 9999
    (record,) = measure_effect(
        [substitute("rms_norm", rms_norm)], CellContext(request=Request(effect=asked)), lambda _: None
    )

    assert record.outcome is Status.ERROR
    assert record.err.type == "ModelError"
    assert "transformers rejects the configuration (Padding_idx must be within" in record.err.msg


@transformers_only
@pytest.mark.parametrize(
    ("operator", "function", "prepare"),
    [("rms_norm", rms_norm, lambda weight: 1 * weight), ("flash_attn", flash_attn.torch_attention, None)],
    ids=["rms_norm with prepared weights", "attention"],
)
def test_implementations_train_transformers_models_with_equal_gradients(
    operator: str, function: Function, prepare: Function | None
) -> None:
    (record,) = measured(operator, function, "train-16", framework=TRANSFORMERS, prepare=prepare)

    assert record.effect is not None, record.err
    assert (record.effect.level, record.effect.phase) == (4, "train-16")
    assert record.effect.replaced == record.effect.called > 0
    assert record.corr["worst_gradient"] < 1e-4


def test_the_kernels_of_a_pass_are_timed_inside_of_the_model_and_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    forward, seconds = SiluAndMul.forward, 0.02  # longer than any other module on a busy machine

    def slow(self: SiluAndMul, x: Tensor) -> Tensor:
        time.sleep(seconds)
        return forward(self, x)

    monkeypatch.setattr(SiluAndMul, "forward", slow)
    *parts, outside = effect_of(measured("rms_norm", rms_norm, "decode-2"), 4).parts

    slowest, *_ = parts
    calls = Counter[str]()
    for part in parts:
        calls[part.module.split()[0]] += part.calls
    assert calls["RMSNorm"] == NORMS
    assert calls["Linear"] == 4 * LAYERS + 1
    assert len({part.module for part in parts}) == len(parts)
    assert (slowest.module, slowest.calls) == ("SiluAndMul", LAYERS)
    assert min(slowest.ms, slowest.alone_ms or 0.0) >= 1000 * seconds * LAYERS
    assert parts == sorted(parts, key=lambda part: -part.ms)
    assert outside.module == ""


def whole(records: list[Record]) -> dict[str, Record]:
    return {one.effect.module: one for one in records if one.effect and one.effect.level == 4}


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["llama", "mixtral", "qwen3"])
def test_decoding_has_device_eager_and_graph_times_and_prefill_no_graph(kind: str) -> None:
    function = function_of("rms_norm", "triton_rms_norm")
    dtype = "bfloat16" if kind == "mixtral" else "float32"  # of which a GPU has grouped products
    decode = measured("rms_norm", function, "decode-2", kind=kind, device="cuda", dtype=dtype)
    prefill = measured("rms_norm", function, "prefill-64", kind=kind, device="cuda", dtype=dtype)

    assert not [one.err for one in decode + prefill if one.err]
    assert whole(decode).keys() == {"device", "eager", "CUDA graph"}
    assert whole(prefill).keys() == {"device", "eager"}
    assert effect_of(decode, 1).host_ms is not None
    device = effect_of(decode, 4)
    assert sum(part.ms for part in device.parts) == pytest.approx(device.baseline.p50, rel=0.1)
    assert all(part.ms > 0 for part in device.parts if part.module)
    for record in decode:
        assert record.lat_ms.timer is (
            Timer.MONOTONIC if record.wl["name"].endswith(("eager", "graph")) else Timer.CUPTI
        )


@pytest.mark.gpu
@transformers_only
def test_a_training_pass_has_device_and_eager_times_launches_and_peak_memory() -> None:
    function = function_of("rms_norm", "triton_rms_norm")
    found = whole(measured("rms_norm", function, "train-64", device="cuda", framework=TRANSFORMERS))

    assert found.keys() == {"device", "eager"}
    device = found["device"]
    assert device.corr["worst_gradient"] < 1e-3
    assert device.effect.launches != device.effect.baseline_launches
    assert device.peak_bytes
    assert device.effect.baseline_peak_bytes


@pytest.mark.gpu
def test_a_fused_kernel_saves_launches_and_a_slower_one_is_found_with_the_predicted_size() -> None:
    fused = whole(measured("rms_norm", function_of("rms_norm", "triton_rms_norm"), "decode-2", device="cuda"))
    device = fused["device"].effect
    assert device.launches < device.baseline_launches

    baseline = find_operator("rms_norm").baseline

    def slower(*inputs: Any) -> object:
        baseline(*inputs)
        return baseline(*inputs)

    found = whole(measured("rms_norm", slower, "decode-2", device="cuda"))["device"]
    lost = found.lat_ms.p50 - found.effect.baseline.p50
    assert found.effect.predicted_ms - found.effect.baseline.p50 == pytest.approx(lost, rel=0.1)


@pytest.mark.gpu
@pytest.mark.parametrize("kind", ["llama", "mixtral"])
def test_a_kernel_that_a_cuda_graph_does_not_capture_is_found(kind: str) -> None:
    baseline = find_operator("rms_norm").baseline

    def kept_in_graphs(*inputs: Any) -> Any:
        found = baseline(*inputs)
        if not torch.cuda.is_current_stream_capturing():
            return found
        zeros = torch.zeros_like(inputs[0])
        return zeros if isinstance(found, Tensor) else (zeros, found[1])

    (record,) = measured("rms_norm", kept_in_graphs, "decode-2", kind=kind, device="cuda", dtype="bfloat16")

    assert record.status is Status.ERROR
    assert "the CUDA graph of the candidate does not match an eager pass: logits differ" in reason_of(record)


def test_a_clock_that_falls_while_sides_take_turns_changes_no_ratio() -> None:
    times = {"baseline": 50.0, "candidate": 49.5, "again": 50.0}
    order = (*times, *reversed(times))

    samples = without_drift(
        [[(side, times[side] * (1 + number / 20)) for side in order] for number in range(5)]
    )

    assert samples["candidate"] == pytest.approx([49.5 * 1.1] * 10)
    assert samples["baseline"] == samples["again"] == pytest.approx([50 * 1.1] * 10)


def test_of_passes_at_the_power_limit_the_fastest_of_each_group_counts() -> None:
    slowed = [0.0, 1.0, 2.0, 0.5]
    rounds = [
        [("baseline", 50.0 + slowed[(number + place) % 4]) for place in range(2)] for number in range(12)
    ]

    assert fastest(rounds) == {"baseline": [50.0] * 6}
    assert fastest(rounds[:2]) == {"baseline": [50.0, 51.0, 51.0, 52.0]}
