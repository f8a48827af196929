"""Starts workers on this machine, by default one for each visible GPU, and a scheduler unless they join one."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

import dask
from distributed import Nanny, Scheduler, Status

from kernels_bench_tools.cluster.payload import DEVICE
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.own_folders import temporary_folder
from kernels_bench_tools.records.device import ask_smi

JOIN_SECONDS = 30
_POLL_SECONDS = 0.5
_ALIVE = {Status.init, Status.starting, Status.running}


@dataclass(frozen=True)
class WorkerOptions:
    """Which workers to start."""

    scheduler: str
    """Address of a scheduler to join; empty to start one."""
    host: str
    """The address that the workers, and a scheduler started here, listen on."""
    port: int
    count: int
    """How many workers; 0 for one per visible GPU, or one where there is none."""
    gpus: list[str]
    """What ``CUDA_VISIBLE_DEVICES`` is on each worker; empty on a machine without GPUs."""


def visible_gpus() -> list[str]:
    """Return the visible GPUs, as ``CUDA_VISIBLE_DEVICES`` names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        return [name.strip() for name in visible.split(",") if name.strip() and name.strip() != "-1"]
    return ask_smi("--query-gpu=index", "--format=csv,noheader").split()


def run_workers(options: WorkerOptions, started: Callable[[str, int], None]) -> None:
    """Run workers until Ctrl-C, SIGTERM or SIGHUP, or until they have all ended.

    ``started`` is called with the scheduler's address and the number of workers once they run.
    """
    dask.config.set({"logging.distributed": "error"})  # in the workers' processes, too
    logging.getLogger("distributed").setLevel(logging.ERROR)
    asyncio.run(_host(options, started))


async def _host(options: WorkerOptions, started: Callable[[str, int], None]) -> None:
    over = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        loop.add_signal_handler(number, over.set)
    async with AsyncExitStack() as stack:
        folder = str(stack.enter_context(temporary_folder(prefix="kbt-workers-")))
        address = options.scheduler or await _start_scheduler(options, stack)
        arguments = nanny_arguments(options)
        nannies = [Nanny(address, local_directory=folder, **one) for one in arguments]
        for nanny in nannies:
            stack.push_async_callback(nanny.close, timeout=5)
        try:
            await asyncio.wait_for(asyncio.gather(*nannies), JOIN_SECONDS)
        except (OSError, ValueError, RuntimeError, TimeoutError) as error:
            what = f"workers cannot join it ({str(error).splitlines()[0] if str(error) else 'no answer'})"
            expected = "the address of a Dask scheduler, such as tcp://host:8786"
            raise ProjectError(f"cluster {address}", what, expected) from None
        started(address, len(nannies))
        while not over.is_set() and any(nanny.status in _ALIVE for nanny in nannies):
            with suppress(TimeoutError):
                await asyncio.wait_for(over.wait(), _POLL_SECONDS)
        if not over.is_set():
            raise ProjectError(f"cluster {address}", "its scheduler is gone, so the workers have ended")


async def _start_scheduler(options: WorkerOptions, stack: AsyncExitStack) -> str:
    try:
        scheduler = await stack.enter_async_context(
            Scheduler(host=options.host, port=options.port, dashboard=False)
        )
    except OSError as error:
        where, remedy = f"port {options.port}", "Give another with --port, or 0 for any"
        raise ProjectError(where, f"cannot be listened on ({error.strerror or error})", "", remedy) from None
    return str(scheduler.address)


def nanny_arguments(options: WorkerOptions) -> list[dict[str, Any]]:
    """Return the arguments of each worker: with one GPU and a share of the processors, or without a GPU."""
    count = options.count or len(options.gpus) or 1
    if options.gpus and count > len(options.gpus):
        what = f"more than the {len(options.gpus)} GPUs that are visible"
        raise ProjectError(f"--count {count}", what, "one worker for each GPU at most")
    cpus = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    arguments = []
    for number in range(count):
        # Adjacent processors, at least one for each worker.
        start, end = number * len(cpus) // count, (number + 1) * len(cpus) // count
        share = cpus[start:end] or [cpus[number % len(cpus)]]
        # Without GPUs the processors are the device: every worker uses all of them, and one session runs at a time.
        own: dict[str, Any] = {}
        if options.gpus:
            own["env"] = {"CUDA_VISIBLE_DEVICES": options.gpus[number]}
            own["preload"] = [f"import os; os.sched_setaffinity(0, {list(share)})"]
        arguments.append(
            {
                "nthreads": len(share),
                "resources": {DEVICE: 1},
                "host": options.host,
                "name": f"{os.uname().nodename}-{number}",
                "memory_limit": 0,  # cells have a limit of their own
                "dashboard": False,
                "silence_logs": logging.ERROR,
                "death_timeout": JOIN_SECONDS,
                **own,
            }
        )
    return arguments
