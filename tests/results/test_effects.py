"""Verdicts on what an implementation changes in a model."""

import re
from pathlib import Path

import pytest
from devices import H200
from effect_records import effect_record

from kernels_bench_tools.records.codec import write_records
from kernels_bench_tools.records.record import Part
from kernels_bench_tools.records.summary import Ratio
from kernels_bench_tools.results.effects import (
    EffectVerdict,
    breakdown_of,
    effect_rows,
    effects_by_device,
    read_effect,
    verdict_of_effect,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize(
    ("interval", "predicted", "noise", "expected"),
    [
        ((1.10, 1.09, 1.11), 1.10, 0.002, EffectVerdict.CONFIRMED),
        ((1.10, 1.09, 1.11), 1.20, 0.002, EffectVerdict.SHORT),
        ((1.10, 1.09, 1.11), 1.02, 0.002, EffectVerdict.OVER),
        ((1.10, 1.09, 1.11), 1.14, 0.050, EffectVerdict.CONFIRMED),  # within noise
        ((1.10, 1.09, 1.11), 1.06, 0.050, EffectVerdict.CONFIRMED),
        ((1.50, 1.49, 1.51), 1.55, 0.002, EffectVerdict.CONFIRMED),  # within a tenth of the gain
        ((1.50, 1.49, 1.51), 1.46, 0.002, EffectVerdict.CONFIRMED),
        ((1.10, 1.09, 1.11), None, 0.002, EffectVerdict.FASTER),
        ((0.90, 0.89, 0.91), 0.90, 0.002, EffectVerdict.REGRESSED),
        ((1.01, 0.99, 1.03), 1.01, 0.002, EffectVerdict.BELOW_NOISE),
        ((1.01, 1.005, 1.015), 1.01, 0.02, EffectVerdict.BELOW_NOISE),
    ],
)
def test_a_speed_up_has_a_verdict_by_noise_and_prediction(
    interval: tuple[float, float, float], predicted: float | None, noise: float, expected: EffectVerdict
) -> None:
    value, low, high = interval

    found = verdict_of_effect(Ratio(value=value, low=low, high=high), predicted, noise, processes=3)

    assert found is expected


def test_two_processes_give_no_verdict() -> None:
    found = verdict_of_effect(Ratio(value=2.0, low=1.9, high=2.1), 2.0, 0.0, processes=2)

    assert found is EffectVerdict.NONE


def test_the_record_of_a_process_counts_once() -> None:
    (row,) = effect_rows([effect_record()] * 3)

    assert (row.processes, row.verdict) == (1, EffectVerdict.NONE)


def test_a_row_has_the_speed_up_over_all_processes_and_the_largest_noise() -> None:
    records = [
        effect_record(number, noise=noise, predicted_ms=3.0) for number, noise in enumerate((0.0, 0.05, 0.0))
    ]

    (row,) = effect_rows(records)

    assert (row.processes, row.baseline_ms, row.candidate_ms) == (3, 4.0, 2.0)
    assert row.speedup == pytest.approx(2.0)
    assert row.predicted == pytest.approx(4 / 3)
    assert row.noise == pytest.approx(0.05, rel=0.1)
    assert row.verdict is EffectVerdict.OVER


def test_phases_are_in_the_order_of_their_tokens_and_training_is_last(tmp_path: Path) -> None:
    phases = ["prefill-2048", "prefill-8", "decode-1", "decode-32", "train-2048"]
    file = tmp_path / H200.slug / "llama-3.2-1b" / "rms_norm--mine.jsonl"
    write_records(file, [effect_record(phase=phase) for phase in sorted(phases)])
    effect = read_effect(tmp_path, file)
    assert effect

    (device,) = effects_by_device([effect])

    assert list(device.phases) == phases
    assert not effect.has_other_code({"rms_norm/mine": {"x = 1"}})  # its records do not know theirs


def test_a_device_does_not_wait_for_less_than_no_time() -> None:
    times = {"device": 5.0, "eager": 4.0, "CUDA graph": 7.0}
    parts = [Part(module="Linear", calls=1, ms=5.0)]
    rows = effect_rows(effect_record(baseline_ms=ms, module=how, parts=parts) for how, ms in times.items())

    found = breakdown_of(rows)

    assert found
    assert found.idle == {"eager": 0.0, "CUDA graph": 2.0}


@pytest.mark.parametrize(
    ("operator", "implementation"),
    [
        ("rms_norm", "triton_rms_norm"),
        ("activation", "triton_swiglu"),
        ("rotary", "triton_rotary"),
        ("flash_attn", "gluon_attention"),
    ],
)
def test_effects_on_the_front_page_are_those_that_were_recorded(operator: str, implementation: str) -> None:
    folder = ROOT / "effects" / "nvidia-h200" / "llama-3.1-8b"
    effect = read_effect(ROOT, folder / f"{operator}--{implementation}.jsonl")
    assert effect is not None
    recorded = {row.effect.phase: row.speedup for row in effect.rows if row.effect.module == "device"}
    rows = [
        line.split("|")
        for line in (ROOT / "index.md").read_text().splitlines()
        if f"| `{operator}` |" in line
    ]
    shown = next(found for cells in rows if (found := re.findall(r"([\d.]+)x", cells[5])))

    assert shown == [f"{recorded[phase]:.2f}" for phase in ("prefill-2048", "decode-1") if phase in recorded]
