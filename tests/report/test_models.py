"""Pages of models: the calls of their forward passes, and what was measured of them."""

import csv
import json
from pathlib import Path

import pytest
from builds import build_of, notebook_run
from devices import H200
from markup import text_of

from kernels_bench_tools.records.build import BuildRun
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.model import DERIVED, RANKS, model_files, read_model_tasks
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import DeviceSummary, Point, Row, Summary, Verdict, WorkloadSummary
from kernels_bench_tools.report.site import publish

LLAMA = "models/llama-3.2-1b.html"
ADD, ALONE, UNRANKED = "AddRMS_B1_S1_D2048", "RMS_B1_S1_D2048", "RMS_B32_S1_D2048"
"""Workloads of a model's calls, none of them from a workload set of models."""


def row(name: str, rank: int | None, times: dict[str, float]) -> Row:
    """Return a row with these medians; those of the baseline are 0.004 ms, and others are faster than it."""
    points = [
        Point(
            workload=workload,
            status=Status.OK,
            p50_ms=ms,
            processes=3,
            speedup=0.004 / ms,
            speedup_low=0.0039 / ms,
            speedup_high=0.0041 / ms,
            verdict=Verdict.BASELINE if ms == 0.004 else Verdict.FASTER,
        )
        for workload, ms in times.items()
    ]
    total = len(points)
    return Row(
        implementation=name,
        slug=f"{name}--nvidia-h200",
        title=name.title(),
        baseline=name == "base",
        rank=rank,
        status=Status.OK,
        passed=total,
        total=total,
        points=points,
    )


def workload(name: str) -> WorkloadSummary:
    """Return a workload of rms_norm as its name says: with residual or without, batch, length and columns."""
    function, *sizes = name.split("_")
    added = function == "AddRMS"
    axes = dict(zip(("batch", "seq_len", "hidden_dim"), (int(size[1:]) for size in sizes), strict=True))
    return WorkloadSummary(
        name=name,
        dtype="bfloat16",
        set="decode",
        group="RMSNorm with residual" if added else "RMSNorm",
        axes={"function": "add_rms_norm" if added else "rms_norm", **axes},
    )


def view(key: str, workloads: list[str], *rows: Row, device: Device = H200) -> DeviceSummary:
    sizes = [workload(name) for name in workloads]
    return DeviceSummary(device=device, view=key, key=key, baseline="base", workloads=sizes, rows=list(rows))


def build(folder: str = "rms_norm") -> BuildRun:
    return build_of(*(notebook_run(f"{folder}/impls/{name}.md") for name in ("base", "fast", "odd")))


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site of rms_norm, measured on two calls of one model; a third has only a result without a rank.

    The first call is a workload of two sets, and one of them has the baseline only.
    """
    root = tmp_path_factory.mktemp("models")
    views = [
        view("few", [ADD], row("base", 1, {ADD: 0.001})),
        view("add", [ADD], row("base", 2, {ADD: 0.004}), row("fast", 1, {ADD: 0.002})),
        view("alone", [ALONE], row("odd", None, {ALONE: 0.001}), row("base", 1, {ALONE: 0.004})),
        view("other", [UNRANKED], row("odd", None, {UNRANKED: 0.001})),
    ]
    summary = Summary(operator="rms_norm", title="RMS norm", devices=views)
    publish(root, build(), root / "site", summaries={"rms_norm": summary})
    return root / "site"


def rows_of(page, phase: str, what: str = "Kernels") -> list[list[str]]:
    """Return the header and the rows of a table, and then the rows of those that were not measured."""
    labels = f"{what} of {phase}", what, f"{what} without a result of {phase}"
    boxes = [it for it in page.elements("div") if it.get("aria-label") in labels]
    lines = [line for box in boxes for line in list(box.iter("tr"))[box is not boxes[0] :]]
    return [[text_of(cell) for cell in line] for line in lines]


def test_kernels_are_by_time_with_the_fastest_ranked_implementation_share_and_prediction(site, read_page):
    page = read_page(site, LLAMA)
    _, added, *others = rows_of(page, "decode-1")

    assert added[:2] == ["RMSNorm *.post_attention_layernorm *.input_layernorm model.norm", "32"]
    # The baseline takes 0.004 ms, for 32 calls and for one.
    assert added[2:6] == ["97 %", f"Fast {ADD}", "0.002000", "2.00× [1.950, 2.050] ▲ faster"]
    assert added[6:] == ["2 x bfloat16[1, 2048] residual bfloat16[1, 2048]"]
    assert others[0][2:6] == ["3 %", f"Base {ALONE}", "0.004000", "● baseline"]
    assert [line[0].split()[0] for line in others[:2]] == ["RMSNorm", "FlashAttnDecode"]
    predicted = {line[0].split()[0]: line[1:] for line in rows_of(page, "", "The whole model")[1:]}
    assert predicted["decode-1"] == [
        "not measured",
        "only 2 of 12 kernels: 1.94× [1.893, 1.990] 0.1320 → 0.06800 ms",
    ]


MLP = {"tokens": 1, "hidden_dim": 2048, "intermediate_dim": 8192}


def test_a_block_is_shown_beside_its_kernels(tmp_path, read_page):
    sizes = [WorkloadSummary(name="T1", dtype="bfloat16", set="default", group="", axes=MLP)]
    rows = [row("base", 2, {"T1": 0.004}), row("fast", 1, {"T1": 0.002})]
    views = [DeviceSummary(device=H200, view="", key="", baseline="base", workloads=sizes, rows=rows)]
    summary = Summary(operator="mlp", title="Blocks", devices=views)
    publish(tmp_path, build("mlp"), tmp_path / "site", summaries={"mlp": summary})
    page = read_page(tmp_path / "site", LLAMA)

    _, block = rows_of(page, "decode-1", "Blocks")
    assert block[:2] == ["LlamaMLP *.mlp", "16"]
    assert block[2:5] == ["Fast T1", "0.002000", "2.00× [1.950, 2.050] ▲ faster"]
    assert rows_of(page, "", "The whole model")[2][1:] == ["not measured", "no kernel measured"]
    assert "decode-1: tokens 1, hidden_dim 2048" in read_page(tmp_path / "site", "mlp/index.html").text
    assert 'aria-label="Blocks' not in (tmp_path / "site/models/mixtral-8x7b.html").read_text()


def test_rows_without_a_result_say_why(site, read_page):
    page = read_page(site, LLAMA)

    results = {line[-1]: line[2] for line in rows_of(page, "decode-32")}
    assert results["2 x bfloat16[32, 2048] residual bfloat16[32, 2048]"] == "not measured"
    # Batch times sequence length is one size.
    assert results["1 x bfloat16[32, 2048]"] == "measured, but no result is eligible"
    assert results["1 x bfloat16[32, 16384]"] == "no operator computes it"
    assert "kbt run rms_norm --workloads llama-3.2-1b" in page.text
    assert "kbt run rotary" not in page.text


def test_the_list_of_models_counts_the_kernels_with_a_result(site, read_page, find_flaws):
    [table] = read_page(site, "models/index.html").elements("table")
    lines = [[text_of(cell) for cell in line] for line in table.iter("tr")][1:]
    found = {line[0]: line[1:] for line in lines}

    assert next(iter(found)) == "llama-3.2-1b"
    assert (
        sorted(found)
        == json.loads((site / "report.json").read_text())["models"]
        == sorted(model_files(DERIVED))
    )
    assert found["llama-3.2-1b"][:3] == ["NVIDIA H200 2 of 36", "–", "1.24"]
    assert found["llama-3.1-8b"][0] == "–"

    page = read_page(site, "rms_norm/index.html")
    links = {url for _, url in page.references()}
    # The norms of another model add 1 to their weight.
    calling = [key for key in model_files(DERIVED) if key != "qwen3-next-80b-a3b"]
    assert {f"../models/{key}.html" for key in ("index", *calling)} <= links
    assert "decode-1: RMSNorm with residual, batch 1, seq_len 1, hidden_dim 2048" in page.text
    assert find_flaws(site) == []


def test_the_table_as_csv_has_every_call_and_shares_of_1(site):
    lines = list(csv.DictReader((site / "models/llama-3.2-1b.csv").read_text().splitlines()))

    for ranks in RANKS:
        tasks = [task for phase in read_model_tasks("llama-3.2-1b", ranks).phases for task in phase.tasks]
        of_ranks = [line for line in lines if line["ranks"] == str(ranks)]
        assert len(of_ranks) == sum(task.level == 1 for task in tasks)
    measured = [line for line in lines if line["device"] and line["ranks"] == "1"]
    assert {line["workload"]: line["implementation"] for line in measured} == {ADD: "fast", ALONE: "base"}
    assert sum(float(line["share"]) for line in measured) == pytest.approx(1)
    assert sum(float(line["calls_ms"]) for line in measured) == pytest.approx(0.068)


def test_a_report_without_operators_of_models_has_no_page_of_them(sample_site):
    assert not (sample_site / "models").exists()
    assert "models/" not in (sample_site / "index.html").read_text()
    assert json.loads((sample_site / "report.json").read_text())["models"] == []


@pytest.mark.parametrize(
    ("code", "shown"), [("", False), ('sets = model_sets("rms_norm", AXES, name)', True)]
)
def test_a_projects_own_operator_has_models_only_if_it_has_their_workloads(tmp_path, code, shown):
    (tmp_path / "pyproject.toml").write_text('[tool.kbt]\noperators = "ops"\n')
    (tmp_path / "ops").mkdir()
    (tmp_path / "ops/rms_norm.py").write_text(code)

    publish(tmp_path, build(), tmp_path / "site")

    assert (tmp_path / "site/models/index.html").exists() == shown


def test_a_model_that_only_transformers_has_shows_which_kernels_of_the_hub_it_takes(site, read_page):
    page = read_page(site, "models/falcon-mamba-7b.html")

    (table,) = [one for one in page.elements("table") if "selective_scan_fn" in text_of(one)]
    rows = [[text_of(cell) for cell in one] for one in table.iter("tr")]
    both = "inference, training"
    assert rows[0] == ["Layer or function", "cuda", "rocm", "xpu"]
    assert {("RMSNorm", both, both, "inference"), ("selective_scan_fn", both, "none", both)} <= set(
        map(tuple, rows)
    )
    assert "Import graph" not in page.text
    assert json.loads((site / "models/falcon-mamba-7b.json").read_text())["modules"] == []
