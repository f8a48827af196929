"""Forward passes of a model that is split over the GPUs of one host, with NCCL, and what adding up the ranks costs.

Each rank has its part of the weights, which are random. Times are those of the slowest rank; without sums, every
``AllReduce`` returns its input.

    torchrun --nproc-per-node 2 benchmarks/tensor_parallel.py --model llama-3.1-70b
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from statistics import median
from time import perf_counter

import msgspec
import torch
from torch import distributed

from kernels_bench_tools.models.baseline.L1 import AllReduce
from kernels_bench_tools.models.baseline.L4 import build_model
from kernels_bench_tools.models.config import load_config
from kernels_bench_tools.models.forward_pass import PagedPass, randomize

PHASES = ("prefill-2048", "decode-1", "decode-32")
WARM_CALLS = 3


def times(call: Callable[[], object], calls: int, device: str) -> list[float]:
    """Return the milliseconds of each call on the slowest rank, which all ranks start together."""
    found = []
    for _ in range(WARM_CALLS + calls):
        synchronize(device)
        distributed.barrier()
        start = perf_counter()
        call()
        synchronize(device)
        found.append(1000 * (perf_counter() - start))
    slowest = torch.tensor(found[WARM_CALLS:], device=device)
    distributed.all_reduce(slowest, distributed.ReduceOp.MAX)
    return slowest.tolist()


def synchronize(device: str) -> None:
    """Wait for a CUDA device."""
    if device.startswith("cuda"):
        torch.cuda.synchronize()


def captured(call: Callable[[], object]) -> Callable[[], object]:
    """Return a CUDA graph of a call."""
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph.replay


def main() -> None:
    """Print a line for each phase and way to run it."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--model", default="llama-3.1-70b")
    parser.add_argument("--layers", type=int, help="fewer than the model has")
    parser.add_argument("--calls", type=int, default=20)
    options = parser.parse_args()

    cuda = torch.cuda.is_available()
    distributed.init_process_group("nccl" if cuda else "gloo")
    rank, size = distributed.get_rank(), distributed.get_world_size()
    device = f"cuda:{rank}" if cuda else "cpu"
    if cuda:
        torch.cuda.set_device(rank)
    config = load_config(options.model)
    layers = options.layers or config.num_hidden_layers
    model = build_model(
        msgspec.structs.replace(config, num_hidden_layers=layers), device, rank=rank, size=size
    )
    randomize(model, device)
    sums = [module for module in model.modules() if isinstance(module, AllReduce)]
    if rank == 0:
        name = torch.cuda.get_device_name() if cuda else "CPU"
        weights = sum(one.numel() * one.element_size() for one in model.parameters())
        print(
            f"{options.model}, {layers} layers, {size} x {name}, {weights / 1e9:.1f} GB of weights each",
            flush=True,
        )
    for phase in PHASES:
        forward = PagedPass(model, device, phase)
        ways = {"eager": lambda call: call} | ({"CUDA graph": captured} if cuda and forward.decodes else {})
        for way, prepare in ways.items():
            with torch.no_grad():
                whole = times(prepare(forward), options.calls, device)
                for module in sums:
                    module.forward = lambda x: x
                alone = times(prepare(forward), options.calls, device)
                for module in sums:
                    del module.forward
            low, *_, high = sorted(whole)
            if rank == 0:
                print(
                    f"{phase:13} {way:11} {median(whole):9.3f} ms [{low:.3f}, {high:.3f}], "
                    f"without sums {median(alone):9.3f} ms",
                    flush=True,
                )
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
