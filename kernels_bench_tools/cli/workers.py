"""``kbt workers``: start workers of a cluster on this machine."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kernels_bench_tools.cluster import require_distributed
from kernels_bench_tools.text import plural


def workers(
    scheduler: Annotated[str, typer.Argument()] = "",
    count: Annotated[int, typer.Option("--count", "-n", min=0)] = 0,
    host: str = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", "-p", min=0, max=65535)] = 8786,
) -> None:
    """Start cluster workers on this machine, one per GPU. Ctrl-C stops them.

    Start `kbt workers` here and `kbt build --cluster tcp://host:8786` elsewhere. On a second machine, `kbt workers
    tcp://host:8786` connects to the scheduler of the first. CUDA_VISIBLE_DEVICES selects the GPUs. All workers need
    the same GPU model and the same version of this package. Each operator is measured on one worker; several
    operators are measured in parallel. Results are stored in the cache of the machine that builds.

    **Security: anyone who can connect to the scheduler can run code as your user.** Listen on 127.0.0.1 (the
    default) or on a private network, or use TLS with Dask's settings (`DASK_DISTRIBUTED__COMM__TLS__CA_FILE` and
    so on, and an address that starts with tls://).

    Args:
        scheduler (ADDRESS): Dask scheduler to connect to, such as tcp://host:8786. [default: start one here]
        count (N): Number of workers. [default: one per visible GPU, or one]
        host: Address to listen on; it must be reachable from the other machines.
        port: Port of the scheduler; 0 for any free port.
    """
    require_distributed()
    from kernels_bench_tools.cluster.start import run_workers, visible_gpus, worker_arguments

    gpus = visible_gpus()
    started = worker_arguments(gpus, count)

    def announce(address: str) -> None:
        number = len(started)
        what = f"GPU{'s' if number != 1 else ''} {', '.join(gpus[:number])}" if gpus else "no GPU"
        print(f"{plural(number, 'worker')} ({what}) at {address}", file=sys.stderr)
        print(f"kbt build --cluster {address}", flush=True)
        print("Press Ctrl-C to stop.", file=sys.stderr)

    run_workers(scheduler, host, port, started, announce)
