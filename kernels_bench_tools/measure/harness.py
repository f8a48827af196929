"""Run one implementation on every workload of an operator, and leave one record for each."""

from __future__ import annotations

import sys
import traceback
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from kernels_bench_tools.devices import Device
from kernels_bench_tools.errors import OperatorError, Unsupported
from kernels_bench_tools.measure.environment import describe_device, torch_device
from kernels_bench_tools.measure.operator import Operator, find_operator
from kernels_bench_tools.measure.table import Table
from kernels_bench_tools.measure.trial import failed_trial, run_trial
from kernels_bench_tools.measure.writing import Identity, make_record
from kernels_bench_tools.records import Record, Status, append_record
from kernels_bench_tools.runs import CellContext

Implementation = Callable[..., Any]


def run_benchmark(
    operator: str = "",
    function: Implementation | None = None,
    *,
    load: Callable[[], Implementation] | None = None,
    workloads: str = "",
    device: str | None = None,
    kernel_type: Any = None,
    impl_name: str | None = None,
    impl_tags: Mapping[str, str] | None = None,
    impl_func: Implementation | None = None,
    tags: Mapping[str, str] | None = None,
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
        workloads: Name of the workload set; else what the runner was asked for, else the device's own.
        device: ``"cuda"`` or ``"cpu"``; the first CUDA device if there is one, by default.
        kernel_type: kernels-benchmarks' spelling of ``operator``: a name, or an enum of names.
        impl_name: Implementation id where no runner says which notebook this is.
        impl_tags: kernels-benchmarks' spelling of ``tags``.
        impl_func: kernels-benchmarks' spelling of ``function``.
        tags: Free text about the implementation, copied into its records.
        output: The file of records; ``<operator>.jsonl`` in the working directory by default.
        **peer_options: Other options of kernels-benchmarks, which have no meaning here.

    Returns:
        The records, one for each workload in order.

    Raises:
        OperatorError: The operator or workload set is unknown, or there is no implementation.
    """
    context = CellContext.load()
    found = find_operator(operator or str(getattr(kernel_type, "value", kernel_type) or context.operator))
    function = function or impl_func
    if peer_options:
        print(f"ignored: {', '.join(peer_options)} (sampling stops when the median is known)")
    name = device or torch_device()
    run = _Run(
        operator=found,
        context=context,
        workload_set=workloads or context.workloads or found.default_set(torch.device(name).type),
        implementation=context.implementation or impl_name or "",
        torch_name=name,
        device=describe_device(name),
        tags=_tags(context, impl_tags, tags),
        path=Path(output or f"{found.name}.jsonl"),
    )
    return run.measure(load or _given(function, found))


@dataclass(frozen=True, kw_only=True)
class _Run:
    """One call of ``run_benchmark``, its arguments resolved."""

    operator: Operator
    context: CellContext
    workload_set: str
    implementation: str
    """Empty where only the function's own name tells."""
    torch_name: str
    device: Device
    tags: dict[str, str]
    path: Path
    id: str = field(default_factory=lambda: uuid.uuid4().hex)

    def measure(self, load: Callable[[], Implementation]) -> list[Record]:
        """Load the implementation and try it on each workload, writing each record at once."""
        workloads = self.operator.workloads(self.workload_set)
        function, failure = _load(load)
        identity = self._identity(self.implementation or _name_of(function))
        title = f"{identity.implementation}: {self.operator.name} on {self.device.name}"
        print(f"{title}, workload set {self.workload_set!r}")
        table = Table([workload.name for workload in workloads])
        records = []
        for workload in workloads:
            table.start(workload.name)
            if failure is not None:
                trial = failure
            else:
                assert function is not None
                trial = run_trial(self.operator, workload, function, self.torch_name)
            record = make_record(identity, workload, trial)
            append_record(self.path, record)
            table.finish(record)
            records.append(record)
        return records

    def _identity(self, implementation: str) -> Identity:
        return Identity(
            run=self.id,
            operator=self.operator.name,
            implementation=implementation,
            device=self.device,
            torch_name=self.torch_name,
            tags=self.tags,
            context=self.context,
        )


def _load(load: Callable[[], Implementation]) -> tuple[Implementation | None, Any]:
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


def _tags(
    context: CellContext, impl_tags: Mapping[str, str] | None, tags: Mapping[str, str] | None
) -> dict[str, str]:
    merged = {"family": context.family} if context.family else {}
    return {**merged, **(impl_tags or {}), **(tags or {})}
