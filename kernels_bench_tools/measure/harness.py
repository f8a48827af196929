"""Measure one implementation on every workload of an operator, and write a record for each."""

from __future__ import annotations

import re
import sys
import traceback
import uuid
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from kernels_bench_tools.errors import KbtError, OperatorError, Unsupported
from kernels_bench_tools.measure.device.environment import describe_device, torch_device
from kernels_bench_tools.measure.modes import in_mode, start_autograd
from kernels_bench_tools.measure.operator import Operator, find_operator
from kernels_bench_tools.measure.record import RecordFile, RunInfo, make_record, with_session
from kernels_bench_tools.measure.session import open_session
from kernels_bench_tools.measure.timing.quantities import since_process_start_ms
from kernels_bench_tools.measure.trial import Trial, failed_trial, run_trial
from kernels_bench_tools.schema.build import FORWARD, CellContext
from kernels_bench_tools.schema.record import Latency, Record, Status, Timing
from kernels_bench_tools.text import milliseconds

Implementation = Callable[..., Any]
QUICK_SET = "smoke"
"""The workload set for a quick try: peaks are not measured for it."""
_COLUMNS = {"median": 11, "±": 6, "n": 4, "GB/s": 7, "of peak": 13, "host": 9, "e2e": 9}
"""Title and width of the columns between the workload's name and the status."""


def run_benchmark(
    operator: str = "",
    function: Implementation | None = None,
    *,
    load: Callable[[], Implementation] | None = None,
    workloads: str = "",
    only: Mapping[str, Any] | None = None,
    mode: str = "",
    device: str | None = None,
    kernel_type: Any = None,
    impl_name: str | None = None,
    impl_tags: Mapping[str, str] | None = None,
    impl_func: Implementation | None = None,
    tags: Mapping[str, str] | None = None,
    kernels: str = "",
    output: str | Path | None = None,
    **peer_options: Any,
) -> list[Record]:
    """Check and time an implementation on each workload; print a table, and append and return a record of each.

    A failed workload is a record too, and does not stop the next one.

    Args:
        operator: Name of the operator, such as ``"layer_norm"``.
        function: The implementation, called with the operator's inputs.
        load: Returns the implementation, instead of ``function``. Called once. If it raises ``Unsupported``, or
            imports a package that is not installed, the implementation is unsupported.
        workloads: Names of workload sets, comma-separated. Default: the runner's choice, else the device's sets.
        only: Axis to the value or values that a workload must have, such as ``{"function": "swiglu"}``.
        mode: ``"fwd"``, ``"bwd"`` or ``"fwd_bwd"``. Default: the runner's choice, else forward.
        device: ``"cuda"`` or ``"cpu"``. Default: the first CUDA device, if there is one.
        kernel_type: As ``operator``, for notebooks of kernels-benchmarks: a name, or an enum of names.
        impl_name: Implementation id, if no runner sets it.
        impl_tags: As ``tags``, for notebooks of kernels-benchmarks.
        impl_func: As ``function``, for notebooks of kernels-benchmarks.
        tags: Free text about the implementation, copied into its records.
        kernels: Regular expression for names of kernels, such as ``"layer_norm|_row_"``. An implementation that
            launches no such kernel on a GPU is rejected as a fallback.
        output: The file of records. Default: ``<operator>.jsonl`` in the working directory.
        **peer_options: Other options of kernels-benchmarks; ignored.
    """
    import_ms = since_process_start_ms()
    context = CellContext.load()
    found = find_operator(
        operator or str(getattr(kernel_type, "value", kernel_type) or context.operator.rpartition("/")[2])
    )
    function = function or impl_func
    if peer_options:
        print(f"ignored: {', '.join(peer_options)} (sampling stops when the median has converged)")
    load = load or _given(function, found)
    _require_pattern(kernels)
    name = device or torch_device()
    mode = mode or context.mode
    sets = workloads or context.workloads or found.default_sets(torch.device(name).type)
    selected = in_mode(found, mode).workloads(sets, only)
    info = RunInfo(
        run=uuid.uuid4().hex,
        operator=found.name,
        implementation=context.implementation or impl_name or "",
        device=describe_device(name),
        torch_name=name,
        tags={**({"family": context.family} if context.family else {}), **(impl_tags or {}), **(tags or {})},
        context=context,
        import_ms=import_ms,
    )
    if mode != FORWARD:
        start_autograd(name)
    file = RecordFile(Path(output or f"{found.name}.jsonl"))
    with open_session(name, peaks=sets != QUICK_SET) as session:
        start = perf_counter()
        loaded, failure = _load(load)
        load_ms = 1000 * (perf_counter() - start)
        info = replace(info, implementation=info.implementation or _name_of(loaded), load_ms=load_ms)
        suffix = "" if mode == FORWARD else f", {mode}"
        print(f"{info.implementation}: {found.name} on {info.device.name}, workloads {sets}{suffix}")
        width = max(len("workload"), *(len(workload.name) for workload in selected))
        print(f"{'workload':<{width}}  {heading()}")
        for number, workload in enumerate(selected):
            print(f"{workload.name:<{width}}  ", end="", flush=True)
            trial = failure or run_trial(
                found, workload, loaded, session, mode=mode, process=context.process, kernels=kernels
            )
            record = make_record(info, workload, trial)
            peaks = session.peaks if number == 0 else {}
            written = file.append(with_session(record, session.sentinels, peaks))
            print(result_line(written), flush=True)
        if failure is None:
            session.close()
        return file.complete(session.sentinels, session.peaks)


def _load(load: Callable[[], Implementation]) -> tuple[Implementation, Trial | None]:
    """Return the implementation, and None; or the failed trial for all workloads if it could not be loaded."""
    try:
        return load(), None
    except Unsupported as error:
        return _not_loaded, failed_trial(error, Status.UNSUPPORTED)
    except ModuleNotFoundError as error:
        reason = f"needs the package {error.name!r}, which is not installed in this environment"
        return _not_loaded, failed_trial(Unsupported(reason), Status.UNSUPPORTED)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return _not_loaded, failed_trial(error)


def _not_loaded(*_: Any) -> None:
    """Stands for an implementation that could not be loaded."""


def _name_of(function: Implementation) -> str:
    """Return the name of a function, or of the script if loading it failed."""
    name = "" if function is _not_loaded else str(getattr(function, "__name__", ""))
    return name or Path(sys.argv[0]).stem or "unnamed"


def _given(function: Implementation | None, operator: Operator) -> Callable[[], Implementation]:
    if function is None:
        raise OperatorError(
            f"run_benchmark({operator.name!r})",
            "has no implementation",
            "A function, or load= with a function that returns it",
            "Pass the implementation as the second argument",
        )
    return lambda: function


def _require_pattern(kernels: str) -> None:
    try:
        re.compile(kernels)
    except re.error as error:
        raise KbtError(
            f"run_benchmark(kernels={kernels!r})",
            f"is not a regular expression: {error}",
            "A pattern for the names of the kernels that this implementation launches",
        ) from None


def heading() -> str:
    """Return the titles of the columns of ``result_line``."""
    return f"{_line(_COLUMNS)}  status"


def result_line(record: Record) -> str:
    """Return a record's figures and status."""
    return f"{_line(_figures(record))}  {_status(record)}"


def _line(values: Iterable[str]) -> str:
    return "  ".join(f"{value:>{width}}" for value, width in zip(values, _COLUMNS.values(), strict=True))


def _figures(record: Record) -> list[str]:
    latency, quantities, roofline = record.lat_ms, record.quantities, record.roofline
    if latency is None:
        return [""] * len(_COLUMNS)
    passed = record.outcome is Status.OK  # a wrong result has no rate
    return [
        f"{milliseconds(latency.p50)} ms",
        _half_width(latency),
        str(latency.reps),
        f"{record.work.bytes_moved / latency.p50 / 1e6:.1f}" if record.work and passed else "",
        f"{roofline.fraction:.0%} {roofline.ceiling.removeprefix('matmul_')}" if roofline and passed else "",
        _median(quantities.host_submit if quantities else None),
        _median(quantities.e2e if quantities else None),
    ]


def _half_width(latency: Latency) -> str:
    """Return the larger distance from the median to an end of its interval, in percent."""
    if latency.ci_low is None or latency.ci_high is None or latency.p50 <= 0:
        return ""
    reach = max(latency.p50 - latency.ci_low, latency.ci_high - latency.p50)
    return f"{100 * reach / latency.p50:.1f} %"


def _median(timing: Timing | None) -> str:
    return milliseconds(timing.p50) if timing else ""


def _status(record: Record) -> str:
    reason = f": {record.err.msg}" if record.err else ""
    flags = f" [{', '.join(flag.value for flag in record.flags)}]" if record.flags else ""
    return f"{record.outcome.value}{flags}{reason}"
