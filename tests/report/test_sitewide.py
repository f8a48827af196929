"""Pages and files about the whole site."""

import json
from pathlib import Path

import pytest
from builds import notebook_run
from history import make_repository, rows
from jsonschema import Draft202012Validator
from made_records import record
from markup import text_of
from projects import run_kbt

from kernels_bench_tools.records.build import Prose
from kernels_bench_tools.records.codec import read_records, write_records
from kernels_bench_tools.records.committed import record_file
from kernels_bench_tools.records.record import Flag, Regime, Status
from kernels_bench_tools.records.summary import Verdict
from kernels_bench_tools.report.paths import KINDS, is_generated, page_path, results_page

ROOT = Path(__file__).parents[2]
H200 = "devices/nvidia-h200.html"


def test_the_page_of_a_device_shows_environment_peaks_and_operators(pages):
    text = pages[H200].text
    for fact in (
        "L2 cache",
        "2.13.0",
        "60 MiB",
        "Triton layer norm, 1.62× over PyTorch layer norm",
        "2 of 4 ranked",
        "bfloat16 matmul",
    ):
        assert fact in text, fact


def test_the_method_explains_every_status_verdict_regime_and_flag(pages):
    text = pages["method.html"].text
    for word in (*Status, *Regime, *Flag, *(it for it in Verdict if it is not Verdict.BASELINE)):
        assert word.label in text
        assert word.meaning, word
        assert word.meaning in text


def test_failures_are_grouped_by_reason_over_devices(pages):
    page = pages["status.html"]
    groups = {
        text_of(fold.find("summary")): fold
        for fold in page.elements("details")
        if "reason-group" in fold.get("class", "")
    }
    hub = groups["⊘ unsupported RuntimeError: no hub is reachable 6 workloads of HF Kernels layer norm"]
    assert [" ".join(map(text_of, row)) for row in hub.iter("tr")][1:] == [
        "HF Kernels layer norm Layer Normalization NVIDIA H200 4 –",
        "HF Kernels layer norm Layer Normalization AMD EPYC, 2 cores 2 –",
    ]
    assert next(iter(groups)).startswith("≠ incorrect largest error 0.5 exceeds")
    assert "12 of 24 results" in page.text


@pytest.mark.parametrize(
    ("reasons", "similar"),
    [
        ([f"needs {number} GiB" for number in range(4)], "3 similar messages"),
        # Where it failed is no reason of its own.
        (["off by up to 0.01", *3 * ["off by up to 0.02 (process 1 and 2 of 3)"]], "1 similar message"),
    ],
)
def test_reasons_that_differ_only_in_numbers_and_places_are_one_group(sample, published, reasons, similar):
    summary = sample.read_summary()
    for point, reason in zip(summary.devices[0].rows[3].points, reasons, strict=True):
        point.reason = reason
    sample.write_summary(summary)
    assert f"4 workloads of HF Kernels layer norm · {similar}" in published("status.html").text


def test_every_page_shows_the_origin_of_its_numbers(pages):
    for path in ("index.html", "layer_norm/index.html", "layer_norm/impls/triton_layer_norm.html", H200):
        footer = text_of(pages[path].elements("footer")[0])
        assert "NVIDIA H200 · measured 2026-11-18 · driver 580.95.05 · CUDA 13.0 · torch 2.13.0" in footer, (
            path
        )
        assert "commit c0ffeec0ffee" in footer, path


def test_uncommitted_changes_are_shown_beside_the_commit(sample, published):
    sample.edit('"dirty":false', '"dirty":true')
    footer = text_of(published("index.html").elements("footer")[0])
    assert "c0ffeec0ffee with uncommitted changes" in footer


def test_the_data_follow_the_published_schema(sample_site):
    schema = json.loads((ROOT / "docs/report.schema.json").read_text())
    report = json.loads((sample_site / "report.json").read_text())
    Draft202012Validator(schema).validate(report)
    assert report["measured"] == "2026-11-18T10:00:00Z"


def test_the_front_page_has_operators_in_the_order_given_and_one_family_over_all(sample, published):
    for folder, title in (("b", "Beta"), ("a", "Zeta")):
        sample.build.notebooks += [
            notebook_run(f"{folder}/{path}", title=title) for path in ("index.md", "impls/x.md")
        ]
    sample.notebook("layer_norm/impls/hf_kernels_layer_norm.md").front.family = "hf-kernels"
    text = "![contents]\n\n![operators: a, layer_norm]\n\n![family: hf-kernels]\n"
    sample.notebook("index.md").blocks = [Prose(text=text)]
    page = published("index.html")
    assert [text_of(heading) for heading in page.elements("h2")] == ["Zeta", "Layer Normalization", "Beta"]
    rows = [text_of(row) for row in page.elements("table")[-1].iter("tr")]
    assert len(rows) == 2
    assert "HF Kernels layer norm" in rows[1]


def test_all_records_of_an_operator_are_one_download(sample, find_flaws):
    for name in ("triton_layer_norm", "gone_layer_norm"):
        file = record_file(sample.root / "layer_norm", "nvidia-h200", name)
        write_records(file, [record(name, 9.0, op="layer_norm", wl={"name": "N2048_D4096"})])
    sample.publish()
    records = read_records(sample.root / "site/layer_norm/results/records.jsonl")
    names = [one.impl for one in records]
    # Records of this build replace committed ones of the same workload and device.
    assert [one.impl for one in records if one.lat_ms.p50 == 9.0] == ["gone_layer_norm"]
    assert sorted(names) == sorted(
        [
            "gone_layer_norm",
            "hf_kernels_layer_norm",
            "torch_layer_norm",
            "triton_layer_norm",
            "wrong_layer_norm",
        ]
    )
    assert find_flaws(sample.site) == []


def test_every_page_that_is_no_notebooks_or_operators_is_refused_to_notebooks(sample, pages):
    found = {path for path in pages if path.endswith(".html") and path != "index.html"}
    found -= {page_path(notebook.path) for notebook in sample.build.notebooks}
    kinds = {page for page in found if page.rpartition("/")[0] == "layer_norm"}

    assert {page for page in found - kinds if not is_generated(page)} == set()
    assert {"status.html", "method.html", H200} <= found - kinds
    assert kinds <= {results_page("layer_norm", kind) for kind in KINDS}


def test_each_check_is_listed_with_its_result(pages):
    page = pages["selfcheck.html"]
    assert "2 of 3 checks passed" in page.text
    assert "checked 2026-11-20" in page.text
    assert "T11:00" not in page.html
    [table] = (table for table in page.elements("table") if table.get("class") == "checks")
    floors, same = map(text_of, [*table.iter("tr")][1:3])
    assert floors == "Null-kernel overhead ✓ passed 0.64 usdetailshost clock 0.06 us null kernel below 2 us"
    assert "✗ failed 4 of 50 at most 2 false verdicts in 50 pairs" in same


def test_an_invalid_self_check_is_named_on_the_page_and_without_any_the_command(sample, published):
    page = published("selfcheck.html")
    assert "kbt selfcheck" in page.text
    assert not page.elements("table")
    folder = sample.root / "selfcheck"
    folder.mkdir()
    (folder / "gpu.json").write_text("{}")
    assert "selfcheck/gpu.json: is not a self-check" in published("selfcheck.html").text


THEN, SLOWER = (0.1000, 0.1001, 0.0999), (0.1040, 0.1041, 0.1039)
LESS = (0.1030, 0.10301, 0.10299)


def test_pages_draw_each_step_with_its_cause(tmp_path, read_page, find_flaws):
    versions = [rows("r1", *THEN), rows("r2", *SLOWER, torch="2.13.0"), rows("r3", *LESS, torch="2.13.0")]
    root = make_repository(tmp_path / "project", versions)

    done = run_kbt(root, "build", "--no-measure", "--env", "current", "--since", "HEAD~2")

    assert done.returncode == 0, done.stderr
    front = (root / "site/index.html").read_text()
    assert "<strong>Since HEAD~2:</strong> 1 slower (by torch 2.12.0 → 2.13.0), 0 faster" in front
    steps = read_page(root / "site", "op/impls/mine.html").elements("rect")
    assert [one.attrib["class"].split()[1] for one in steps] == ["nothing", "toolchain", "nothing"]
    assert ["".join(one.itertext()).partition(" ")[2].partition(";")[0] for one in steps] == [
        f"version {number}" for number in range(3)
    ]
    assert find_flaws(root / "site") == []
