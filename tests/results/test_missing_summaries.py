"""What a report shows of operators whose combine cells have not run."""

from pathlib import Path

from builds import build_of
from made_records import record

from kernels_bench_tools.notebooks.document import read_notebook
from kernels_bench_tools.notebooks.project import find_project
from kernels_bench_tools.records.build import NotebookRun
from kernels_bench_tools.records.codec import encode_record
from kernels_bench_tools.records.notebook import FrontMatter
from kernels_bench_tools.results import missing
from kernels_bench_tools.results.missing import missing_summaries
from kernels_bench_tools.run.build import describe_notebook
from kernels_bench_tools.run.cell import describe_cell

ROOT = Path(__file__).parents[2]


def test_committed_records_have_titles_baseline_and_speedups_before_any_cell_has_run():
    project = find_project(ROOT)
    notebooks = [
        describe_notebook(
            read_notebook(project, path), lambda _, cell: describe_cell(project, cell, None, False, {})
        )
        for path in project.notebook_paths()
        if path.parts[-3] == "layer_norm"
    ]

    view = missing_summaries(ROOT, build_of(*notebooks))["layer_norm"].devices[0]

    assert view.device.slug == "nvidia-h200"
    assert view.baseline == "torch_layer_norm"
    assert {row.implementation: row.title for row in view.rows}["torch_layer_norm"] == "PyTorch Layer Norm"
    assert view.rows[0].speedup > 1


def test_summaries_are_read_from_the_last_build_while_their_records_are_the_same(tmp_path, monkeypatch):
    path = tmp_path / "op/results/records/nvidia-h200/x.jsonl"
    path.parent.mkdir(parents=True)
    path.write_bytes(encode_record(record("x", 0.1, op="op")))
    build, stored = build_of(), tmp_path / "summaries.json"
    build.notebooks.append(NotebookRun(path="op/impls/x.md", digest="", front=FrontMatter(), blocks=[]))

    def found(program="1"):
        made = []
        make = missing._summary
        with monkeypatch.context() as patch:
            patch.setattr(missing, "_summary", lambda *given: made.append(1) or make(*given))
            return missing_summaries(tmp_path, build, stored, program), len(made)

    first, _ = found()
    assert first["op"].devices[0].rows[0].points[0].p50_ms == 0.1
    assert found() == (first, 0)
    assert found("2") == (first, 1)
    path.write_bytes(encode_record(record("x", 0.2, op="op")))  # as many bytes
    assert found("2")[0]["op"].devices[0].rows[0].points[0].p50_ms == 0.2
    path.write_bytes(encode_record(record("x", 0.25, op="op")))
    assert found("2")[0]["op"].devices[0].rows[0].points[0].p50_ms == 0.25
