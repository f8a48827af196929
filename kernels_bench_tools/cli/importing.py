"""``kbt import``: measure what is written for other harnesses with this one's timer and judge."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import replace
from pathlib import Path
from secrets import token_hex
from typing import Annotated, NamedTuple, TypeVar

import msgspec
import typer

from kernels_bench_tools.chart.card import card_charts
from kernels_bench_tools.cli import FAILURE
from kernels_bench_tools.cli.options import Json
from kernels_bench_tools.cli.output import note, print_json, print_table
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import (
    file_text,
    find_struct,
    read_file,
    update_file,
    write_atomically,
    write_struct,
)
from kernels_bench_tools.measure.judge.messages import Ended, Job
from kernels_bench_tools.measure.judge.runner import STARTER, Judge, JudgedProcess, leave_a_core
from kernels_bench_tools.own_folders import make_folder, output_folder, path_below, temporary_folder
from kernels_bench_tools.own_process import PYTHON, import_paths, module_variables, python_command
from kernels_bench_tools.records.code import code_digest
from kernels_bench_tools.records.codec import decode_records, ignore, read_records, write_records
from kernels_bench_tools.records.device import current_device
from kernels_bench_tools.records.problem import (
    REFERENCE,
    Definition,
    ProblemRequest,
    Solution,
    Trace,
    TraceWorkload,
)
from kernels_bench_tools.records.record import Failure, Flag, Provenance, Record, Status
from kernels_bench_tools.records.request import CONTEXT_VARIABLE, CellContext
from kernels_bench_tools.results.counted import whole_record
from kernels_bench_tools.results.export import markdown_table
from kernels_bench_tools.results.imported import compare_problem, hf_payload, sampled, scores, trace_of
from kernels_bench_tools.results.summary import ComparedPoint
from kernels_bench_tools.run.logs import Logs, public
from kernels_bench_tools.run.process.forks import Forker, can_fork
from kernels_bench_tools.run.process.reaper import reaper
from kernels_bench_tools.run.process.run import Exit, Limits, Processes, Start, Stop
from kernels_bench_tools.text.foreign import parse_json
from kernels_bench_tools.text.hiding import visible
from kernels_bench_tools.text.names import is_file_name, is_unicode, slugify
from kernels_bench_tools.text.numbers import milliseconds, times_with_interval
from kernels_bench_tools.text.tables import grouped
from kernels_bench_tools.text.words import plural

importing = typer.Typer(
    no_args_is_help=True, help="Measure files written for other benchmark harnesses, unmodified."
)
_MODULE = "kernels_bench_tools.measure.modules"
_NEW = "class ModelNew"
_Decoded = TypeVar("_Decoded")
_NOTES = {Flag.ZEROS_PASS, Flag.CONSTANT_OUTPUT, Flag.NO_NEGATIVE}
"""Of a problem, which its author should know."""
_SAMPLE = re.compile(r"level_(\d+)_problem_(\d+)_sample_(\d+)_kernel")
_LEVEL = re.compile(r"level_?(\d+)/")
_Output = Annotated[Path | None, typer.Option("--output", "-o")]
_Processes = Annotated[
    int, typer.Option(min=1, metavar="N", help="Number of processes. A verdict needs three.")
]
_Timeout = Annotated[float, typer.Option(min=1, metavar="SECONDS", help="Time limit of one process.")]
_Rerun = Annotated[bool, typer.Option("--rerun", help="Measure again what has a result.")]
_Page = Annotated[Path | None, typer.Option(metavar="FILE.md", help="Also write the table as a page.")]


class _Measured(NamedTuple):
    """A candidate with a problem; or what cannot be measured, with its failure."""

    request: ProblemRequest
    records: list[Record]

    @property
    def result(self) -> ComparedPoint:
        return compare_problem(self.records)


@importing.command("kernelbench")
def import_kernelbench(
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    candidates: Path | None = None,
    output: _Output = None,
    processes: _Processes = 1,
    timeout: _Timeout = 300,
    page: _Page = None,
    rerun: _Rerun = False,
    json: Json = False,
) -> int:
    """Check and time KernelBench candidates, and print fast_p and the share that is faster by verdict.

    A problem's file defines `Model`, `get_inputs` and `get_init_inputs`; a candidate's file defines `ModelNew`. Both get the
    same weights and inputs, which are drawn anew for each check and each timed call. Each candidate runs in its own process,
    after the reference, in the Python interpreter of kbt. Finished results are kept: run the command again to continue.

    Example: `kbt import kernelbench KernelBench/level1 --candidates runs/mine` measures runs/mine/1_relu.py for
    KernelBench/level1/1_relu.py. Files that KernelBench's generate_samples wrote are found by their names; of several samples of
    a run, the share of problems of which one of k is correct (pass@k), and the best of all, are printed, too.

    Args:
        folder (DIR): Folder of problems, searched recursively.
        candidates (DIR): Folder of candidates, each at its problem's path, or of one such folder per candidate. [default:
            `ModelNew` in the problems' own files]
        output (FOLDER): Folder of the records. [default: kernelbench]
    """
    pairs = _find_pairs(folder, candidates)
    measured = _measure_all(
        pairs, output_folder(output, Path("kernelbench")), processes, timeout, rerun=rerun
    )
    return _print_results(measured, f"KernelBench: {folder.resolve().name}", page, json=json)


@importing.command("hf")
def import_hf(
    path: Annotated[Path, typer.Argument(metavar="PATH")],
    kernel: str = "",
    output: _Output = None,
    payload: Path | None = None,
    card: Path | None = None,
    processes: _Processes = 1,
    timeout: _Timeout = 300,
    page: _Page = None,
    rerun: _Rerun = False,
    json: Json = False,
) -> int:
    """Check and time benchmarks of `kernels benchmark`.

    They are subclasses of `kernels.benchmark.Benchmark` with `setup`, `benchmark_x` and `verify_x`. `verify_x` is the
    reference, with a tolerance of 0.01, and the baseline, timed in the same process. `setup` runs before each timed call
    with a new seed, so results that were kept are wrong. Finished results are kept, as for `kernelbench`.

    Examples: `kbt import hf ./my_kernel`; `kbt import hf benchmarks/benchmark.py --kernel kernels-community/relu@1`.

    Args:
        path (PATH): Benchmark file, or folder of a kernel with benchmarks/benchmark*.py.
        kernel (REFERENCE): Kernel of the Hub, such as kernels-community/relu@1, or a folder. [default: the folder above
            benchmarks/]
        output (FOLDER): Folder of the records. [default: hf-benchmarks]
        payload (FILE): Write the JSON of `kernels benchmark --output`, with the time of the reference.
        card (FOLDER): Write the charts of the kernel's card, such as benches_light_latency.svg.
    """
    files = sorted(path.glob("benchmarks/benchmark*.py")) if path.is_dir() else [path]
    if wrong := [file for file in files if not is_unicode(str(file.resolve()))]:
        raise ProjectError(str(wrong[0]), "its path is not UTF-8", "", "Rename it")
    if not files or not files[0].is_file():
        raise ProjectError(str(path), "has no benchmarks/benchmark*.py", "A kernel's folder, or such a file")
    chosen = kernel or str(files[0].resolve().parents[1])
    chosen = str(Path(chosen).resolve()) if Path(chosen).is_dir() else chosen
    name = slugify(chosen.rpartition("/")[2].partition("@")[0]) or "kernel"
    requests = [
        ProblemRequest(name=workload, implementation=name, reference=str(file.resolve()), kernel=chosen)
        for file in files
        for workload in _workloads(file, chosen, timeout)
    ]
    measured = _measure_all(
        requests, output_folder(output, Path("hf-benchmarks")), processes, timeout, rerun=rerun
    )
    if payload:
        records = {each.request.name: each.records for each in measured}
        update_file(payload, msgspec.json.format(msgspec.json.encode(hf_payload(records, files[0].name))))
    if card:
        charts = card_charts(name, [(each.request.name, each.result) for each in measured])
        for chart, content in charts.items():
            update_file(card / chart, content)
    return _print_results(measured, f"kernels benchmark: {name}", page, json=json)


@importing.command("trace")
def import_trace(
    folder: Annotated[Path, typer.Argument(metavar="DIR")],
    definition: list[str] | None = None,
    output: _Output = None,
    traces: Path | None = None,
    processes: _Processes = 1,
    timeout: _Timeout = 300,
    page: _Page = None,
    rerun: _Rerun = False,
    json: Json = False,
) -> int:
    """Check and time the solutions of a flashinfer-trace data set on its workloads.

    A definition's `run` is the reference, with a tolerance of 0.01, and the baseline, timed in the same process before the
    solution is loaded. Random inputs are drawn anew for each check and each timed call; inputs in files stay. Solutions in
    Python and Triton are measured. Finished results are kept, as for `kernelbench`.

    Example: `kbt import trace flashinfer-trace --definition rmsnorm_h4096 --traces result.jsonl`.

    Args:
        folder (DIR): Folder with definitions/, workloads/ and solutions/.
        definition (NAME): Only this definition. Repeatable. [default: all]
        output (FOLDER): Folder of the records. [default: traces]
        traces (FILE): Write the results as Trace JSON, one per line.
    """
    requests, broken = _find_traces(folder, definition or [])
    if not requests and not broken:
        expected = "definitions/*.json, workloads/*.jsonl and solutions/*.json of the same definition"
        raise ProjectError(str(folder), "has no solution to measure", expected)
    measured = _measure_all(requests, output_folder(output, Path("traces")), processes, timeout, rerun=rerun)
    if traces:
        made = [trace_of(*each) for each in measured]
        update_file(traces, b"".join(msgspec.json.encode(trace) + b"\n" for trace in made if trace))
    return _print_results([*measured, *broken], f"flashinfer-trace: {folder.resolve().name}", page, json=json)


def _find_traces(folder: Path, only: Sequence[str]) -> tuple[list[ProblemRequest], list[_Measured]]:
    """Return what is to be measured, and the results of what cannot be: broken files and other languages."""
    broken: list[_Measured] = []

    def fails(name: str, implementation: str, status: Status, reason: str) -> None:
        broken.append(_failed(name, implementation, reason, status))

    def read(pattern: str, kind: type[_Decoded]) -> Iterator[tuple[Path, _Decoded]]:
        """Yield what is in files, or in their lines."""
        for path in sorted(folder.glob(pattern)):
            name, texts = str(path.relative_to(folder)), [b""]
            try:
                texts = read_file(path).splitlines() if path.suffix == ".jsonl" else [read_file(path)]
            except OSError as error:
                fails(name, path.stem, Status.INVALID, f"cannot be read ({error.strerror})")
            for number, text in enumerate(texts, start=1):
                try:
                    if text.strip():
                        yield path, parse_json(text, kind)
                except msgspec.MsgspecError as error:
                    line = f":{number}" if len(texts) > 1 else ""
                    fails(f"{name}{line}", path.stem, Status.INVALID, str(error))

    definitions = {
        definition.name: (path, definition) for path, definition in read("definitions/**/*.json", Definition)
    }
    workloads = grouped(
        (trace.definition, trace.workload) for _, trace in read("workloads/**/*.jsonl", Trace)
    )
    requests = []
    for path, solution in read("solutions/**/*.json", Solution):
        if only and solution.definition not in only:
            continue
        source, definition = definitions.get(solution.definition, (Path(), None))
        own = workloads.get(solution.definition, [])
        if refusal := _refusal(solution, definition, own):
            fails(solution.definition, solution.name, *refusal)
            continue
        requests += [
            ProblemRequest(
                name=f"{solution.definition}/{workload.uuid}",
                implementation=solution.name,
                reference=str(source.resolve()),
                candidate=str(path.resolve()),
                workload=workload,
                root=str(folder.resolve()),
            )
            for workload in own
        ]
    return requests, broken


def _refusal(
    solution: Solution, definition: Definition | None, workloads: Sequence[TraceWorkload]
) -> tuple[Status, str] | None:
    """Return why a solution cannot be measured."""
    names = [solution.name, solution.definition, *(workload.uuid for workload in workloads)]
    if wrong := [name for name in names if not is_file_name(name)]:
        return Status.INVALID, f"{wrong[0]!r} is not a valid file name"
    if definition is None:
        return Status.INVALID, "its definition is not in definitions/"
    if definition.op_type == "sampling":
        return Status.UNSUPPORTED, "draws samples, which cannot be compared with a reference"
    if solution.spec.language not in {"python", "triton"}:
        language = solution.spec.language
        return Status.UNSUPPORTED, f"is written in {language}; only python and triton are supported"
    return None


def _workloads(file: Path, kernel: str, timeout: float) -> list[str]:
    """Return the workloads of a file, which another process imports; ``ProjectError`` if that fails or there are none."""
    with temporary_folder(reaper().folder) as folder:
        names_file = str(folder / "names")
        request = ProblemRequest(name="", reference=str(file.resolve()), kernel=kernel, output=names_file)
        with closing(_Runner(timeout)) as measuring:
            end = measuring.run(folder, request, CellContext())
        names = find_struct(folder / "names", list[str]) or []
        if end.code or end.stop:
            reason = _failure(end, folder / "stderr", timeout)[1]
            raise ProjectError(str(file), f"cannot be imported ({reason})")
    if not names:
        what = "defines no subclass of kernels.benchmark.Benchmark with benchmark_x"
        raise ProjectError(str(file), what)
    return names


def _measure_all(
    requests: Sequence[ProblemRequest], output: Path, processes: int, timeout: float, *, rerun: bool
) -> list[_Measured]:
    """Measure what has no finished records of the same code in ``output``; everything if ``rerun``."""
    measured, stored = [], 0
    digests = [_digest_or_reason(it, output) for it in requests]  # before one could change files of others
    with closing(_Runner(timeout, processes)) as measuring:
        for number, (request, (digest, reason)) in enumerate(zip(requests, digests, strict=True), start=1):
            if reason:
                measured.append(_failed(request.name, request.implementation, reason))
                continue
            path = _records_path(request, output)
            origin = Provenance(code_digest=digest, environment="current")
            records = read_records(path, on_problem=ignore) if path.is_file() else []
            failed = any(record.outcome.failed and not record.outcome.ran for record in records)
            is_whole = failed or len({record.process for record in records}) >= processes
            if (
                not rerun
                and is_whole
                and {record.provenance.code_digest for record in records} == {origin.code_digest}
            ):
                measured.append(_Measured(request, records))
                stored += 1
                continue
            measured.append(_Measured(request, _measure(request, origin, processes, measuring)))
            make_folder(path.parent, output)
            write_records(path, measured[-1].records)
            result = measured[-1].result
            said = f"{result.status.label}{f': {result.reason}' if result.reason else ''}"
            line = f"[{number}/{len(requests)}] {request.name} {request.implementation}  {said[:120]}"
            print(visible(line), file=sys.stderr, flush=True)
    if stored:
        note(f"{plural(stored, 'result')} of earlier runs in {output} reused (--rerun: measure again)")
    return measured


def _failed(name: str, implementation: str, reason: str, status: Status = Status.INVALID) -> _Measured:
    """Return the failure of what cannot be measured; its names may have any bytes."""
    name, implementation = (
        os.fsencode(it).decode(errors="backslashreplace") for it in (name, implementation)
    )
    request = ProblemRequest(name=name, reference="", implementation=implementation)
    return _Measured(request, [whole_record(implementation, status, reason, current_device())])


def _digest_or_reason(request: ProblemRequest, output: Path) -> tuple[str, str]:
    """Return the digest of a request's code; or an empty one, and why it cannot be measured."""
    if not all(map(is_unicode, (request.reference, request.candidate, request.root))):
        return "", "its path is not UTF-8"
    try:
        _records_path(request, output)
        return _code_digest(request), ""
    except ProjectError as error:
        return "", f"its name cannot be a path. Expected: {error.expected}"
    except OSError as error:
        return "", f"{Path(error.filename).name} cannot be read ({error.strerror})"


def _records_path(request: ProblemRequest, output: Path) -> Path:
    name = f"{request.implementation}/{request.name}"
    return path_below(output, name, ".jsonl", where=request.reference)


def _code_digest(request: ProblemRequest) -> str:
    files = filter(None, (request.reference, request.candidate))
    texts = [read_file(Path(file)).decode(errors="replace") for file in files]
    drawn = msgspec.json.encode(request.workload).decode() if request.workload else ""
    return code_digest(request.kernel + drawn + "\n".join(texts))


def _find_pairs(folder: Path, candidates: Path | None) -> list[ProblemRequest]:
    """Return each candidate with each problem; ``ProjectError`` if there are none."""
    paths = sorted(folder.rglob("*.py"), key=_natural)
    texts = {}
    for path in paths:
        try:
            texts[path] = read_file(path).decode(errors="replace")
        except OSError as error:
            note(f"{path}: cannot be read ({error.strerror}), and is left out")
    problems = {
        path.relative_to(folder).with_suffix("").as_posix(): path
        for path, text in texts.items()
        if "class Model" in text
    }
    if not problems:
        expected = "Files with `class Model`, `get_inputs` and `get_init_inputs`"
        raise ProjectError(str(folder), "has no KernelBench problems", expected)
    pairs: list[tuple[str, str, str, Path | None]]
    if candidates is None:
        pairs = [
            (name, "ModelNew", "", path) if _NEW in texts[path] else (name, REFERENCE, "", None)
            for name, path in problems.items()
        ]
    else:
        found = {path: _candidates_of(path, folder, problems) for path in sorted(candidates.glob("*/"))}
        if not any(found.values()):
            found = {candidates: _candidates_of(candidates, folder, problems)}
        pairs = [
            (name, path.resolve().name, sample, file)
            for path, files in found.items()
            for name, sample, file in files
        ]
    if not pairs:
        what = f"has no file for any of the problems in {folder}"
        first = next(iter(problems))
        expected = f"{first}.py, CANDIDATE/{first}.py, or level_1_problem_1_sample_0_kernel.py, with `{_NEW}`"
        raise ProjectError(str(candidates), what, expected)
    return [
        ProblemRequest(
            name=name,
            implementation=f"{implementation}-sample-{sample}" if sample else implementation,
            reference=str(problems[name].resolve()),
            candidate=str(file.resolve()) if file else "",
            run=implementation if sample else "",
        )
        for name, implementation, sample, file in pairs
    ]


def _candidates_of(path: Path, folder: Path, problems: Mapping[str, Path]) -> list[tuple[str, str, Path]]:
    """Return the candidates in a folder: name of the problem, number of the sample if it has one, and file.

    They have the problem's path, or the name that KernelBench's ``generate_samples`` gives them.
    """
    numbers = {
        (
            level[1] if (level := _LEVEL.search(f"{folder.resolve().name}/{name}")) else "",
            str(_natural(file)[0]),
        ): name
        for name, file in problems.items()
    }
    found = [(name, "", file) for name in problems if (file := path / f"{name}.py").is_file()]
    for file in sorted(path.glob("*.py"), key=_natural):
        if match := _SAMPLE.fullmatch(file.stem):
            of_level, number, sample = match.groups()
            if name := numbers.get((of_level, number)) or numbers.get(("", number), ""):
                found.append((name, sample, file))
    return found


def _natural(path: Path) -> tuple[int, str]:
    """Sort ``2_x.py`` before ``10_x.py``."""
    number = path.stem.partition("_")[0]
    return (int(number) if number.isdecimal() else 0, str(path))


def _measure(request: ProblemRequest, origin: Provenance, processes: int, measuring: _Runner) -> list[Record]:
    """Return the records of the processes of a candidate, also that of a failure."""
    records: list[Record] = []
    with temporary_folder(reaper().folder) as folder:
        for process in range(processes):
            context = CellContext(process=process, processes=processes, origin=origin, problem=request)
            made, status, reason = measuring.judged(folder, context)
            if _code_digest(request) != origin.code_digest:
                made, status, reason = [], Status.INVALID, "its files were changed since this command began"
            records += made
            if status.failed or len(made) < 1 + bool(request.candidate or request.kernel):
                if not any(record.outcome.failed for record in made):
                    failed = whole_record(request.implementation, status, reason, current_device())
                    failed.provenance, failed.process = origin, process
                    records.append(failed)
                break
    return records


class _Runner:
    """Runs requests, each in so many processes, which are forks of one that has imported torch if they can be."""

    def __init__(self, timeout: float, processes: int = 1) -> None:
        self.timeout = timeout
        self._on_cpu = current_device().kind == "cpu"
        self._forks = can_fork(current_device().kind, processes)
        self._forker: Forker | None = None
        self._judge: Judge | None = None
        self._stack = ExitStack()
        self._variables = module_variables(os.environ)
        if self._on_cpu:
            leave_a_core(self._variables)

    def judged(self, folder: Path, context: CellContext) -> tuple[list[Record], Status, str]:
        """Return the records of a process, which another one judges, its status, and the reason if it has failed."""
        device = "cpu" if self._on_cpu else "cuda"
        if self._judge is None:
            own = self._stack.enter_context(temporary_folder(reaper().folder))
            self._judge = Judge(PYTHON, import_paths(), self._variables, own, device)
            self._stack.callback(self._judge.close)
        assert context.problem
        name, request = context.problem.name, msgspec.structs.replace(context.problem, output="records.jsonl")
        context = msgspec.structs.replace(context, problem=request, judge=self._judge.socket)
        job = Job(context=context, device=device, token=token_hex())
        process = JudgedProcess(None, self._judge, job, on_cpu=self._on_cpu)
        try:
            end = self.run(folder, request, context, process)
            failed = end.code or end.stop
            status, reason = _failure(end, folder / "stderr", self.timeout) if failed else (Status.OK, "")
            failure = Failure(type=status.label, msg=reason) if failed else None
            written = process.end(Ended(status=status, failure=failure))
        except OSError as error:
            return [], Status.ERROR, str(error)
        lines = "".join(written.files.values()).encode()
        return decode_records(lines, name, ignore), status, reason

    def run(
        self,
        folder: Path,
        request: ProblemRequest,
        context: CellContext,
        judged: JudgedProcess | None = None,
    ) -> Exit:
        """Run a process, which is judged unless it only names workloads."""
        write_struct(folder / "context.json", context)
        write_struct(folder / "request.json", request)
        script = folder / "run.py"
        write_atomically(
            script, f"from {_MODULE} import main\n\nmain({str(folder / 'request.json')!r})\n".encode()
        )
        variables = {**self._variables, CONTEXT_VARIABLE: str(folder / "context.json")}
        if judged and self._forks and (self._forker is None or self._forker.is_spent):
            empty = self._stack.enter_context(temporary_folder(reaper().folder))
            self._forker = Forker(python_command(*STARTER), self._variables, empty)
            self._stack.callback(self._forker.close)
        start = Start(
            command=python_command(*(STARTER if judged else ()), str(script)),
            folder=folder,
            variables=variables,
            marker=f"{CONTEXT_VARIABLE}={variables[CONTEXT_VARIABLE]}",
            forker=self._forker,
        )
        limits, logs = Limits(self.timeout), Logs(folder / "stderr")
        if judged is None:
            return Processes().run(start, limits, logs)
        with judged.opened() as stdin:
            return Processes().run(replace(start, stdin=stdin), limits, logs, judged.look)

    def close(self) -> None:
        self._stack.close()


def _failure(end: Exit, log: Path, timeout: float) -> tuple[Status, str]:
    if end.stop is Stop.TIMEOUT:
        return Status.TIMEOUT, f"took more than {timeout:g} s (--timeout)"
    if end.stop is Stop.MEMORY:
        return Status.OOM, "exceeded the memory limit"
    if end.stop or end.code < 0:
        return Status.CRASHED, f"killed by signal {-end.code}" if end.code < 0 else f"ended: {end.stop}"
    lines = public(file_text(log)).strip().splitlines()
    return Status.ERROR, lines[-1][:300] if lines else f"ended with exit code {end.code} and without a result"


def _print_results(measured: Sequence[_Measured], title: str, page: Path | None, *, json: bool) -> int:
    """Print results and scores, also into a page, and return the exit code."""
    results = [(each.request, each.result) for each in measured]
    header, lines = ["problem", "candidate", "correct", "ms", "speed-up [95 %]", "verdict"], []
    for request, result in results:
        failure = f"{result.status.label}: {result.reason}".rstrip(": ")
        speedup = times_with_interval(result.gain)
        about = [request.name, request.implementation, "yes" if result.status.passed else "no"]
        verdict = result.verdict.label if result.status is Status.OK else failure
        notes = ", ".join(flag.label for flag in result.flags if flag in _NOTES)
        verdict += f" ({notes})" if notes else ""
        lines.append([*about, milliseconds(result.p50_ms), speedup, verdict])
    candidates = scores((request.implementation, result) for request, result in results)
    sums = []
    for score in candidates:
        shares = ", ".join(f"{name} {share:.3g}" for name, share in score["fast"].items())
        faster = "no verdicts" if score["faster"] is None else f"{score['faster']:.3g}"
        untimed = score["correct"] - score["timed"]
        without = f"; {untimed} correct without a speed-up" if untimed else ""
        of = f"{score['correct']} of {plural(score['problems'], 'problem')}"
        sums.append(f"{score['candidate']}: {of} correct; {shares}; faster by verdict: {faster}{without}")
    runs = sampled((request.run, request.name, result) for request, result in results if request.run)
    for run in runs:
        passed = ", ".join(f"pass@{k} {share:.3g}" for k, share in run["pass"].items())
        shares = ", ".join(f"{name} {share:.3g}" for name, share in run["best"].items())
        sums.append(f"{run['run']}, {plural(run['problems'], 'problem')}: {passed}; best of each: {shares}")
    if json:
        rows = []
        for request, result in results:
            data = {"correct": result.status.passed, **msgspec.to_builtins(result)}
            data = {name: value for name, value in data.items() if value not in (None, "", [], {})}
            rows.append({"problem": request.name, "candidate": request.implementation, **data})
        print_json({"results": rows, "scores": candidates, **({"runs": runs} if runs else {})})
    else:
        print_table([header, *lines], right={3, 4})
        print(visible("\n".join(sums)))
    if page:
        device = current_device().name
        measured_by = f"Measured by `kbt import` on {device}; the baseline is each problem's own reference."
        rows_text = markdown_table(header, lines, set(header) - {"ms", "speed-up [95 %]"})
        texts = [f"# {title}", measured_by, rows_text, *(f"- {text}" for text in sums)]
        update_file(page, "\n\n".join(texts).encode() + b"\n")
    return 0 if all(result.status.passed for _, result in results) else FAILURE
