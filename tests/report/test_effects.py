"""Effects on the pages of models and implementations."""

import csv
from pathlib import Path

import pytest
from builds import build_of, notebook_run
from effect_records import H200, effect_record
from markup import text_of
from msgspec.structs import replace

from kernels_bench_tools.records.codec import encode_record, write_records
from kernels_bench_tools.records.committed import effect_file, effect_files
from kernels_bench_tools.records.record import Failure, Part, Record, Status
from kernels_bench_tools.records.summary import DeviceSummary, Summary
from kernels_bench_tools.report.site import publish
from kernels_bench_tools.results.effects import Effects

MODEL = "llama-3.2-1b"
LLAMA = f"models/{MODEL}.html"
DECODE = "Effects on decode-1, NVIDIA H200"
HOST = {"baseline_host_ms": 0.033, "host_ms": 0.081}
PARTS = [
    Part(module="Linear", calls=113, ms=3.0, alone_ms=2.7),
    Part(module="RMSNorm", calls=33, ms=0.8, alone_ms=0.66),
    Part(module="", calls=0, ms=0.2),
]
MEASURED = [
    {"level": 1, "module": "RMSNorm", "calls": 33, "baseline_ms": 0.02, "candidate_ms": 0.01, **HOST},
    {
        "level": 3,
        "module": "LlamaDecoderLayer",
        "baseline_ms": 0.2,
        "candidate_ms": 0.18,
        "predicted_ms": 0.18,
    },
    {
        "module": "device",
        "baseline_ms": 4.0,
        "candidate_ms": 3.7,
        "predicted_ms": 3.67,
        "noise": 0.004,
        "parts": PARTS,
        "launches": 889,
        "baseline_launches": 1344,
        "peak_bytes": 3 << 29,
        "baseline_peak_bytes": 2 << 30,
    },
    {"module": "eager", "baseline_ms": 30.0, "candidate_ms": 40.0, "predicted_ms": 31.584, "noise": 0.004},
]


def records(impl: str = "fast", **fields: object) -> list[Record]:
    return [effect_record(number, impl=impl, **row | fields) for row in MEASURED for number in range(3)]


def write(root: Path, found: list[Record], *, bad: bytes = b"") -> None:
    effect = found[0].effect
    path = effect_file(root, effect.model if effect else MODEL, found[0], effect.others if effect else ())
    write_records(path, found, before=bad)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An implementation with a gain and a loss, together with another one, and one that failed; some lines are bad."""
    root = tmp_path_factory.mktemp("effects")
    foreign = encode_record(effect_record(impl="base", candidate_ms=0.001))
    write(root, [*records(), *records(phase="decode-32", layers=2)], bad=foreign + b"{\n")
    write(root, records(others=["activation/gone"], called=4, missing=["lm_head.embedding"]))
    write(root, records(model=f"{MODEL}-transformers", phase="prefill-2048", kept={"SiLU": 16}, parts=[]))
    failure = Failure(type="EffectError", msg="RMSNorm computes something else with the implementation")
    failed = {"status": Status.ERROR, "ok": False, "lat_ms": None, "effect": None, "err": failure}
    write(root, [replace(effect_record(impl="odd"), **failed)])
    names = ("base", "fast", "odd")
    run = build_of(*(notebook_run(f"rms_norm/impls/{name}.md", title=name.title()) for name in names))
    # As of cells that this machine cannot run: reasons, and no workload.
    view = DeviceSummary(device=H200, workloads=[], rows=[])
    nothing = {"rms_norm": Summary(operator="rms_norm", title="RMS Norm", devices=[view])}
    publish(root, run, root / "site", summaries=nothing, effects=Effects(root, effect_files(root)))
    return root / "site"


def table(page, label: str) -> list[list[str]]:
    box = next(it for it in page.elements("div") if it.get("aria-label") == label)
    return [[text_of(cell) for cell in line] for line in box.iter("tr")]


def test_a_phase_shows_each_kernel_alone_and_in_the_model_and_how_long_the_device_waits(site, read_page):
    _, linear, norm, outside, total = table(read_page(site, LLAMA), "Kernels of decode-1, NVIDIA H200")

    assert linear == ["Linear", "113", "2.700", "3.000", "0.90", "75 %"]
    assert norm[-3:] == ["0.8000", "0.82", "20 %"]
    assert outside == ["Outside of kernels", "–", "–", "0.2000", "–", "5 %"]
    assert total == ["Sum", "3.360", "4.000", "eager: device idle for 26.00 ms per pass"]


def test_a_phase_shows_every_level_and_the_costs_of_a_loss(site, read_page):
    _, fast, both = table(read_page(site, LLAMA), DECODE)

    assert fast[0] == "Fast 5 of 5 instances replaced and called 3 processes · 2026-11-20"
    assert fast[1].startswith("▲ 1.08× [")
    assert fast[1].endswith(
        "4.000 → 3.700 faster, as predicted predicted 1.09×, noise 0.4 % "
        "kernels 1,344 → 889 peak memory 2 GiB → 1.5 GiB"
    )
    assert fast[2].startswith("▼ 0.75×")
    assert fast[2].endswith("tokens/s 33 → 25")
    kernel, layer = fast[3].split(" ▲ ")
    assert kernel.startswith("▲ 2.00× [")
    assert kernel.endswith("RMSNorm, 33 calls host ms of a call 0.03300 → 0.08100")
    assert layer.startswith("1.11×")
    assert ", predicted " in layer
    assert both[0].startswith("Fast + gone 4 of 5 instances replaced and called, not lm_head.embedding")


def test_pages_link_to_each_other_and_other_models_have_no_effects(site, read_page, find_flaws):
    assert find_flaws(site) == []
    links = {url for _, url in read_page(site, "rms_norm/impls/fast.html").references()}
    assert "../../models/llama-3.2-1b.html#effects" in links
    assert "whole models" not in read_page(site, "rms_norm/impls/base.html").text
    # Without records of the operator's own.
    assert "kbt effect rms_norm/fast --model llama-3.2-1b" in read_page(site, "rms_norm/impls/fast.html").text
    for path in ("rms_norm/index.html", "index.html"):
        assert "Fast measured in llama-3.2-1b Odd" in " ".join(read_page(site, path).text.split())
    assert "../rms_norm/impls/fast.html" in {url for _, url in read_page(site, LLAMA).references()}
    other = read_page(site, "models/llama-3.1-8b.html")
    assert "Measured effects" not in other.text
    assert not (site / "models/llama-3.1-8b-effects.csv").exists()


def test_the_csv_has_all_rows(site):
    lines = list(csv.DictReader((site / "models/llama-3.2-1b-effects.csv").read_text().splitlines()))

    assert len(lines) == 4 * len(MEASURED)
    assert {line["model"] for line in lines} == {MODEL, f"{MODEL}-transformers"}
    assert {line["implementations"] for line in lines} == {"rms_norm/fast", "rms_norm/fast + activation/gone"}
    assert [line["verdict"] for line in lines[:4]] == ["faster", "confirmed", "confirmed", "regressed"]


def test_bad_lines_are_on_the_page_of_failures(site, read_page):
    text = read_page(site, "status.html").text

    file = "effects/nvidia-h200/llama-3.2-1b/rms_norm--fast.jsonl"
    assert f"{file}:1: is a record of implementation 'rms_norm--base', expected 'rms_norm--fast'" in text
    assert f"{file}:2: is not a record" in text
