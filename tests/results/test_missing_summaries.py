"""What a report shows of operators whose combine cells have not run."""

from pathlib import Path

from builds import build_of

from kernels_bench_tools.notebooks.document import read_notebook
from kernels_bench_tools.notebooks.project import find_project
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
