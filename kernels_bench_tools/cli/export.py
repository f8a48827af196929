"""``kbt export``: the times of a report in the formats of other dashboards."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from kernels_bench_tools.cli.output import print_json
from kernels_bench_tools.results.changes import read_report
from kernels_bench_tools.results.export import bencher_metrics, pytorch_metrics


def export(
    form: Annotated[Literal["bencher", "pytorch"], typer.Argument(metavar="FORMAT")],
    report: Annotated[Path, typer.Argument()] = Path("site/report.json"),
) -> None:
    """Print the correct times of a report as JSON of another dashboard.

    Args:
        form: `bencher` for Bencher's metric format (`bencher run --adapter json --file`), `pytorch` for the benchmark database
            of PyTorch.
        report (FILE): The report.json of a build.
    """
    found = read_report(report)
    print_json(bencher_metrics(found) if form == "bencher" else pytorch_metrics(found))
