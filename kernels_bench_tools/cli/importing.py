"""``kbt import``: measure what is written for other harnesses with this one's timer and judge."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
import typer

from kernels_bench_tools.cli import FAILURE
from kernels_bench_tools.cli.options import Json
from kernels_bench_tools.cli.output import note, print_json, terminal_width
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import read_file, update_file, write_struct
from kernels_bench_tools.own_folders import temporary_folder
from kernels_bench_tools.own_process import PYTHON, module_variables
from kernels_bench_tools.records.build import CONTEXT_VARIABLE, CellContext, code_digest
from kernels_bench_tools.records.codec import ignore, read_records, write_records
from kernels_bench_tools.records.device import current_device
from kernels_bench_tools.records.problem import REFERENCE, ProblemRequest
from kernels_bench_tools.records.record import Provenance, Record, Status
from kernels_bench_tools.results.metrics import speedup_with_interval
from kernels_bench_tools.results.problems import ProblemRow, hf_payload, problem_row, scores
from kernels_bench_tools.results.sources import whole_record
from kernels_bench_tools.run.process.run import Exit, Processes, Stop
from kernels_bench_tools.text import milliseconds, plural, slugify, table, visible

importing = typer.Typer(
    no_args_is_help=True, help="Measure files that are written for other harnesses, as they are."
)
_MODULE = "kernels_bench_tools.measure.modules"
_NEW = "class ModelNew"


class _Pair(NamedTuple):
    problem: str
    candidate: str
    reference: Path
    file: Path | None
    """With ``ModelNew``; None if only the reference is timed, or a kernel instead of a file."""
    kernel: str = ""

    @property
    def digest(self) -> str:
        """Of the code of both files."""
        files = [path for path in (self.reference, self.file) if path]
        return code_digest(
            self.kernel + "\n".join(read_file(path).decode(errors="replace") for path in files)
        )


@importing.command("kernelbench")
def import_kernelbench(
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    candidates: Path | None = None,
    output: Annotated[Path, typer.Option("--output", "-o")] = Path("kernelbench"),
    processes: Annotated[int, typer.Option(min=1)] = 1,
    timeout: Annotated[float, typer.Option(min=1)] = 300,
    json: Json = False,
) -> int:
    """Judge and time candidates for problems of KernelBench, and print fast_p.

    A problem is a file with `Model`, `get_inputs` and `get_init_inputs`, a candidate's file has `ModelNew`. Both get the
    same weights and inputs, which are drawn anew for each check and each timed call. Each candidate is measured in a
    process of its own, after the reference, by the Python that runs kbt. Finished ones are kept in the folder of records:
    run the same command again to continue.

    Examples: `kbt import kernelbench KernelBench/level1 --candidates runs/mine`; 1_relu.py there is for 1_relu.py here.

    Args:
        folder (DIR): Files of problems, also in folders below.
        candidates (DIR): Files with `ModelNew`, at the same path as the problem's; or a folder of such files for each of
            several candidates. [default: `ModelNew` in the problems' own files]
        output (FOLDER): Folder of the records. [default: kernelbench]
        processes (N): Processes of each candidate. A verdict needs three; with fewer there is a speed-up only.
        timeout (SECONDS): For one process, in which the reference and the candidate are measured.
    """
    pairs = find_pairs(folder, candidates)
    rows = _measure_all(pairs, output, processes, timeout)
    _print_rows(rows, json=json)
    return 0 if all(row.result.status.passed for row in rows) else FAILURE


@importing.command("hf")
def import_hf(
    path: Annotated[Path, typer.Argument(metavar="PATH")],
    kernel: str = "",
    output: Annotated[Path, typer.Option("--output", "-o")] = Path("hf-benchmarks"),
    payload: Path | None = None,
    processes: Annotated[int, typer.Option(min=1)] = 1,
    timeout: Annotated[float, typer.Option(min=1)] = 300,
    json: Json = False,
) -> int:
    """Judge and time the benchmarks of `kernels benchmark`.

    They are classes derived from `kernels.benchmark.Benchmark`, with `setup`, `benchmark_x` and `verify_x`. What `verify_x`
    returns is the truth, within 0.01, and the baseline, timed in the same process. `setup` runs anew before each timed
    call, with another seed, so that results which were kept are wrong. Finished workloads are kept, as of `kernelbench`.

    Examples: `kbt import hf ./my_kernel`; `kbt import hf benchmarks/benchmark.py --kernel kernels-community/relu@1`.

    Args:
        path (PATH): A file, or the folder of a kernel with benchmarks/benchmark*.py.
        kernel (REFERENCE): Of the Hub, such as kernels-community/relu@1, or a folder. [default: the folder above benchmarks/]
        output (FOLDER): Folder of the records. [default: hf-benchmarks]
        payload (FILE): Write what `kernels benchmark --output` writes, with the time of the reference.
        processes (N): Processes of each workload. A verdict needs three.
        timeout (SECONDS): For one process, in which the reference and the kernel are measured.
    """
    files = sorted(path.glob("benchmarks/benchmark*.py")) if path.is_dir() else [path]
    if not files or not files[0].is_file():
        raise ProjectError(str(path), "has no benchmarks/benchmark*.py", "A kernel's folder, or such a file")
    chosen = kernel or str(files[0].resolve().parents[1])
    reference = str(Path(chosen).resolve()) if Path(chosen).is_dir() else chosen
    name = slugify(chosen.rpartition("/")[2].partition("@")[0]) or "kernel"
    pairs = [
        _Pair(workload, name, file, None, reference)
        for file in files
        for workload in _workloads(file, reference, timeout)
    ]
    rows = _measure_all(pairs, output, processes, timeout)
    if payload:
        records = {row.problem: read_records(output / name / f"{row.problem}.jsonl") for row in rows}
        update_file(payload, msgspec.json.format(msgspec.json.encode(hf_payload(records, files[0].name))))
    _print_rows(rows, json=json)
    return 0 if all(row.result.status.passed for row in rows) else FAILURE


def _workloads(file: Path, kernel: str, timeout: float) -> list[str]:
    """Return the workloads of a file, which another process imports; ``ProjectError`` if that fails or there are none."""
    with temporary_folder(prefix="kbt-import-") as name:
        folder = Path(name)
        end = _run(folder, _Pair("", "", file, None, kernel), folder / "names", CellContext(), timeout)
        found = (folder / "names").read_text().splitlines() if (folder / "names").is_file() else []
        if end.code or end.stop:
            raise ProjectError(
                str(file), f"cannot be imported ({_failure(end, folder / 'stderr', timeout)[1]})"
            )
    if not found:
        raise ProjectError(
            str(file), "defines no class derived from kernels.benchmark.Benchmark with benchmark_x"
        )
    return found


def _measure_all(pairs: Sequence[_Pair], output: Path, processes: int, timeout: float) -> list[ProblemRow]:
    """Measure what has no records, and tell how far it is."""
    rows, started, measured = [], time.monotonic(), 0
    for number, pair in enumerate(pairs, start=1):
        path = output / pair.candidate / f"{pair.problem}.jsonl"
        records = _finished(path, pair, processes)
        if records is None:
            name = f"{pair.problem} {pair.candidate}"
            records = measure_pair(pair, path, processes, timeout)
            measured += 1
            each = (time.monotonic() - started) / measured
            result = problem_row(*pair[:2], records).result
            left = (
                f", about {each * (len(pairs) - number) / 60:.0f} min left"
                if each * (len(pairs) - number) > 60
                else ""
            )
            said = f"{result.status.label}{f': {result.reason}' if result.reason else ''}"
            print(visible(f"[{number}/{len(pairs)}] {name}  {said[:120]}{left}"), file=sys.stderr, flush=True)
        rows.append(problem_row(*pair[:2], records))
    if measured < len(pairs):
        note(
            f"{plural(len(pairs) - measured, 'result')} of earlier runs in {output}; remove a file there to measure it again"
        )
    return rows


def find_pairs(folder: Path, candidates: Path | None) -> list[_Pair]:
    """Return each candidate with each problem; ``ProjectError`` if there are none."""
    problems = {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for path in sorted(folder.rglob("*.py"), key=_natural)
        if "class Model" in read_file(path).decode(errors="replace")
    }
    if not problems:
        expected = "Files with `class Model`, `get_inputs` and `get_init_inputs`"
        raise ProjectError(str(folder), "has no problem of KernelBench", expected)
    if candidates is None:
        own = {name for name, path in problems.items() if _NEW in read_file(path).decode(errors="replace")}
        return [
            _Pair(name, "ModelNew" if name in own else REFERENCE, path, path if name in own else None)
            for name, path in problems.items()
        ]
    folders = [path for path in sorted(candidates.iterdir()) if path.is_dir()] if candidates.is_dir() else []
    several = [path for path in folders if any((path / f"{name}.py").is_file() for name in problems)]
    found = [
        _Pair(name, path.resolve().name, problem, file)
        for path in several or [candidates]
        for name, problem in problems.items()
        if (file := path / f"{name}.py").is_file()
    ]
    if not found:
        what = f"has no file for any of the problems in {folder}"
        first = next(iter(problems))
        raise ProjectError(str(candidates), what, f"{first}.py, or CANDIDATE/{first}.py, with `{_NEW}`")
    return found


def _natural(path: Path) -> tuple[int, str]:
    """Sort ``2_x.py`` before ``10_x.py``."""
    number = path.stem.partition("_")[0]
    return (int(number) if number.isdecimal() else 0, str(path))


def _finished(path: Path, pair: _Pair, processes: int) -> list[Record] | None:
    """Return the records of an earlier run of the same code; None if there are too few."""
    records = read_records(path, on_problem=ignore) if path.is_file() else []
    if any(record.provenance.code_digest != pair.digest for record in records):
        return None
    failed = any(record.outcome.failed and not record.outcome.ran for record in records)
    done = {record.process for record in records}
    return records if records and (failed or len(done) >= processes) else None


def measure_pair(pair: _Pair, path: Path, processes: int, timeout: float) -> list[Record]:
    """Measure the processes of a candidate and write their records, also that of a failure."""
    origin = Provenance(code_digest=pair.digest, environment="current")
    records: list[Record] = []
    with temporary_folder(prefix="kbt-import-") as name:
        folder = Path(name)
        for process in range(processes):
            file = folder / f"{process}.jsonl"
            end = _run(
                folder, pair, file, CellContext(process=process, processes=processes, origin=origin), timeout
            )
            made = read_records(file, on_problem=ignore) if file.is_file() else []
            records += made
            if end.code or end.stop or len(made) < 1 + bool(pair.file or pair.kernel):
                status, reason = _failure(end, folder / "stderr", timeout)
                failed = whole_record(pair.candidate, status, reason, current_device())
                failed.provenance, failed.process = origin, process
                records.append(failed)
                break
    path.parent.mkdir(parents=True, exist_ok=True)
    write_records(path, records)
    return records


def _run(folder: Path, pair: _Pair, file: Path, context: CellContext, timeout: float) -> Exit:
    request = ProblemRequest(
        name=pair.problem,
        reference=str(pair.reference.resolve()),
        candidate=str(pair.file.resolve()) if pair.file else "",
        implementation=pair.candidate,
        kernel=pair.kernel,
        workload=pair.problem if pair.kernel else "",
        output=str(file),
    )
    write_struct(folder / "context.json", context)
    write_struct(folder / "request.json", request)
    variables = {**module_variables(os.environ), CONTEXT_VARIABLE: str(folder / "context.json")}
    return Processes().run(
        [PYTHON, "-m", _MODULE, str(folder / "request.json")],
        folder=folder,
        variables=variables,
        stdout=folder / "stdout",
        stderr=folder / "stderr",
        timeout=timeout,
        marker=(CONTEXT_VARIABLE, variables[CONTEXT_VARIABLE]),
    )


def _failure(end: Exit, log: Path, timeout: float) -> tuple[Status, str]:
    if end.stop is Stop.TIMEOUT:
        return Status.TIMEOUT, f"took more than {timeout:g} s (--timeout)"
    if end.stop is Stop.MEMORY:
        return Status.OOM, "used too much memory"
    if end.stop or end.code < 0:
        return Status.CRASHED, f"ended by signal {-end.code}" if end.code < 0 else f"ended: {end.stop}"
    lines = log.read_text("utf-8", errors="replace").strip().splitlines()
    return Status.ERROR, lines[-1][:300] if lines else f"ended with exit code {end.code} and without a result"


def _print_rows(rows: Sequence[ProblemRow], *, json: bool) -> None:
    found = scores(rows)
    if json:
        results = [{"problem": row.problem, "candidate": row.candidate, **_data(row)} for row in rows]
        print_json({"results": results, "scores": found})
        return
    lines = [["problem", "candidate", "correct", "ms", "speed-up [95 %]", "verdict"], *map(_line, rows)]
    print(table(lines, right={3, 4}, width=terminal_width()))
    for score in found:
        shares = ", ".join(f"{name} {share:.3g}" for name, share in score.fast.items())
        untimed = score.correct - score.timed
        without = f"; {untimed} correct without a speed-up" if untimed else ""
        print(
            visible(
                f"{score.candidate}: {score.correct} of {plural(score.problems, 'problem')} correct; {shares}{without}"
            )
        )


def _data(row: ProblemRow) -> dict[str, object]:
    data = {"correct": row.result.status.passed, **msgspec.to_builtins(row.result)}
    return {name: value for name, value in data.items() if value not in (None, "", [], {})}


def _line(row: ProblemRow) -> list[str]:
    result = row.result
    correct = "yes" if result.status.passed else "no"
    verdict = (
        result.verdict.label
        if result.status is Status.OK
        else f"{result.status.label}: {result.reason}".rstrip(": ")
    )
    speedup = speedup_with_interval(result.speedup, result.speedup_low, result.speedup_high)
    return [row.problem, row.candidate, correct, milliseconds(result.p50_ms), speedup, verdict]
