"""Which implementation is chosen for a shape, and for each kernel of a model."""

from math import exp
from typing import Any

import pytest
from devices import H200 as GPU
from made_records import record

from kernels_bench_tools.errors import OperatorError
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.model import CalledWorkload, ModelTask, Phase, read_model_tasks
from kernels_bench_tools.records.notebook import FrontMatter
from kernels_bench_tools.records.record import Flag, Status
from kernels_bench_tools.records.summary import Summary, Verdict
from kernels_bench_tools.results.choose import (
    Choice,
    Measurements,
    PhaseChoice,
    choose,
    choose_for_phase,
    nearest,
    read_axes,
    unmeasured,
)
from kernels_bench_tools.results.counted import Source
from kernels_bench_tools.results.history.causes import RowName
from kernels_bench_tools.results.models import model_shares
from kernels_bench_tools.results.summary import summarize

H200 = "nvidia-h200"
BASELINE = FrontMatter(baseline=True)


def rms(rows: int, hidden_dim: int, function: str = "rms_norm", **more: Any) -> dict[str, Any]:
    """Return a workload of RMS normalization."""
    group = "RMSNorm" if function == "rms_norm" else "RMSNorm with residual"
    sizes = {"function": function, "batch": 1, "seq_len": rows, "hidden_dim": hidden_dim}
    name = f"{function}_R{rows}_D{hidden_dim}"
    return {"name": name, "set": "default", "group": group, **sizes, "dtype": "bfloat16"} | more


def summary_of(operator: str, *workloads: dict[str, Any], **implementations: Any) -> Summary:
    """Make a summary of an operator: implementation to a time in ms, or to the fields of its records."""
    sources = []
    for name, given in implementations.items():
        fields = given if isinstance(given, dict) else {"p50": given}
        records = [
            record(name, wl=workload, process=process, run=f"r{process}", **fields)
            for workload in workloads
            for process in range(3)
        ]
        sources.append(Source(records=records, front=BASELINE if name == "torch" else FrontMatter()))
    return summarize(operator, operator, sources)


def chosen(summary: Summary, **axes: int | bool | str) -> Choice:
    (found,) = nearest(summary, H200, axes)
    choice = choose(found)
    assert choice
    return choice


def test_the_fastest_is_chosen_with_its_speed_up_interval_and_verdict() -> None:
    choice = chosen(summary_of("rms_norm", rms(64, 4096), torch=0.4, slow=0.3, fast=0.2), hidden_dim=4096)

    assert (choice.implementation, choice.p50_ms, choice.baseline_ms) == ("fast", 0.2, 0.4)
    assert choice.speedup == pytest.approx(2.0)
    assert choice.speedup_low < 2.0 < choice.speedup_high
    assert (choice.verdict, choice.near, choice.ties) == (Verdict.FASTER, "", [])


@pytest.mark.parametrize(
    ("fields", "why"),
    [
        ({"status": Status.INCORRECT, "reason": "it is"}, "incorrect"),
        ({"status": Status.REJECTED, "reason": "it is"}, "rejected"),
        ({"flags": [Flag.APPROXIMATE]}, "approximate"),
    ],
)
def test_a_faster_one_that_is_wrong_is_not_chosen_but_named(fields: dict[str, Any], why: str) -> None:
    times = {"torch": 0.4, "good": 0.2, "faster": {"p50": 0.1, **fields}}

    choice = chosen(summary_of("rms_norm", rms(64, 4096), **times), hidden_dim=4096)

    assert choice.implementation == "good"
    assert choice.faster == {"faster": why}


def test_one_without_a_rank_is_not_chosen() -> None:
    shapes = (rms(64, 4096), rms(64, 8192))
    partly = [
        record("partly", 0.1, wl=shapes[0]),
        record("partly", wl=shapes[1], status=Status.OOM, reason="no memory"),
    ]
    torch = [record("torch", 0.4, wl=shape) for shape in shapes]
    sources = [Source(records=torch, front=BASELINE), Source(records=partly)]

    choice = chosen(summarize("rms_norm", "", sources), hidden_dim=4096)

    assert choice.implementation == "torch"
    assert choice.faster == {"partly": "not ranked: passed 1 of 2 workloads"}


def test_implementations_without_a_significant_difference_are_named() -> None:
    times = {"torch": 0.4, "one": 0.2, "other": 0.2004, "slow": 0.3}

    assert chosen(summary_of("rms_norm", rms(64, 4096), **times), hidden_dim=4096).ties == ["other"]


CPU = Device(kind="cpu", name="CPU", slug="cpu")
THIS_GPU, OTHER_GPU = {"read": 4337.0}, {"read": 4402.0}


@pytest.mark.parametrize(
    ("device", "difference", "fast", "other", "ties"),
    [
        (GPU, 0.045, {}, {}, []),  # in three processes that differ by 1 %, 0.035 are significant
        (CPU, 0.045, {}, {}, ["other"]),
        (CPU, 0.065, {}, {}, []),
        (GPU, 0.045, OTHER_GPU, {}, ["other"]),
        (GPU, 0.045, {}, OTHER_GPU, ["other"]),
        (GPU, 0.065, OTHER_GPU, {}, []),
    ],
)
def test_a_difference_is_larger_on_a_cpu_and_between_separate_measurements(
    device: Device, difference: float, fast: dict[str, float], other: dict[str, float], ties: list[str]
) -> None:
    def source(name: str, p50: float, ceilings: dict[str, float]) -> Source:
        about: dict[str, Any] = {"wl": rms(64, 4096), "device": device, "ceilings": ceilings or THIS_GPU}
        times = (p50 * exp(0.01 * number) for number in (-1, 0, 1))
        records = [record(name, time, process=number, **about) for number, time in enumerate(times)]
        return Source(records=records, front=BASELINE if name == "torch" else None)

    times = {"torch": (0.4, {}), "fast": (0.2, fast), "other": (0.2 * exp(difference), other)}
    summary = summarize("rms_norm", "", [source(name, *given) for name, given in times.items()])
    (found,) = nearest(summary, device.slug, {})

    choice = choose(found)
    assert choice
    assert choice.ties == ties


def test_one_process_shows_no_difference() -> None:
    times = {"torch": 0.4, "fast": 0.2}
    sources = [Source(records=[record(name, p50, wl=rms(64, 4096))]) for name, p50 in times.items()]

    assert chosen(summarize("rms_norm", "", sources), hidden_dim=4096).ties == ["torch"]


def test_the_nearest_sizes_are_found_in_powers_of_two_with_their_factor() -> None:
    summary = summary_of("rms_norm", rms(64, 4096), rms(128, 4096), rms(64, 8192), torch=0.4)

    found = nearest(summary, H200, {"hidden_dim": 5120})
    one = chosen(summary, hidden_dim=5120, rows=32)

    assert [one.workload.name for one in found] == ["rms_norm_R64_D4096", "rms_norm_R128_D4096"]
    assert {one.near for one in found} == {"hidden_dim 4096, 0.8×"}
    assert one.near == "hidden_dim 4096, 0.8×; rows 64, 2×"


def test_a_workload_without_a_correct_result_is_not_chosen() -> None:
    failed, good = rms(64, 4096), rms(32, 4096, batch=2)
    out_of_memory = {"status": Status.OOM, "reason": "no memory"}
    records = [record("torch", wl=failed, **out_of_memory), record("torch", 0.4, wl=good)]
    summary = summarize("rms_norm", "", [Source(records=records, front=BASELINE)])

    found = nearest(summary, H200, {"rows": 64, "hidden_dim": 4096})
    found.append(Measurements({"rms_norm": summary}, H200).equal(norm(1).workload))

    assert [one.workload.name for one in found] == [good["name"]] * 2


def test_what_was_slower_or_failed_is_named() -> None:
    failed = {name: {"status": Status(name), "reason": "it is"} for name in ("oom", "invalid", "unsupported")}
    times = {"torch": 0.4, "fast": 0.2, "slow": 0.8, **failed}

    avoid = chosen(summary_of("rms_norm", rms(64, 4096), **times), hidden_dim=4096).avoid

    assert avoid.keys() == {"slow", "oom"}


def test_words_and_types_are_never_near() -> None:
    shapes = (rms(64, 4096), rms(64, 4096, "add_rms_norm"), rms(64, 8192, dtype="float16", name="half"))
    summary = summary_of("rms_norm", *shapes, torch=0.4)

    assert chosen(summary, hidden_dim=8192, dtype="bfloat16", function="add_rms_norm").near
    assert chosen(summary, hidden_dim=4096, dtype="float16").near == "hidden_dim 8192, 2×"
    assert nearest(summary, H200, {"dtype": "float32"}) == []


def test_backward_passes_are_not_forward_passes() -> None:
    summary = summary_of("rms_norm", rms(64, 4096, mode="bwd"), rms(64, 8192), torch=0.4)

    assert chosen(summary, hidden_dim=4096).near == "hidden_dim 8192, 2×"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "hiden_dim=4",
            "--axes hiden_dim=4: rms_norm has no axis 'hiden_dim'. Expected: AXIS=VALUE with one of",
        ),
        ("hidden_dim=large", "'large' is not a size. Expected: A positive integer, such as hidden_dim=4096"),
        ("hidden_dim=0", "'0' is not a size"),
        ("hidden_dim", "'' is not a size"),
        ("function=norm", "no measured workload has function=norm. Expected: rms_norm."),
    ],
)
def test_a_wrong_axis_is_one_line(text: str, said: str) -> None:
    with pytest.raises(OperatorError) as error:
        read_axes("rms_norm", text, summary_of("rms_norm", rms(64, 4096), torch=0.4))

    assert said in str(error.value)


def task(module: str, operator: str, group: str, calls: int, level: int = 1, **axes: Any) -> ModelTask:
    found = [CalledWorkload(operator=operator, group=group, dtype="bfloat16", axes=axes)] if operator else []
    return ModelTask(level=level, module=module, inputs=["x"], calls=calls, paths=["x"], workloads=found)


def norm(calls: int, rows: int = 64, hidden_dim: int = 4096) -> ModelTask:
    axes = {"function": "rms_norm", "batch": 1, "seq_len": rows, "hidden_dim": hidden_dim}
    return task("RMSNorm", "rms_norm", "RMSNorm", calls, **axes)


def swiglu(calls: int, tokens: int = 64) -> ModelTask:
    return task(
        "SiluAndMul", "activation", "SwiGLU", calls, function="swiglu", tokens=tokens, hidden_dim=8192
    )


LINEAR = task("Linear", "matmul", "Linear", 5, function="linear", tokens=64, in_features=8, out_features=8)
SWIGLU = {"name": "swiglu", "set": "default", "group": "SwiGLU", "function": "swiglu"} | {
    "tokens": 64,
    "hidden_dim": 8192,
    "dtype": "bfloat16",
}


def phase_of(*tasks: ModelTask) -> PhaseChoice:
    """Choose for a forward pass: RMS normalization takes 0.4 or 0.2 ms, SwiGLU 0.6 or 0.1 ms."""
    summaries = {
        "rms_norm": summary_of("rms_norm", rms(64, 4096), torch=0.4, mine=0.2),
        "activation": summary_of("activation", SWIGLU, torch=0.6, other=0.1),
    }
    phase = Phase(name="prefill-64", sequences=1, tokens=64, context=64, tasks=list(tasks))
    return choose_for_phase(phase, Measurements(summaries, H200))


def test_the_prediction_is_the_sum_of_calls_times_baselines_divided_by_that_of_the_fastest() -> None:
    found = phase_of(norm(10), swiglu(2))

    assert found.prediction.baseline_ms == pytest.approx(10 * 0.4 + 2 * 0.6)
    assert found.prediction.ms == pytest.approx(10 * 0.2 + 2 * 0.1)
    assert found.prediction.speedup == pytest.approx(5.2 / 2.2)
    assert found.prediction.speedup_low < 5.2 / 2.2 < found.prediction.speedup_high
    assert [task.share for task in found.tasks] == pytest.approx([4 / 5.2, 1.2 / 5.2])
    assert found.effect == ["rms_norm/mine", "activation/other"]


def test_the_baseline_is_not_worth_an_effect_where_it_is_the_fastest() -> None:
    summaries = {"rms_norm": summary_of("rms_norm", rms(64, 4096), torch=0.2, mine=0.4)}
    phase = Phase(name="prefill-64", sequences=1, tokens=64, context=64, tasks=[norm(10)])

    assert choose_for_phase(phase, Measurements(summaries, H200)).effect == []


def test_kernels_that_were_not_measured_with_their_size_are_named_and_left_out() -> None:
    routing = task("TopkSoftmax", "", "", 1)

    found = phase_of(norm(10), LINEAR, swiglu(2, tokens=128), routing)

    left_out = [task for task in found.tasks if not task.choice]
    assert [(task.module, task.reason) for task in left_out] == [
        ("Linear", "no record of matmul with this shape"),
        ("SiluAndMul", "no record of activation with this shape"),
        ("TopkSoftmax", "no operator computes it"),
    ]
    assert {(task.tried, task.share) for task in left_out} == {(False, None)}
    assert (found.prediction.tasks, found.prediction.calls) == (1, 10)
    assert found.prediction.speedup == pytest.approx(2.0)


def test_operators_without_a_result_for_a_call_are_unmeasured() -> None:
    summaries = {"activation": summary_of("activation", SWIGLU, torch=0.6, other=0.1)}
    measurements = Measurements(summaries, H200)

    def missing(tokens: int) -> list[str]:
        tasks = [swiglu(2, tokens), norm(2)]
        phase = Phase(name="prefill", sequences=1, tokens=tokens, context=tokens, tasks=tasks)
        return unmeasured([choose_for_phase(phase, measurements)], measurements)

    assert missing(64) == []
    assert missing(128) == ["activation"]


def test_a_block_is_chosen_beside_its_kernels_and_counts_in_no_prediction() -> None:
    block = {"name": "mlp", "set": "default", "tokens": 64, "hidden_dim": 4096, "intermediate_dim": 8192}
    summaries = {
        "activation": summary_of("activation", SWIGLU, torch=0.6, other=0.1),
        "mlp": summary_of("mlp", block | {"dtype": "bfloat16"}, torch=2.0, mine=1.0),
    }
    sizes = {"tokens": 64, "hidden_dim": 4096, "intermediate_dim": 8192}
    mlp = task("LlamaMLP", "mlp", "", 2, 2, **sizes)
    phase = Phase(name="prefill-64", sequences=1, tokens=64, context=64, tasks=[swiglu(2), mlp])

    found = choose_for_phase(phase, Measurements(summaries, H200))

    assert [(one.module, one.choice and one.choice.implementation) for one in found.blocks] == [
        ("LlamaMLP", "mine")
    ]
    assert (found.tasks[0].share, found.blocks[0].share) == (1.0, None)
    assert found.prediction.baseline_ms == pytest.approx(2 * 0.6)
    assert unmeasured([found], Measurements(summaries, H200)) == []


def test_a_product_of_a_model_of_transformers_is_chosen_but_not_worth_an_effect() -> None:
    sizes = {"function": "linear", "tokens": 1, "in_features": 4096, "out_features": 16384}
    linear = {"name": "linear", "set": "default", "group": "Linear", **sizes, "dtype": "bfloat16"}
    summaries = {
        "matmul": summary_of("matmul", linear, torch=0.6, mine=0.1),
        "rms_norm": summary_of("rms_norm", rms(1, 4096), torch=0.6, mine=0.1),
    }
    phase = read_model_tasks("falcon-mamba-7b").phase("decode-1")

    found = choose_for_phase(phase, Measurements(summaries, H200))

    assert {task.operator for task in found.tasks if task.choice} == {"matmul", "rms_norm"}
    assert found.effect == ["rms_norm/mine"]


def test_a_changed_time_is_given_as_a_share_of_each_models_pass_that_calls_it() -> None:
    work = {"rms_norm": rms(1, 4096, "add_rms_norm"), "other": rms(7, 999)}
    summary = summary_of("rms_norm", *work.values(), torch=0.01, mine=0.005)
    row = RowName("rms_norm", "mine", H200, work["rms_norm"]["name"])
    other = row._replace(workload=work["other"]["name"])

    found = model_shares({"rms_norm": summary}, {row: 0.001, other: 0.001})

    shares = {(one.model, one.phase): one for one in found[row]}

    phase = read_model_tasks("llama-3.1-8b").phase("decode-1")
    calls = sum(task.calls for task in phase.tasks if task.module == "RMSNorm" and len(task.inputs) > 1)
    share = shares["llama-3.1-8b", "decode-1"]
    total = choose_for_phase(phase, Measurements({"rms_norm": summary}, H200))
    prediction = total.prediction
    assert calls > 60
    assert prediction
    assert share.ms == pytest.approx(calls * 0.001)
    assert share.share == pytest.approx(share.ms / prediction.ms)
    assert ("llama-3.1-8b", "prefill-2048") not in shares
    assert found[other] == []
    both = summary_of("rms_norm", work["rms_norm"], rms(1, 4096), torch=0.01, mine=0.005)
    less = [one.share for one in model_shares({"rms_norm": both}, {row: -0.001})[row]]
    assert less == sorted(less)
    assert less[0] < less[-1] < 0
