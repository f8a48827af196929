"""``kbt workers``: this machine's GPUs as workers of a cluster."""

from __future__ import annotations

import sys
from functools import partial
from typing import Annotated

import typer

from kernels_bench_tools.cluster import require_distributed


def workers(
    scheduler: Annotated[
        str,
        typer.Argument(
            metavar="[ADDRESS]",
            help="A Dask scheduler to join, such as tcp://host:8786. [default: start one here]",
            show_default=False,
        ),
    ] = "",
    count: Annotated[
        int,
        typer.Option(
            "--count",
            "-n",
            min=0,
            help="How many workers. [default: one per visible GPU; one without GPUs]",
            show_default=False,
        ),
    ] = 0,
    threads: Annotated[
        int,
        typer.Option(
            "--threads",
            min=0,
            help="Cells that do not measure at once on each worker. [default: its share of the processors]",
            show_default=False,
        ),
    ] = 0,
    host: Annotated[
        str,
        typer.Option("--host", help="Address to listen on. Other machines need one that they can reach."),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option("--port", "-p", min=0, max=65535, help="The scheduler's port; 0 takes a free one.")
    ] = 8786,
) -> None:
    """Offer this machine to builds: one worker for each GPU, until Ctrl-C.

    Here: `kbt workers`, then elsewhere `kbt build --cluster tcp://host:8786`. On a second machine,
    `kbt workers tcp://host:8786` joins the first one's scheduler. CUDA_VISIBLE_DEVICES chooses the GPUs. Each
    worker holds one GPU and its share of the processors; one operator is measured on one worker from its first
    process to its last, several operators on several workers at the same time. All workers need the same GPU,
    and the same version of this package. Results go into the cache of whoever builds.

    **A cluster runs the code that it is sent, as you.** Whoever reaches the scheduler's port can do what you can:
    listen on 127.0.0.1 (the default) or a private network, or use TLS by Dask's own settings
    (`DASK_DISTRIBUTED__COMM__TLS__CA_FILE` and so on, with an address that starts with tls://).
    """
    require_distributed()
    from kernels_bench_tools.cluster.start import WorkerOptions, run_workers, visible_gpus

    gpus = visible_gpus()
    run_workers(WorkerOptions(scheduler, host, port, count, threads, gpus), partial(_announce, gpus))


def _announce(gpus: list[str], address: str, count: int) -> None:
    what = f"GPU{'s' if count != 1 else ''} {', '.join(gpus[:count])}" if gpus else "no GPU"
    print(f"{count} worker{'s' if count != 1 else ''} ({what}) at {address}", file=sys.stderr)
    print(f"kbt build --cluster {address}", flush=True)
    print("Ctrl-C ends them.", file=sys.stderr)
