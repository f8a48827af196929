import csv
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest
from devices import EPYC, H200
from made_records import rows_of, source

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.file_io import read_struct, write_struct
from kernels_bench_tools.records.codec import write_records
from kernels_bench_tools.records.notebook import FrontMatter
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.request import NEEDS_VARIABLE, Need, Needs
from kernels_bench_tools.records.summary import Summary
from kernels_bench_tools.results.combine import combine


class Cell:
    """A combine cell's surroundings: a folder to work in, and needs that can be added."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root = root
        self.needs = Needs(project=str(root), notebook="layer_norm/results/combined_results.md", device=EPYC)
        self.work = root / "work"
        self.work.mkdir()
        monkeypatch.chdir(self.work)
        monkeypatch.setenv(NEEDS_VARIABLE, str(root / "needs.json"))

    def need(self, stem, records=(), status=Status.OK, reason="", **front):
        directory = self.root / "cells" / stem
        directory.mkdir(parents=True)
        if records:
            write_records(directory / "layer_norm.jsonl", records)
        need = Need(
            notebook=f"layer_norm/impls/{stem}.md",
            cell="benchmark",
            front=FrontMatter(**front),
            status=status,
            reason=reason,
            directory=str(directory),
        )
        self.needs.cells.append(need)
        return directory

    def file(self, name, records):
        path = self.root / "layer_norm" / "results" / "records" / name
        write_records(path, records)
        self.needs.files.append(str(path))
        return path

    def run(self, **options) -> Summary:
        write_struct(self.root / "needs.json", self.needs)
        return combine(**options)


@pytest.fixture
def cell(tmp_path, monkeypatch) -> Cell:
    return Cell(tmp_path, monkeypatch)


def test_it_writes_charts_a_table_and_a_summary(cell, capsys):
    cell.need("torch_layer_norm", source("torch_layer_norm", [4.1, 8.2], device=EPYC).records, baseline=True)
    cell.file("nvidia-h200/torch_layer_norm.jsonl", source("torch_layer_norm", [0.1, 0.2]).records)

    summary = cell.run()

    charts = ["fraction.svg", "latency.svg", "rate.svg", "speedup.svg"]
    assert sorted(path.name for path in cell.work.iterdir()) == sorted(
        [*charts, "latency.csv", "summary.json"]
    )
    assert read_struct(cell.work / "summary.json", Summary) == summary
    assert (summary.operator, summary.title) == ("layer_norm", "Layer Norm")
    assert [device.device.slug for device in summary.devices] == ["nvidia-h200", "amd-epyc-2-cores"]
    assert [device.baseline for device in summary.devices] == ["torch_layer_norm"] * 2
    with (cell.work / "latency.csv").open(newline="") as file:
        assert len(list(csv.DictReader(file))) == 4
    out = capsys.readouterr().out
    assert "NVIDIA H200: 2 workloads" in out
    assert str(cell.root) not in out


def test_a_cell_without_records_is_a_row_with_its_status(cell):
    cell.need("good", source("good", [1.0], device=EPYC).records)
    cell.need("slow", status=Status.TIMEOUT, reason="timed out after 900 s")
    cell.need("silent")

    rows = rows_of(cell.run())

    assert (rows["slow"].status, rows["slow"].reason) == (Status.TIMEOUT, "timed out after 900 s")
    assert (rows["silent"].status, rows["silent"].reason) == (Status.INVALID, "wrote no records")
    assert rows["slow"].points[0].status is Status.TIMEOUT


def test_a_failed_cell_keeps_its_earlier_records(cell):
    cell.need("good", source("good", [1.0, 2.0], device=EPYC).records)
    partial = source("partial", [1.0], device=EPYC).records
    cell.need("partial", partial, status=Status.CRASHED, reason="ended by SIGSEGV")

    row = rows_of(cell.run())["partial"]

    assert [point.status for point in row.points] == [Status.OK, Status.CRASHED]
    assert (row.status, row.reason, row.passed) == (Status.CRASHED, "ended by SIGSEGV", 1)


def test_a_process_that_failed_keeps_its_reason(cell):
    good, failed = source("mixed", [1.0], device=EPYC).records, source("mixed", device=EPYC).records
    records = [*failed, msgspec.structs.replace(good[0], process=1)]
    cell.need("mixed", records, status=Status.ERROR, reason="exit code 1")

    (point,) = rows_of(cell.run())["mixed"].points

    assert (point.status, point.processes) == (Status.ERROR, 2)
    assert point.reason.startswith("RuntimeError: it broke")


def test_an_unreadable_file_is_reported_and_the_others_are_summarized(cell, capsys):
    good = source("good", [0.1]).records
    cell.file("nvidia-h200/good.jsonl", good)
    cell.file("nvidia-h200/bad.jsonl", good).write_text('{"nonsense": 1}\n{}\n', encoding="utf-8")
    directory = cell.need("garbage")
    (directory / "layer_norm.jsonl").write_text("not json\nat all\n", encoding="utf-8")

    summary = cell.run()

    out = capsys.readouterr().out
    assert "Skipped: layer_norm/results/records/nvidia-h200/bad.jsonl:1: is not a record" in out
    assert "Skipped: layer_norm/impls/garbage.md layer_norm.jsonl:1: is not a record" in out
    assert rows_of(summary)["good"].rank == 1
    garbage = rows_of(summary, 1)["garbage"]
    assert garbage.status is Status.INVALID
    assert "is not a record" in garbage.reason


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"impl": "torch"}, "of implementation 'torch', expected 'mine'"),
        ({"op": "rotary"}, "of operator 'rotary', expected 'layer_norm'"),
        ({"device": H200}, "of device 'nvidia-h200', expected 'amd-epyc-2-cores'"),
    ],
)
def test_a_record_of_something_else_than_its_cell_has_no_row(cell, capsys, changes, said):
    cell.need("torch", source("torch", [1.0, 2.0], device=EPYC).records, baseline=True)
    forged = source("mine", [1e-6, 1e-6], device=EPYC).records
    cell.need("mine", [msgspec.structs.replace(record, **changes) for record in forged])

    summary = cell.run()

    rows = rows_of(summary)
    assert [device.device.slug for device in summary.devices] == ["amd-epyc-2-cores"]
    assert (rows["torch"].rank, rows["torch"].points[0].p50_ms) == (1, 1.0)
    assert (rows["mine"].rank, rows["mine"].status) == (None, Status.INVALID)
    assert said in rows["mine"].reason
    assert (
        f"Skipped: layer_norm/impls/mine.md layer_norm.jsonl:1: is a record {said}" in capsys.readouterr().out
    )


def test_only_implementations_with_a_notebook_are_links(cell):
    cell.need("mine", source("mine", [0.1], device=EPYC).records)
    cell.file("nvidia-h200/gone.jsonl", source("gone", [0.2]).records)

    cell.run()

    svg = (cell.work / "latency.svg").read_text(encoding="utf-8")
    assert 'href="../impls/mine.html"' in svg
    assert "gone.html" not in svg


def test_notebooks_of_the_same_name_in_two_folders_are_refused(cell):
    cell.need("fast")
    copy = msgspec.structs.replace(cell.needs.cells[0], notebook="contrib/layer_norm/impls/fast.md")
    cell.needs.cells.append(copy)

    with pytest.raises(
        KbtError, match=r"same name: layer_norm/impls/fast.md, contrib/layer_norm/impls/fast.md"
    ):
        cell.run()


def test_outside_of_kbt_the_error_names_the_command(monkeypatch):
    monkeypatch.delenv(NEEDS_VARIABLE, raising=False)

    with pytest.raises(KbtError, match=r"combine: KBT_NEEDS is not set.*kbt build"):
        combine()


def test_the_combine_cell_runs_with_the_dependencies_of_its_header(cell):
    cell.need("torch_layer_norm", source("torch_layer_norm", [0.1], device=EPYC).records, baseline=True)
    write_struct(cell.root / "needs.json", cell.needs)
    repository = Path(__file__).resolve().parents[2]
    notebook = repository / "layer_norm" / "results" / "combined_results.md"
    code = notebook.read_text(encoding="utf-8").split("```python", 1)[1].partition("\n")[2].split("```")[0]
    heavy = ("torch", "triton", "kernels", "uvnote", "jinja2", "typer", "rich", "psutil", "yaml")
    blocked = f"import sys; sys.modules.update(dict.fromkeys({heavy!r}))\n"

    done = subprocess.run(
        [sys.executable, "-c", blocked + code],
        cwd=cell.work,
        env=os.environ | {"PYTHONPATH": str(repository), "MPLCONFIGDIR": str(cell.root / "mpl")},
        capture_output=True,
        text=True,
        check=False,
    )

    assert (done.returncode, done.stderr) == (0, "")
    assert "Torch Layer Norm" in done.stdout
    summary = msgspec.json.decode((cell.work / "summary.json").read_bytes(), type=Summary)
    assert summary.operator == "layer_norm"
