"""When ``kbt run`` compares with committed records instead of running the baseline."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from builds import build_of, notebook_run
from devices import H200
from msgspec.structs import replace

from kernels_bench_tools.cli.run import CellResult, can_compare, committed_baselines
from kernels_bench_tools.notebooks.project import Project, find_project_of
from kernels_bench_tools.records.build import CellRun
from kernels_bench_tools.records.codec import read_committed
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.record import Record, Status
from kernels_bench_tools.results.sources import whole_record

ROOT = Path(__file__).parents[2]
BASELINE = "layer_norm/impls/torch_layer_norm.md"


@pytest.fixture
def project(tmp_path: Path) -> Project:
    """A copy of layer_norm, with its records of an H200."""
    shutil.copy(ROOT / "pyproject.toml", tmp_path)
    shutil.copytree(ROOT / "layer_norm", tmp_path / "layer_norm")
    return find_project_of([str(tmp_path)])


def candidate(project: Project) -> list[Record]:
    path = project.root / "layer_norm/results/records/nvidia-h200/triton_layer_norm.jsonl"
    return [record for record in read_committed(path, "layer_norm") if record.wl["set"] == "large"]


def is_compared(project: Project, records: Sequence[Record]) -> bool:
    return can_compare(records, committed_baselines(project, [BASELINE], H200).values())


def slower(record: Record) -> Record:
    times = {name: [1.1 * time for time in times] for name, times in record.sentinels.items()}
    return replace(record, sentinels=times)


@pytest.mark.parametrize(
    ("change", "compared"),
    [
        (lambda record: record, True),
        (lambda record: whole_record(record.impl, Status.ERROR, "it raised", H200), True),
        (slower, False),
        (lambda record: replace(record, env=replace(record.env, torch="2.0.0")), False),
        (lambda record: replace(record, wl={**record.wl, "hidden_dim": 1000}), False),
    ],
    ids=["as fast", "failed", "slower now", "another torch", "another size"],
)
def test_the_baseline_is_not_run_where_its_records_are_comparable(
    project: Project, change: Callable[[Record], Record], compared: bool
) -> None:
    assert is_compared(project, [change(record) for record in candidate(project)]) is compared


def test_its_committed_records_are_shown_where_a_former_build_has_its_notebook(project: Project) -> None:
    names = ("triton_layer_norm", "torch_layer_norm")
    cell = CellRun(id="benchmark", code="", line=1)
    entries = [notebook_run(f"layer_norm/impls/{name}.md", cell) for name in names]
    result = build_of(*entries)
    known = committed_baselines(project, [BASELINE], H200)
    one = CellResult(project, result, [BASELINE], known, entries[0], entries[0].cells[0])
    vars(one)["records"] = candidate(project)

    title, rows = one.comparisons

    assert title.endswith("(committed records)")
    assert rows
    assert all(row.speedup is not None and row.speedup > 1 for row in rows)


def test_the_baseline_is_run_after_its_code_was_changed(project: Project) -> None:
    path = project.root / BASELINE
    path.write_text(path.read_text().replace("import torch\n", "import torch\n\nchanged = True\n", 1))
    assert committed_baselines(project, [BASELINE], H200) == {}


def test_the_baseline_is_run_on_another_device_and_on_a_cpu(project: Project) -> None:
    other = replace(H200, slug="nvidia-h100")
    assert committed_baselines(project, [BASELINE], other) == {}
    processors = project.root / "layer_norm/results/records"
    for folder in processors.glob("amd-*"):
        assert committed_baselines(project, [BASELINE], Device(kind="cpu", name="", slug=folder.name)) == {}
