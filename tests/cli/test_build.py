"""The main job, end to end: notebooks in, report out."""

import csv
import json
import subprocess
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from kernels_bench_tools.records.device import current_device
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import Row, Summary

Build = Callable[..., subprocess.CompletedProcess[str]]
ARTIFACTS = Path("site/layer_norm/results/artifacts/combine")


def rows(project: Path) -> dict[str, Row]:
    """Rows of this machine's device, by implementation."""
    summary = msgspec.json.decode((project / ARTIFACTS / "summary.json").read_bytes(), type=Summary)
    device = next(entry for entry in summary.devices if entry.device.slug == current_device().slug)
    return {row.implementation: row for row in device.rows}


def add_implementation(project: Path, name: str, code: str, attributes: str = "") -> Path:
    path = project / "layer_norm" / "impls" / f"{name}.md"
    path.write_text(
        f"---\ntitle: {name}\n---\n\n```python id=benchmark outputs=layer_norm.jsonl {attributes}\n{code}\n```\n"
    )
    return path


def test_the_report_shows_every_implementation_and_why_one_is_unsupported(built: Path) -> None:
    shown, unsupported = rows(built), rows(built)["triton_layer_norm"]
    page = (built / "site" / "layer_norm" / "index.html").read_text()

    assert set(shown) == {path.stem for path in (built / "layer_norm" / "impls").glob("*.md")}
    assert shown["torch_layer_norm"].status is Status.OK
    assert shown["torch_layer_norm"].speedup == pytest.approx(1.0)
    if current_device().kind != "cuda":
        assert unsupported.status is Status.UNSUPPORTED
        assert "CUDA" in unsupported.reason
        assert unsupported.reason in page
        assert f"series--{unsupported.slug}" in page


def test_a_second_build_runs_nothing_and_touches_no_file(project: Path, build: Build) -> None:
    def written() -> dict[Path, int]:
        return {path: path.stat().st_mtime_ns for path in (project / "site").rglob("*") if path.is_file()}

    before = written()
    cells = json.loads(build("--json").stdout)["cells"]

    assert all(cell["cached"] or cell["exit_code"] is None for cell in cells)
    assert written() == before


GOOD = """
import torch
from kernels_bench_tools import run_benchmark

def candidate(x, weight, bias):
    {body}

run_benchmark("layer_norm", candidate)
{after}
"""


GARBAGE = (
    "import os; os.write(1, bytes(range(256)) * 9)\nopen('layer_norm.jsonl', 'wb').write(b'\\xff\\x00{')"
)
LAYER_NORM = "return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias)"
KILL = "import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
BROKEN = {
    "raises": ("raise ValueError('no such kernel')", Status.ERROR, "no such kernel"),
    "hangs": ("import time; time.sleep(60)", Status.TIMEOUT, "1 s"),
    "prints_garbage": (GARBAGE, Status.INVALID, ""),
    "is_wrong": (GOOD.format(body="return x", after=""), Status.INCORRECT, ""),
}


def test_a_new_implementation_is_one_new_file_and_a_broken_one_costs_nothing_else(
    project: Path, build: Build, kbt: Build
) -> None:
    files = {path: path.read_bytes() for path in (project / "layer_norm").rglob("*.md")}
    before = rows(project)
    made = kbt("new", "implementation", "layer_norm/mine")
    path = project / "layer_norm" / "impls" / "mine.md"
    path.write_text(path.read_text().replace('title: "Mine"', 'title: "My <kernel>"'))
    for name, (code, _, _) in BROKEN.items():
        add_implementation(project, name, code, "timeout=1" if name == "hangs" else "")
    add_implementation(project, "killed_late", GOOD.format(body=LAYER_NORM, after=KILL))

    done = build()

    assert (made.returncode, done.returncode) == (0, 1), made.stderr + done.stderr
    assert "Traceback" not in done.stderr
    assert {path: path.read_bytes() for path in files} == files
    after = rows(project)
    mine = after["mine"]
    assert mine.status is Status.OK
    assert mine.speedup is not None
    assert f"series--{mine.slug}" in (project / ARTIFACTS / "latency.svg").read_text()
    with (project / ARTIFACTS / "latency.csv").open(newline="") as file:
        assert "mine" in {line["Impl ID"] for line in csv.DictReader(file)}
    assert "My &lt;kernel&gt;" in (project / "site" / "layer_norm" / "index.html").read_text()
    assert (project / "site" / "layer_norm" / "impls" / "mine.html").is_file()
    for name, (_, status, reason) in BROKEN.items():
        assert after[name].status is status
        assert reason in after[name].reason
        assert after[name].rank is None
        assert after[name].speedup is None
        page = (project / "site" / "layer_norm" / "impls" / f"{name}.html").read_text()
        assert status.value in page
    assert {key: after[key].points for key in before} == {key: row.points for key, row in before.items()}
    # Records written before the process was killed are kept.
    assert {point.status for point in after["killed_late"].points} == {Status.OK}


def test_a_notebook_with_a_mistake_is_a_failure_of_the_report_and_of_the_exit_code(
    project: Path, build: Build
) -> None:
    wrong = add_implementation(project, "wrong", "1")
    wrong.write_text(wrong.read_text().removesuffix("```\n"))

    done = build("--json")

    problem = "layer_norm/impls/wrong.md:5: this fence is never closed. End it with a line ```."
    assert (done.returncode, json.loads(done.stdout)["left_out"]) == (1, [problem])
    assert f"left out: {problem}" in done.stderr
    assert "wrong.html" not in done.stderr
    assert problem in (project / "site/status.html").read_text()
    assert rows(project)["wrong"].status is Status.INVALID
    assert rows(project)["torch_layer_norm"].status is Status.OK
