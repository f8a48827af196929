"""A Dask cluster as executor, so that cells run on several GPUs and hosts."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from functools import partial
from typing import Any

from kernels_bench_tools.errors import ProjectError


def cluster_executor(address: str | None) -> Callable[..., Any] | None:
    """Return what makes the executor of a build: the workers of the scheduler at ``address``; None without one."""
    if address is None:
        return None
    if not address.strip():  # a variable that is not set
        expected = "The address of a Dask scheduler, such as tcp://host:8786"
        raise ProjectError("--cluster", "is empty", expected, "Leave the option out to run cells here")
    if importlib.util.find_spec("distributed") is None:
        what = "needs the package 'distributed', which comes with the extra `cluster`"
        raise ProjectError("a cluster", what, "", "Install `kernels-bench-tools[cluster]`")
    # Not above: importing Dask takes longer than a build in which nothing changed.
    from kernels_bench_tools.cluster.executor import ClusterExecutor

    return partial(ClusterExecutor, address)
