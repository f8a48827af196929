"""Measure one implementation on every workload of an operator, and write a record for each."""

from __future__ import annotations

import re
import runpy
import sys
import traceback
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from functools import partial
from multiprocessing.connection import Client
from pathlib import Path
from time import perf_counter
from typing import Any

import msgspec
import torch

from kernels_bench_tools.errors import KbtError, OperatorError, Unsupported
from kernels_bench_tools.measure.device.environment import since_process_start_ms, torch_device
from kernels_bench_tools.measure.judge.candidate import Candidate
from kernels_bench_tools.measure.judge.guard import Guard
from kernels_bench_tools.measure.judge.remote import announce, serve, wait_for_turn
from kernels_bench_tools.measure.modes import start_autograd
from kernels_bench_tools.measure.operator import Operator, failed_status, failure_of, find_operator
from kernels_bench_tools.measure.session import open_session
from kernels_bench_tools.measure.task import LoadFailure, Task, measure_task
from kernels_bench_tools.records.record import Failure, Record, Status
from kernels_bench_tools.records.request import FORWARD, CellContext, OtherCell
from kernels_bench_tools.records.settings import OPERATORS

Implementation = Callable[..., Any]

_collected: ContextVar[list[Any] | None] = ContextVar("collected", default=None)
"""Where the implementations of other cells are put that replace kernels of the same model."""
_FUNCTION = (Callable | None, "A function")
_TEXT = (str, "A string")
_ARGUMENTS: dict[str, tuple[Any, str]] = {
    "operator": (str | Operator, 'The name of an operator, such as "layer_norm", or an Operator'),
    **dict.fromkeys(("function", "load", "impl_func", "prepare"), _FUNCTION),
    **dict.fromkeys(("workloads", "mode", "kernels", "layout", "precision"), _TEXT),
    **dict.fromkeys(("device", "impl_name"), (str | None, "A string")),
    **dict.fromkeys(("only", "tags", "impl_tags"), (Mapping | None, "A dictionary")),
    "output": (str | Path | None, "A path"),
}
"""Types of arguments, in words too."""


def run_benchmark(
    operator: str | Operator = "",
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
    prepare: Callable[..., Any] | None = None,
    layout: str = "",
    in_place: bool = False,
    precision: str = "",
    output: str | Path | None = None,
    **peer_options: Any,
) -> list[Record]:
    """Check and time an implementation on each workload; print a table, and append and return a record of each.

    A failed workload is a record too, and does not stop the next one.

    Args:
        operator: Name of the operator, such as ``"layer_norm"``: of a module of the project, else a built-in one. Or
            an ``Operator``; its records are judged in this process, and have no rank in a report.
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
        prepare: Called with the operator's parameters (weights, tables) only, in the order of its inputs; returns what
            the implementation gets in their place, such as weights in float32. Not timed, except in backward modes,
            where gradients flow through it.
        layout: The operator's layout that the implementation takes, such as ``"two_tensors"`` of ``activation``. Its
            workloads are in a group of their own, with a baseline in the same layout.
        in_place: Whether the implementation overwrites its activations, or what its forward pass saved for the
            backward pass. Each call then gets fresh copies, and in ``"bwd"`` a fresh forward pass, which are not timed.
            It returns its results as always.
        precision: The precision that it computes in, if lower than its inputs' and one that the operator knows, such as
            ``"int8"`` of ``flash_attn``. It is judged by that precision's error, and ranked after exact ones.
        output: The file of records. Default: ``<operator>.jsonl`` in the working directory.
        **peer_options: Other options of kernels-benchmarks; ignored.
    """
    import_ms = since_process_start_ms()
    context = CellContext.load()
    given = locals()
    for name, (kind, expected) in _ARGUMENTS.items():
        if not isinstance(given[name], kind):
            what = f"is of type {type(given[name]).__name__}"
            raise OperatorError(f"run_benchmark({name}=...)", what, expected)
    own = operator if isinstance(operator, Operator) else None
    found = own or find_operator(
        str(operator or getattr(kernel_type, "value", kernel_type) or context.operator.rpartition("/")[2]),
        context.operators,
    )
    if own and not context.problem:
        print(f"{own.name} is defined by this cell and judged by it, so its rows get no rank.")
        print(f"For a rank, define it in the project's {OPERATORS}/{own.name}.py.")
    function = impl_func if function is None else function  # bool() of a compiled module fails
    if peer_options:
        print(f"ignored: {', '.join(peer_options)} (sampling stops when the median has converged)")
    load = load or _given(function, found)
    _require_pattern(kernels)
    device = device or torch_device()
    task = Task(
        operator=found.name,
        workloads=workloads
        or found.own_sets(context.request.workloads.split(","))
        or context.request.workloads  # none of them is known
        or found.default_sets(torch.device(device).type),
        only=dict(only or {}),
        mode=mode or context.request.mode,
        layout=layout,
        in_place=in_place,
        precision=precision,
        prepared=prepare is not None,
        device=device,
        implementation=context.implementation or impl_name or "",
        tags={**({"family": context.family} if context.family else {}), **(impl_tags or {}), **(tags or {})},
        kernels=kernels,
        file=str(output or f"{found.name}.jsonl"),
        import_ms=import_ms,
    )
    if context.request.effect:
        return _measure_effect(task, found, load, prepare, context)
    selected = task.selected(found)  # before anything runs
    if task.mode != FORWARD:
        start_autograd(device)
    guard = Guard(device)

    def load_candidate() -> Candidate:
        start = perf_counter()
        loaded, task.failure = _load(load)
        task.load_ms = 1000 * (perf_counter() - start)
        own_name = "" if loaded is _not_loaded else str(getattr(loaded, "__name__", ""))
        task.implementation = task.implementation or own_name or Path(sys.argv[0]).stem or "unnamed"
        return Candidate(
            task.adapted(found), selected, loaded, device, mode=task.mode, guard=guard, prepare=prepare
        )

    if context.judge and (not own or context.problem):
        return judged_elsewhere(load_candidate, task, context.judge)
    with open_session(device) as session:
        session.measure_peaks(task.peaks(selected))
        return measure_task(
            task, found, load_candidate(), session, context, print=partial(print, end="", flush=True)
        )


def _measure_effect(
    task: Task,
    operator: Operator,
    load: Callable[[], Implementation],
    prepare: Callable[..., Any] | None,
    context: CellContext,
) -> list[Record]:
    # Imported here because cells that measure workloads need no models.
    from kernels_bench_tools.models.effect import measure_effect
    from kernels_bench_tools.models.replacement import Substitute

    task.workloads = ",".join(operator.workload_sets)
    loaded, task.failure = _load(load)
    own = Substitute(task, operator, loaded, prepare)
    collected = _collected.get()
    if collected is not None:
        collected.append(own)
        return []
    assert context.request.effect
    others: list[Substitute] = []
    _collected.set(others)
    for cell in context.request.effect.others:
        try:
            _run_cell(cell)
        except Exception as error:
            traceback.print_exc(file=sys.stderr)
            failure = failure_of(error)
            failure.msg = f"{cell.implementation}: {failure.msg}"
            task.failure = LoadFailure(failed_status(error), failure)
            break
    return measure_effect([own, *others], context, partial(print, end="", flush=True))


def _run_cell(cell: OtherCell) -> None:
    """Run a cell of another notebook with the cells of that notebook that it imports, whose names this one may have, too."""
    folder = Path(cell.implementation.replace("/", "_"))
    folder.mkdir()
    for name, code in {**cell.imported, "__main__": cell.code}.items():
        Path(folder, f"{name}.py").write_text(
            code, encoding="utf-8"
        )  # Triton reads the source of its functions
    path = sys.path[:]
    own = {name: sys.modules.pop(name) for name in cell.imported if name in sys.modules}
    sys.path.insert(0, str(folder.absolute()))
    try:
        runpy.run_path(str(folder / "__main__.py"), run_name="__main__")
    finally:
        sys.path[:] = path
        for name in cell.imported:
            sys.modules.pop(name, None)
        sys.modules.update(own)


def judged_elsewhere(load: Callable[[], Candidate], task: Task, socket: str) -> list[Record]:
    """Load the implementation and serve it to the process that judges it; return the records from there."""
    with Client(socket, "AF_UNIX") as connection:
        if torch.cuda.is_available():
            torch.ones(
                1, device="cuda"
            )  # makes the context, which takes a second, while the judge makes its own
        announce(connection)
        wait_for_turn(connection)  # the device's sentinels are measured before
        candidate = load()
        connection.send_bytes(msgspec.json.encode(task))
        return serve(candidate, connection)


def _load(load: Callable[[], Implementation]) -> tuple[Implementation, LoadFailure | None]:
    try:
        return load(), None
    except Unsupported as error:
        return _not_loaded, LoadFailure(Status.UNSUPPORTED, failure_of(error))
    except ModuleNotFoundError as error:
        reason = f"needs the package {error.name!r}, which is not installed in this environment"
        return _not_loaded, LoadFailure(Status.UNSUPPORTED, Failure(type="Unsupported", msg=reason))
    except Exception as error:
        traceback.print_exc(file=sys.stderr)
        return _not_loaded, LoadFailure(failed_status(error), failure_of(error))


def _not_loaded(*_: Any) -> None:
    """Stands for an implementation that could not be loaded."""


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
