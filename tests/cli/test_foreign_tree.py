"""Notebooks that were written for uvnote and another harness, as in huggingface/kernels-benchmarks, get rankings."""

import json
from pathlib import Path

import pytest
from foreign_tree import write_tree
from projects import once_per_run, run_kbt


def build_tree(root: Path) -> None:
    done = run_kbt(write_tree(root / "tree").parent, "build", "benches", "--json")
    (root / "build.json").write_text(done.stdout)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return once_per_run(tmp_path_factory, "foreign", build_tree)


@pytest.fixture(scope="module")
def tree(built: Path) -> Path:
    return built / "tree"


@pytest.fixture(scope="module")
def cells(built: Path) -> dict[str, dict[str, str]]:
    listed = json.loads((built / "build.json").read_text())["cells"]
    return {cell["cell"].removeprefix("benches/"): cell for cell in listed}


def page(tree: Path, name: str) -> str:
    return (tree / "site" / name).read_text()


def ranked(tree: Path, operator: str) -> list[str]:
    report = json.loads(page(tree, "report.json"))
    (found,) = [one for one in report["operators"] if one["operator"] == operator]
    return sorted(row["title"] for row in found["devices"][0]["rows"] if row.get("rank"))


@pytest.mark.parametrize("cell", ["trace", "read", "none"])
def test_a_jsonl_file_without_records_is_an_ordinary_artifact(cells, cell):
    assert cells[f"tracing/events.md:{cell}"]["status"] == "ok"


def test_records_of_another_harness_keep_their_fields_and_are_not_recorded(tree):
    (file,) = tree.glob("site/benches/flash_attn/impls/**/flash_attn.jsonl")
    done = run_kbt(tree, "record")

    assert [json.loads(line)["notes"] for line in file.read_text().splitlines()] == [{"color": "blue"}] * 2
    assert "left out: benches/flash_attn/flash_attention: has records of another harness" in done.stderr
    assert "flash_attn" not in done.stdout


def test_records_of_another_harness_are_ranked_without_a_summary_file(tree):
    assert ranked(tree, "benches/activation") == ["Hf Kernels Swiglu", "Torch Eager"]
    assert "No summary" not in page(tree, "benches/activation/index.html")


def test_every_cell_of_a_notebook_with_several_is_ranked_and_shown_on_its_page(tree):
    names = ["Torch Flash Compiled Default", "Torch Flash Compiled Max", "Torch Flash Ma"]

    assert ranked(tree, "benches/flash_attn") == names
    assert page(tree, "benches/flash_attn/impls/compiled_variants.html").count("of 2 workloads passed") == 2


def test_a_median_without_quantiles_has_no_interval_and_no_verdict(tree):
    rows = json.loads(page(tree, "report.json"))["operators"][0]["devices"][0]["rows"]
    (point, _) = next(row for row in rows if row["title"] == "Torch Eager")["points"]

    assert point["p50_ms"] > 0
    assert {point[name] for name in ("p10_ms", "p90_ms", "ci_low_ms", "ci_high_ms", "speedup")} == {None}
    assert point["verdict"] == "none"


def test_a_results_folder_of_one_platform_belongs_to_the_operator(tree):
    assert "results_linux/combined_results.html" in page(tree, "benches/activation/index.html")


def test_html_that_is_shown_as_text_is_told_once_with_the_setting(tree):
    (line,) = [line for line in run_kbt(tree, "check", "benches").stderr.splitlines() if "raw_html" in line]

    assert line.startswith("note: benches/index.md: HTML in prose is shown as text.")


def test_what_failed_is_listed_with_its_reason(tree, cells):
    assert "RuntimeError: no Metal" in page(tree, "status.html")
    assert cells["activation/impls/darwin_swiglu.md:benchmark"]["status"] == "unsupported"
