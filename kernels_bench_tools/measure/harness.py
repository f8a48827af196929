"""Measure one implementation on every workload of an operator, and write a record for each."""

from __future__ import annotations

import re
import sys
import traceback
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from time import perf_counter
from typing import Any

import torch

from kernels_bench_tools.errors import KbtError, OperatorError, Unsupported
from kernels_bench_tools.measure.device.environment import describe_device, torch_device
from kernels_bench_tools.measure.modes import in_mode, start_autograd
from kernels_bench_tools.measure.operator import Operator, Workload, find_operator
from kernels_bench_tools.measure.printing import ResultTable
from kernels_bench_tools.measure.record import RecordFile, RunInfo, make_record, with_session
from kernels_bench_tools.measure.session import BenchmarkSession, open_session
from kernels_bench_tools.measure.timing.quantities import since_process_start_ms
from kernels_bench_tools.measure.trial import Trial, failed_trial, run_trial
from kernels_bench_tools.schema.build import FORWARD, CellContext
from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.record import Record, Status

Implementation = Callable[..., Any]
QUICK_SET = "smoke"
"""The workload set for a quick try: peaks are not measured for it."""


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
    """Check and time an implementation on each workload; print a table and append a record of each.

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
        kernel_type: ``operator`` in the spelling of kernels-benchmarks: a name, or an enum of names.
        impl_name: Implementation id, if no runner sets it.
        impl_tags: ``tags`` in the spelling of kernels-benchmarks.
        impl_func: ``function`` in the spelling of kernels-benchmarks.
        tags: Free text about the implementation, copied into its records.
        kernels: Regular expression for names of kernels, such as ``"layer_norm|_row_"``. An implementation that
            launches no such kernel on a GPU is rejected as a fallback.
        output: The file of records. Default: ``<operator>.jsonl`` in the working directory.
        **peer_options: Other options of kernels-benchmarks; ignored.

    Returns:
        One record for each workload, in order.

    Raises:
        OperatorError: The operator or workload set is unknown, or there is no implementation.
        KbtError: ``kernels`` is not a regular expression.
    """
    import_ms = since_process_start_ms()
    context = CellContext.load()
    found = find_operator(
        operator or str(getattr(kernel_type, "value", kernel_type) or context.operator.rpartition("/")[2])
    )
    function = function or impl_func
    if peer_options:
        print(f"ignored: {', '.join(peer_options)} (sampling stops when the median has converged)")
    name = device or torch_device()
    benchmark = _Benchmark(
        operator=found,
        context=context,
        mode=mode or context.mode,
        only=only or {},
        workload_sets=workloads or context.workloads or found.default_sets(torch.device(name).type),
        implementation=context.implementation or impl_name or "",
        torch_name=name,
        device=describe_device(name),
        tags=_tags(context, impl_tags, tags),
        kernels=_pattern(kernels),
        path=Path(output or f"{found.name}.jsonl"),
        import_ms=import_ms,
    )
    return benchmark.run(load or _given(function, found))


@dataclass(frozen=True, kw_only=True)
class _Benchmark:
    """One call of ``run_benchmark``, with its arguments resolved."""

    operator: Operator
    context: CellContext
    mode: str
    only: Mapping[str, Any]
    workload_sets: str
    implementation: str
    """Empty for the function's name."""
    torch_name: str
    device: Device
    tags: dict[str, str]
    kernels: str
    path: Path
    import_ms: float | None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def run(self, load: Callable[[], Implementation]) -> list[Record]:
        """Load the implementation and measure it on each workload, writing each record at once."""
        workloads = in_mode(self.operator, self.mode).workloads(self.workload_sets, self.only)
        if self.mode != FORWARD:
            start_autograd(self.torch_name)
        with open_session(self.torch_name, peaks=self.workload_sets != QUICK_SET) as session:
            start = perf_counter()
            function, failure = _load(load)
            info = self._info(_name_of(function), 1000 * (perf_counter() - start))
            title = f"{info.implementation}: {self.operator.name} on {self.device.name}"
            suffix = "" if self.mode == FORWARD else f", {self.mode}"
            print(f"{title}, workloads {self.workload_sets}{suffix}")
            table = ResultTable([workload.name for workload in workloads])
            file = RecordFile(self.path)
            for number, workload in enumerate(workloads):
                table.start(workload.name)
                trial = failure or self._try(workload, function, session)
                record = make_record(info, workload, trial)
                peaks = session.peaks if number == 0 else {}
                table.finish(file.append(with_session(record, session.sentinels, peaks)))
            if failure is None:
                session.close()
            return file.complete(session.sentinels, session.peaks)

    def _try(self, workload: Workload, function: Implementation | None, session: BenchmarkSession) -> Trial:
        assert function is not None
        return run_trial(
            self.operator,
            workload,
            function,
            session,
            mode=self.mode,
            process=self.context.process,
            kernels=self.kernels,
        )

    def _info(self, name: str, load_ms: float) -> RunInfo:
        return RunInfo(
            run=self.id,
            operator=self.operator.name,
            implementation=self.implementation or name,
            device=self.device,
            torch_name=self.torch_name,
            tags=self.tags,
            context=self.context,
            import_ms=self.import_ms,
            load_ms=load_ms,
        )


def _load(load: Callable[[], Implementation]) -> tuple[Implementation | None, Trial | None]:
    """Return the implementation, or the failed trial for all workloads."""
    try:
        return load(), None
    except Unsupported as error:
        return None, failed_trial(error, Status.UNSUPPORTED)
    except ModuleNotFoundError as error:
        reason = f"needs the package {error.name!r}, which is not installed in this environment"
        return None, failed_trial(Unsupported(reason), Status.UNSUPPORTED)
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return None, failed_trial(error)


def _name_of(function: Implementation | None) -> str:
    """Return the name of a function, or of the script if loading it failed."""
    return str(getattr(function, "__name__", "")) or Path(sys.argv[0]).stem or "unnamed"


def _given(function: Implementation | None, operator: Operator) -> Callable[[], Implementation]:
    if function is None:
        raise OperatorError(
            f"run_benchmark({operator.name!r})",
            "has no implementation",
            "A function, or load= with a function that returns it",
            "Pass the implementation as the second argument",
        )
    return lambda: function


def _pattern(kernels: str) -> str:
    try:
        re.compile(kernels)
    except re.error as error:
        raise KbtError(
            f"run_benchmark(kernels={kernels!r})",
            f"is not a regular expression: {error}",
            "A pattern for the names of the kernels that this implementation launches",
        ) from None
    return kernels


def _tags(
    context: CellContext, impl_tags: Mapping[str, str] | None, tags: Mapping[str, str] | None
) -> dict[str, str]:
    merged = {"family": context.family} if context.family else {}
    return {**merged, **(impl_tags or {}), **(tags or {})}
