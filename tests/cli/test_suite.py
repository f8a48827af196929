"""``kbt suite`` on a project with one operator, for real."""

import csv
import json
from pathlib import Path

import pytest
from projects import ROOT, copy_built, run_kbt

DEFINITION = """
title = "One kernel"
workloads = "smoke"
ours = "triton"

[[kernel]]
name = "LayerNorm (S=32)"
operator = "layer_norm"
workload = "smoke_S32_D256"

[[kernel]]
name = "LayerNorm (S=64)"
operator = "layer_norm"
workload = "smoke_S64_D256"
"""


@pytest.fixture(scope="module")
def project(built: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A built copy of this project with a suite of layer normalization on the smoke workload."""
    folder = copy_built(built, tmp_path_factory.mktemp("suite") / "project")
    (folder / "suites").mkdir()
    (folder / "suites" / "one.toml").write_text(DEFINITION)
    notebook = (ROOT / "suites" / "trainscale.md").read_text(encoding="utf-8")
    header = notebook[notebook.index("# /// script") : notebook.index("from kernels_bench_tools")]
    needs = "needs=../layer_norm/results/combined_results.md:combine,./one.toml"
    (folder / "suites" / "one.md").write_text(
        "![artifact:report.csv]\n\n"
        f"```python id=report {needs} outputs=report.csv,report.md,suite.json\n{header}"
        'from kernels_bench_tools import report_suite\n\nreport_suite("one.toml")\n```\n',
        encoding="utf-8",
    )
    return folder


@pytest.fixture(scope="module")
def measured(project: Path) -> str:
    """What ``kbt suite one --device cpu`` printed."""
    done = run_kbt(project, "suite", "one", "--device", "cpu", "--env", "current")
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_table_lists_unsupported_kernels_with_the_reason(measured: str) -> None:
    lines = measured.splitlines()
    assert "FINAL BENCHMARK REPORT" in lines[1]
    row = next(line for line in lines if "LayerNorm (S=32)" in line)
    _, _, base = row.partition("–")
    assert 0 < float(base.split()[0]) < 1000 if base else "disturbed" in measured  # on a busy machine
    # The reason goes on below its row.
    assert "needs a CUDA device" in " ".join(measured.split())
    assert "not measured" in next(line for line in lines if "LayerNorm (S=64)" in line)


def test_it_publishes_a_page_markdown_and_csv(measured: str, project: Path) -> None:
    page = project / "site" / "suites" / "one.html"
    assert measured.splitlines()[-1] == "site/suites/one.html"
    assert "LayerNorm (S=32)" in page.read_text(encoding="utf-8")
    files = {path.name: path for path in (project / "site" / "suites").rglob("*") if path.is_file()}
    assert "| LayerNorm (S=32) |" in files["report.md"].read_text(encoding="utf-8")
    rows = list(csv.DictReader(files["report.csv"].read_text(encoding="utf-8").splitlines()))
    assert {row["Kernel"] for row in rows} == {"LayerNorm (S=32)", "LayerNorm (S=64)"}


@pytest.mark.usefixtures("measured")
def test_a_second_run_runs_nothing_and_prints_json(project: Path) -> None:
    done = run_kbt(project, "suite", "one", "--device", "cpu", "--env", "current", "--json")

    assert done.returncode == 0
    report = json.loads(done.stdout)
    assert [row["Kernel"] for row in report["rows"]] == ["LayerNorm (S=32)", "LayerNorm (S=64)"]
    again = run_kbt(project, "suite", "one", "--device", "cpu", "--env", "current", "--full")
    assert "\n0 cells ran," in again.stdout
    assert "note: --full has no effect where there are no smaller shapes\n" in again.stderr
