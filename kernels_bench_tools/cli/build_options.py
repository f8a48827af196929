"""The options of the verbs that run cells, which become :class:`BuildOptions`."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import wraps
from inspect import Parameter, signature
from itertools import chain
from typing import Annotated, Any, Literal, TypeVar

import typer

from kernels_bench_tools.cli.options import documented
from kernels_bench_tools.cluster import cluster_executor
from kernels_bench_tools.notebooks.project import check_variable_names, read_memory_limit
from kernels_bench_tools.records.request import Request
from kernels_bench_tools.run.options import BuildOptions

T = TypeVar("T")


def takes_build_options(names: str = "") -> Callable[[Callable[..., T]], Callable[..., T]]:
    """Give a verb the options of this module, or only those with these names; it gets them as its argument ``options``."""
    known = signature(documented(_read)).parameters
    chosen = [known[name].replace(kind=Parameter.KEYWORD_ONLY) for name in names.split() or known]

    def decorate(verb: Callable[..., T]) -> Callable[..., T]:
        @wraps(verb)
        def run(**values: Any) -> T:
            given = {option.name: values.pop(option.name) for option in chosen}
            return verb(**values, options=_read(**given))

        own = signature(verb, eval_str=True)
        replaced = (chosen if each.name == "options" else [each] for each in own.parameters.values())
        vars(run)["__signature__"] = own.replace(parameters=[*chain.from_iterable(replaced)])
        return run

    return decorate


def _read(
    env: Literal["uv", "current"] = "uv",
    rerun: bool = False,
    no_measure: bool = False,
    retry_failed: bool = False,
    workloads: str = "",
    mode: Literal["fwd", "bwd", "fwd_bwd"] = "fwd",
    sustained: bool = False,
    jobs: Annotated[int, typer.Option("--jobs", "-j", min=0)] = 0,
    processes: Annotated[int, typer.Option(min=0)] = 0,
    cluster: str | None = None,
    memory_limit: str = "",
    pass_env: list[str] | None = None,
) -> BuildOptions:
    """Return the options of a build.

    Args:
        env: Python environment of cells. `uv`: one per cell, as its header declares. `current`: this interpreter, for
            machines whose torch must not be replaced.
        rerun: Run the selected cells even if their inputs are unchanged.
        no_measure: Do not measure; publish committed records and earlier results.
        retry_failed: Rerun cells that failed or have incorrect results, even if their inputs are unchanged.
        workloads (SETS): Comma-separated workload sets, such as `smoke` or `default,decode`; each operator needs at least
            one of them. `random:20:1` draws 20 new shapes per operator from seed 1, no larger than those of the device's
            sets, and `random:20:1:large` than those of `large`. Random shapes are not ranked one by one, but summarized
            in rankings. [default: `default,large,decode` on a GPU, `cpu` on a CPU]
        mode: Pass to time: `fwd` (forward), `bwd` (backward only) or `fwd_bwd` (both together).
        sustained: Also measure calls without pauses until their time is steady and, on GPUs, the energy per call. Adds 5 s
            per workload.
        jobs (N): Number of environments to prepare, and of non-measuring cells to run, in parallel; 0 means one per
            core. Measuring cells always run alone.
        processes (N): Number of fresh processes per measuring cell, interleaved with those of the operator's other
            cells. [default: 3 for `build` on a GPU; 1 on a CPU, for `run`, and for `--workloads smoke`]
        cluster (ADDRESS): Run cells on the workers of this Dask scheduler, such as tcp://host:8786; results are stored in
            this project's cache. CONTRIBUTING.md shows how to start workers.
        memory_limit (SIZE): Memory limit for all processes of a cell together, such as `16GB`; a cell that exceeds it gets
            the status `oom`. [default: `memory_limit` of `[tool.kbt]`, or 90 % of the machine's memory]
        pass_env (NAME): Environment variable to pass to cells, such as `HF_TOKEN`. Repeatable. By default, cells get only
            variables that programs need (paths, CUDA, torch, threads, proxies, caches).
    """
    return BuildOptions(
        environment=env,
        rerun=rerun,
        measure=not no_measure,
        retry_failed=retry_failed,
        request=Request(workloads=workloads, mode=mode, sustained=sustained),
        jobs=jobs or os.cpu_count() or 1,
        processes=processes,
        executor=cluster_executor(cluster),
        memory_limit=read_memory_limit("--memory-limit", memory_limit) if memory_limit else 0,
        pass_env=check_variable_names("--pass-env", tuple(pass_env or ())),
    )
