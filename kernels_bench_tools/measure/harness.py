"""Run one implementation on every workload of an operator, and leave one record for each."""

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
from kernels_bench_tools.measure.printing import Table
from kernels_bench_tools.measure.record import Identity, make_record
from kernels_bench_tools.measure.record_file import RecordFile, with_session
from kernels_bench_tools.measure.session import Session, open_session
from kernels_bench_tools.measure.timing.first_call import since_process_start_ms
from kernels_bench_tools.measure.trial import Trial, failed_trial, run_trial
from kernels_bench_tools.schema.build import FORWARD, CellContext
from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.record import Record, Status

Implementation = Callable[..., Any]
QUICK_SET = "smoke"
"""The workload set that only shows whether anything works: no ceilings are measured for it."""


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

    A workload that fails is a record too, and does not stop the next one.

    Args:
        operator: Name of the operator, such as ``"layer_norm"``.
        function: The implementation, called with the operator's inputs; returns one tensor.
        load: Instead of ``function``: returns it. Called once; it may raise ``Unsupported``, and a
            package that it cannot import makes the implementation unsupported too.
        workloads: Names of workload sets, comma-separated; else what the runner was asked for, else the device's own.
        only: Names of axes, and the value or values that a workload must have there, such as
            ``{"function": "swiglu"}`` for an implementation of one function of the operator.
        mode: ``"fwd"``, ``"bwd"`` or ``"fwd_bwd"``; what the runner was asked for by default, else forward.
        device: ``"cuda"`` or ``"cpu"``; the first CUDA device if there is one, by default.
        kernel_type: kernels-benchmarks' spelling of ``operator``: a name, or an enum of names.
        impl_name: Implementation id where no runner says which notebook this is.
        impl_tags: kernels-benchmarks' spelling of ``tags``.
        impl_func: kernels-benchmarks' spelling of ``function``.
        tags: Free text about the implementation, copied into its records.
        kernels: Regular expression for the names of the kernels that this implementation is about, such as
            ``"layer_norm|_row_"``: if a call on a GPU launches none of them, it fell back to something
            else and gets no rank.
        output: The file of records; ``<operator>.jsonl`` in the working directory by default.
        **peer_options: Other options of kernels-benchmarks, which have no meaning here.

    Returns:
        The records, one for each workload in order.

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
        print(f"ignored: {', '.join(peer_options)} (sampling stops when the median is known)")
    name = device or torch_device()
    run = _Run(
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
    return run.measure(load or _given(function, found))


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One call of ``run_benchmark``, its arguments resolved."""

    operator: Operator
    context: CellContext
    mode: str
    only: Mapping[str, Any]
    workload_sets: str
    implementation: str
    """Empty where only the function's own name tells."""
    torch_name: str
    device: Device
    tags: dict[str, str]
    kernels: str
    path: Path
    import_ms: float | None
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def measure(self, load: Callable[[], Implementation]) -> list[Record]:
        """Load the implementation and try it on each workload, writing each record at once."""
        workloads = in_mode(self.operator, self.mode).workloads(self.workload_sets, self.only)
        if self.mode != FORWARD:
            start_autograd(self.torch_name)
        with open_session(self.torch_name, ceilings=self.workload_sets != QUICK_SET) as session:
            start = perf_counter()
            function, failure = _load(load)
            identity = self._identity(_name_of(function), 1000 * (perf_counter() - start))
            title = f"{identity.implementation}: {self.operator.name} on {self.device.name}"
            told = "" if self.mode == FORWARD else f", {self.mode}"
            print(f"{title}, workloads {self.workload_sets}{told}")
            table = Table([workload.name for workload in workloads])
            file = RecordFile(self.path)
            for number, workload in enumerate(workloads):
                table.start(workload.name)
                trial = failure or self._try(workload, function, session)
                record = make_record(identity, workload, trial)
                ceilings = session.ceilings if number == 0 else {}
                table.finish(file.append(with_session(record, session.sentinels, ceilings)))
            if failure is None:
                session.close()
            return file.complete(session.sentinels, session.ceilings)

    def _try(self, workload: Workload, function: Implementation | None, session: Session) -> Trial:
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

    def _identity(self, name: str, load_ms: float) -> Identity:
        return Identity(
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
    """Return the implementation, or the trial that stands for every workload."""
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
    """Return the name of a function, or of the script where loading it failed."""
    return str(getattr(function, "__name__", "")) or Path(sys.argv[0]).stem or "unnamed"


def _given(function: Implementation | None, operator: Operator) -> Callable[[], Implementation]:
    if function is None:
        raise OperatorError(
            f"run_benchmark({operator.name!r})",
            "was given no implementation",
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
            "One that matches the names of the kernels that this implementation launches",
        ) from None
    return kernels


def _tags(
    context: CellContext, impl_tags: Mapping[str, str] | None, tags: Mapping[str, str] | None
) -> dict[str, str]:
    merged = {"family": context.family} if context.family else {}
    return {**merged, **(impl_tags or {}), **(tags or {})}
