"""The report of this repository, made from the records that are committed: nothing is measured."""

import io
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace
from projects import once_per_run

from kernels_bench_tools.chart import figure
from kernels_bench_tools.file_io import write_struct
from kernels_bench_tools.notebooks.document import read_notebook
from kernels_bench_tools.notebooks.project import find_project
from kernels_bench_tools.records.build import BuildRun, NotebookRun, ProjectInfo
from kernels_bench_tools.records.committed import effect_files
from kernels_bench_tools.records.device import cuda_device
from kernels_bench_tools.records.notebook import FrontMatter
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.request import NEEDS_VARIABLE, Need, Needs
from kernels_bench_tools.records.summary import DeviceSummary, Summary
from kernels_bench_tools.report.site import publish
from kernels_bench_tools.results.effects import Effects
from kernels_bench_tools.results.metrics import LATENCY
from kernels_bench_tools.run.build import describe_notebook
from kernels_bench_tools.run.cell import describe_cell

ROOT = Path(__file__).resolve().parents[2]
OPERATORS = sorted({folder.parents[2].name for folder in ROOT.glob("*/results/records/*/")})
_COMBINED = "results/combined_results.md"
_H200 = cuda_device("NVIDIA H200")


def committed_site(factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the report, made once per test run."""
    return once_per_run(factory, "committed", write_site) / "site"


def write_site(folder: Path) -> Path:
    """Write the report below ``folder``, as a build does whose cells left these records; return its folder."""
    project = find_project(ROOT)
    notebooks = [read_notebook(project, path) for path in project.notebook_paths()]
    runs = [
        describe_notebook(one, lambda _, cell: describe_cell(project, cell, None, False, {}))
        for one in notebooks
    ]
    fronts = {run.path: run.front for run in runs}
    for run in runs:
        operator, _, rest = run.path.partition("/")
        if rest == _COMBINED:
            _run_combine(run, fronts, folder / "made" / operator)
    combined = {
        run.path: folder / "made" / run.path.partition("/")[0]
        for run in runs
        if run.cells[0:1] and run.cells[0].artifacts
    }
    for run in runs:
        if run.path.startswith("suites/"):
            cells = [
                Need(notebook=path, cell="combine", front=fronts[path], status=Status.OK, directory=str(made))
                for path, made in combined.items()
            ]
            _run(run, folder / "suites", cells)
    build = BuildRun(
        project=ProjectInfo(
            title="Kernels Community Benchmarks",
            repository="https://example.org/kernels",
            raw_html=project.raw_html,
        ),
        device=_H200,
        environment="uv",
        notebooks=runs,
    )
    publish(ROOT, build, folder / "site", effects=Effects(ROOT, effect_files(ROOT)))
    return folder / "site"


def _run_combine(run: NotebookRun, fronts: Mapping[str, FrontMatter], folder: Path) -> None:
    """Run an operator's combine cell in ``folder``, on committed records alone."""
    cells = list(_cells(run.path.partition("/")[0], fronts, folder.parent / "cells"))
    others = [
        str(file)
        for file in sorted((ROOT / folder.name).glob("results/records/*/*.jsonl"))
        if file.parent.name != _H200.slug
    ]
    _run(run, folder, cells, others)


def _run(run: NotebookRun, folder: Path, cells: Sequence[Need], files: Sequence[str] = ()) -> None:
    """Run the first cell of a notebook in ``folder``; put what it left into its run."""
    folder.mkdir(parents=True)
    needs = folder.parent / f"{folder.name}.json"
    write_struct(
        needs, Needs(project=str(ROOT), notebook=run.path, device=_H200, cells=list(cells), files=list(files))
    )
    cell = run.cells[0]
    draw, shows = figure.chart_svg, figure.shows

    def latencies_only(summary: Summary, chart: str, *rest: Any) -> bytes:
        # Pages show this one, and the others if a reader asks. Drawing all of them takes a minute.
        return draw(summary if chart == LATENCY.chart else replace(summary, devices=[]), chart, *rest)

    def first_only(view: DeviceSummary, chart: str) -> bool:
        # The file of latencies has those of other metrics, too. Tests look at those of activations.
        return shows(view, chart) and (chart == LATENCY.chart or not view.key or folder.name == "activation")

    with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()):
        patch.setenv(NEEDS_VARIABLE, str(needs))
        patch.chdir(folder)
        patch.setattr(figure, "chart_svg", latencies_only)
        patch.setattr(figure, "shows", first_only)
        exec(compile(cell.code, run.path, "exec"), {"__name__": "cell"})
    cell.status = Status.OK
    cell.artifacts = {path.name: os.path.relpath(path, ROOT) for path in sorted(folder.iterdir())}


def _cells(operator: str, fronts: Mapping[str, FrontMatter], folder: Path) -> Iterator[Need]:
    """Yield a cell for each implementation with records of the H200, which left them."""
    for path, front in fronts.items():
        if not path.startswith(f"{operator}/impls/"):
            continue
        file = ROOT / operator / "results" / "records" / _H200.slug / f"{Path(path).stem}.jsonl"
        left = folder / path
        left.mkdir(parents=True)
        if file.exists():
            shutil.copyfile(file, left / f"{operator}.jsonl")
            yield Need(notebook=path, cell="benchmark", front=front, status=Status.OK, directory=str(left))
