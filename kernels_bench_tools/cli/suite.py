"""``kbt suite``: measure kernels of several operators and compare them with baselines in one table."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Annotated, Literal

import msgspec
import typer
from msgspec import structs

from kernels_bench_tools.cli import USER_MISTAKE
from kernels_bench_tools.cli import options as opt
from kernels_bench_tools.cli.build import build_report, print_build_failures
from kernels_bench_tools.cli.build_options import takes_build_options
from kernels_bench_tools.cli.output import (
    note_unused,
    print_json,
    short_path,
    summarize_build,
    terminal_width,
)
from kernels_bench_tools.errors import ProjectError, SuiteError
from kernels_bench_tools.file_io import read_file
from kernels_bench_tools.notebooks.project import find_project
from kernels_bench_tools.records.device import current_device
from kernels_bench_tools.results.suite import REPORT, SuiteReport, read_suite, report_text
from kernels_bench_tools.run.options import BuildOptions
from kernels_bench_tools.text.hiding import visible
from kernels_bench_tools.text.words import did_you_mean

FOLDER = "suites"


@takes_build_options("env rerun retry_failed jobs processes cluster memory_limit pass_env")
def suite(
    name: Annotated[str, typer.Argument()],
    device: Literal["cuda", "cpu"] | None = None,
    full: bool = False,
    *,
    options: BuildOptions,
    strict: opt.Strict = False,
    output: opt.Output = None,
    json: opt.Json = False,
) -> int:
    """Measure a suite of operators and print one table.

    Measures every implementation of the suite's operators on the suite's workloads, which are smaller on a CPU. The table
    is also published with the report as a page, Markdown and CSV. Failures are listed with their reasons. Results of
    earlier builds are reused.

    Args:
        name (SUITE): Name of a file in suites/, such as `trainscale`.
        device: Device to measure on. [default: the GPU if there is one]
        full: Use the full shapes on a CPU, too, which takes hours.
    """
    project = find_project()
    known = sorted(path.stem for path in (project.root / FOLDER).glob("*.toml"))
    if name not in known:
        hint = f"Known suites: {', '.join(known)}" if known else f"A suite is a file {FOLDER}/NAME.toml"
        raise SuiteError(name, "there is no such suite", "", did_you_mean(name, known, hint))
    chosen = read_suite(project.root / FOLDER / f"{name}.toml")
    where = f"--device {device}"
    if device and options.executor:
        raise ProjectError(where, "cannot be used with --cluster", "", "The workers' devices are used")
    if device == "cpu":
        os.environ["CUDA_VISIBLE_DEVICES"] = ""  # of this process and its children
    elif device and current_device().kind != device:
        raise ProjectError(where, "there is no such device here", "", "Use `--device cpu`")
    kind = "cuda" if options.executor else current_device().kind
    preferred = chosen.rows_by_set(kind)[0][0]
    note_unused({"--full": full and preferred == chosen.workloads}, "where there are no smaller shapes")
    request = structs.replace(options.request, workloads=chosen.workloads if full else preferred)
    options = replace(options, request=request)
    notebook = f"{FOLDER}/{name}.md"
    targets = [*(f"{operator}/impls" for operator in chosen.operators), notebook]
    result, published = build_report(project, targets, options, output)
    cells = [cell for entry in result.notebooks if entry.path == notebook for cell in entry.cells]
    written = [cell.artifacts[REPORT] for cell in cells if REPORT in cell.artifacts]
    code = print_build_failures(result, published, strict=strict)
    if not written:
        reason = next((cell.reason for cell in cells if cell.reason), f"none of its cells wrote {REPORT}")
        remedy = f"Run `kbt run {notebook}` for details"
        error = SuiteError(notebook, reason, "A cell that calls report_suite()", remedy)
        print(f"kbt: {error}", file=sys.stderr)
        return code or USER_MISTAKE
    report = msgspec.json.decode(read_file(project.root / written[0]), type=SuiteReport)
    report.rows = [row for row in report.rows if row["Device"] == result.device.name]
    if json:
        print_json(report)
    else:
        print(visible(report_text(report, terminal_width())))
        print(summarize_build(result))
        print(short_path(published.index.parent / FOLDER / f"{name}.html"))
    return code
