"""The main job, end to end: notebooks in, report out."""

import csv
import json
from pathlib import Path

import msgspec
import pytest
from projects import Kbt, run_kbt

from kernels_bench_tools.records.device import current_device
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import Row, Summary

ARTIFACTS = Path("site/layer_norm/results/artifacts/combine")


def rows(project: Path) -> dict[str, Row]:
    """Rows of this machine's device, by implementation."""
    summary = msgspec.json.decode((project / ARTIFACTS / "summary.json").read_bytes(), type=Summary)
    device = next(entry for entry in summary.devices if entry.device.slug == current_device().slug)
    return {row.implementation: row for row in device.rows}


def was_measured(row: Row) -> bool:
    """Return whether a row is correct, and has a speed-up unless the machine was busy."""
    return row.status is Status.DISTURBED or (row.status is Status.OK and row.speedup is not None)


def test_the_report_shows_every_implementation_and_why_one_is_unsupported(built: Path) -> None:
    shown, unsupported = rows(built), rows(built)["triton_layer_norm"]
    page = (built / "site" / "layer_norm" / "index.html").read_text()

    assert set(shown) == {path.stem for path in (built / "layer_norm" / "impls").glob("*.md")}
    assert was_measured(shown["torch_layer_norm"])
    assert shown["torch_layer_norm"].speedup in (None, pytest.approx(1.0))
    if current_device().kind != "cuda":
        assert unsupported.status is Status.UNSUPPORTED
        assert "CUDA" in unsupported.reason
        assert unsupported.reason in page
        assert f"series--{unsupported.slug}" in page


def test_a_second_build_runs_nothing_and_touches_no_file(project: Path, build: Kbt) -> None:
    def written() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (project / "site").rglob("*") if path.is_file()}

    before = written()
    cells = json.loads(build("--json").stdout)["cells"]

    assert all(cell["cached"] or cell["exit_code"] is None for cell in cells)
    assert written() == before


WRONG = (
    "from kernels_bench_tools import run_benchmark\nrun_benchmark('layer_norm', lambda x, weight, bias: x)"
)
GARBAGE = (
    "import os; os.write(1, bytes(range(256)) * 9)\nopen('layer_norm.jsonl', 'wb').write(b'\\xff\\x00{')"
)
BROKEN = {
    "raises": ("raise ValueError('no such kernel')", Status.ERROR, "no such kernel"),
    "hangs": ("import time; time.sleep(60)", Status.TIMEOUT, "1 s"),
    "prints_garbage": (GARBAGE, Status.INVALID, ""),
    "is_wrong": (WRONG, Status.INCORRECT, ""),
}


def test_an_implementation_is_one_file_and_costs_no_other(project: Path, build: Kbt) -> None:
    impls, pages = project / "layer_norm" / "impls", project / "site" / "layer_norm"
    files = {path: path.read_bytes() for path in (project / "layer_norm").rglob("*.md")}
    before = rows(project)
    made = run_kbt(project, "new", "implementation", "layer_norm/mine")
    path = impls / "mine.md"
    path.write_text(path.read_text().replace('title: "Mine"', 'title: "My <kernel>"'))
    for name, (code, _, _) in BROKEN.items():
        timeout = " timeout=1" if name == "hangs" else ""
        cell = f"```python id=benchmark outputs=layer_norm.jsonl{timeout}\n{code}\n```\n"
        (impls / f"{name}.md").write_text(f"---\ntitle: {name}\n---\n\n{cell}")
    (impls / "unclosed.md").write_text(
        "---\ntitle: x\n---\n\n```python id=benchmark outputs=layer_norm.jsonl\n1\n"
    )

    done = build("--json")

    assert (made.returncode, done.returncode) == (0, 1), made.stderr + done.stderr
    assert "Traceback" not in done.stderr
    assert {path: path.read_bytes() for path in files} == files
    after = rows(project)
    mine = after["mine"]
    assert was_measured(mine)
    assert f"series--{mine.slug}" in (project / ARTIFACTS / "latency.svg").read_text()
    with (project / ARTIFACTS / "latency.csv").open(newline="") as file:
        assert "mine" in {line["Impl ID"] for line in csv.DictReader(file)}
    assert "My &lt;kernel&gt;" in (pages / "index.html").read_text()
    assert (pages / "impls" / "mine.html").is_file()
    for name, (_, status, reason) in BROKEN.items():
        assert after[name].status is status
        assert reason in after[name].reason
        assert after[name].rank is after[name].speedup is None
        assert status.value in (pages / "impls" / f"{name}.html").read_text()
    assert {key: after[key].points for key in before} == {key: row.points for key, row in before.items()}
    # A notebook that cannot be read is left out, and is a failure of the report.
    (problem,) = json.loads(done.stdout)["left_out"]
    assert problem.startswith("layer_norm/impls/unclosed.md:5: this fence is never closed.")
    assert f"left out: {problem}" in done.stderr
    assert "unclosed.html" not in done.stderr
    assert problem in (project / "site/status.html").read_text()
    assert after["unclosed"].status is Status.INVALID
