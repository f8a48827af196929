"""Starts workers on this machine, by default one for each visible GPU, and a scheduler unless they join one."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack, suppress
from typing import Any

import dask
from distributed import Nanny, Scheduler, Status

from kernels_bench_tools.cluster.shipment import DEVICE
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.own_folders import temporary_folder
from kernels_bench_tools.records.device import ask_smi

JOIN_SECONDS = 30
_POLL_SECONDS = 0.5
_ALIVE = {Status.init, Status.starting, Status.running}


def visible_gpus() -> list[str]:
    """Return the visible GPUs, as ``CUDA_VISIBLE_DEVICES`` names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() and name.strip() != "-1"]
    return ask_smi("--query-gpu=index", "--format=csv,noheader").split()


def run_workers(
    address: str, host: str, port: int, workers: Sequence[dict[str, Any]], started: Callable[[str], None]
) -> None:
    """Run workers with these arguments until Ctrl-C, SIGTERM or SIGHUP, or until they have all ended.

    They join the scheduler at ``address``; if that is empty, one that is started on ``port``. ``started`` is called with
    the scheduler's address once they run.
    """
    dask.config.set({"logging.distributed": "error"})  # in the workers' processes, too
    logging.getLogger("distributed").setLevel(logging.ERROR)
    asyncio.run(_run(address, host, port, workers, started))


async def _run(
    address: str, host: str, port: int, workers: Sequence[dict[str, Any]], started: Callable[[str], None]
) -> None:
    over = asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        asyncio.get_running_loop().add_signal_handler(number, over.set)
    async with AsyncExitStack() as stack:
        if not address:
            scheduler = Scheduler(host=host, port=port, dashboard=False)
            try:
                address = str((await stack.enter_async_context(scheduler)).address)
            except OSError as error:
                what = f"cannot be listened on ({error.strerror or error})"
                remedy = "Give another with --port, or 0 for any"
                raise ProjectError(f"port {port}", what, "", remedy) from None
        folder = str(stack.enter_context(temporary_folder(prefix="kbt-workers-")))
        nannies = [Nanny(address, host=host, local_directory=folder, **arguments) for arguments in workers]
        for nanny in nannies:
            stack.push_async_callback(nanny.close, timeout=5)
        try:
            await asyncio.wait_for(asyncio.gather(*nannies), JOIN_SECONDS)
        except Exception as error:
            what = f"workers cannot join it ({str(error).splitlines()[0] if str(error) else 'no answer'})"
            expected = "the address of a Dask scheduler, such as tcp://host:8786"
            raise ProjectError(f"cluster {address}", what, expected) from None
        started(address)
        while not over.is_set() and any(nanny.status in _ALIVE for nanny in nannies):
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), _POLL_SECONDS)
        if not over.is_set():
            raise ProjectError(f"cluster {address}", "its scheduler is gone, so the workers have ended")


def worker_arguments(gpus: Sequence[str], count: int) -> list[dict[str, Any]]:
    """Return the arguments of each worker: with one GPU and a share of the processors, or without a GPU.

    A ``count`` of 0 is one for each GPU, or one where there is none.
    """
    count = count or len(gpus) or 1
    if gpus and count > len(gpus):
        what = f"more than the {len(gpus)} GPUs that are visible"
        raise ProjectError(f"--count {count}", what, "one worker for each GPU at most")
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    workers = []
    for number in range(count):
        # Adjacent processors, at least one for each worker.
        start, end = number * len(cpus) // count, (number + 1) * len(cpus) // count
        share = cpus[start:end] or [cpus[number % len(cpus)]]
        worker: dict[str, Any] = {
            "nthreads": len(share),
            "resources": {DEVICE: 1},
            "name": f"{os.uname().nodename}-{number}",
            "memory_limit": 0,  # cells have a limit of their own
            "dashboard": False,
            "silence_logs": logging.ERROR,
            "death_timeout": JOIN_SECONDS,
        }
        # Without GPUs the processors are the device: every worker uses all of them, and one session runs at a time.
        if gpus:
            worker["env"] = {"CUDA_VISIBLE_DEVICES": gpus[number]}
            worker["preload"] = [f"import os; os.sched_setaffinity(0, {list(share)})"]
        workers.append(worker)
    return workers
