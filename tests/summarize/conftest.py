"""Records as implementations leave them, made from a few words."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from kernels_bench_tools.schema.build import FrontMatter
from kernels_bench_tools.schema.device import Device, cuda_device
from kernels_bench_tools.schema.record import (
    CacheState,
    Failure,
    Latency,
    Record,
    Status,
    Timer,
    Work,
)
from kernels_bench_tools.summarize.rows import Source

H200 = cuda_device("NVIDIA H200", "570.1")
CPU = Device(kind="cpu", name="AMD EPYC, 2 cores", slug="amd-epyc-2-cores")
SHAPES = ((2048, 4096), (2048, 8192), (4096, 4096), (4096, 8192))

MakeRecord = Callable[..., Record]
MakeSource = Callable[..., Source]


def _workload(shape: tuple[int, int] | None) -> dict[str, Any]:
    if shape is None:
        return {}
    sequence, hidden = shape
    return {
        "name": f"LN_B16_S{sequence}_D{hidden}",
        "batch": 16,
        "seq_len": sequence,
        "hidden_dim": hidden,
        "dtype": "bfloat16",
        "device": "cuda",
        "seed": 0,
    }


def _record(
    impl: str,
    p50: float | None = None,
    shape: tuple[int, int] | None = SHAPES[0],
    *,
    half_width: float | None = 0.002,
    status: Status = Status.OK,
    reason: str = "",
    device: Device | None = H200,
    **fields: Any,
) -> Record:
    latency = None
    if p50 is not None:
        reach = None if half_width is None else p50 * half_width
        latency = Latency(
            p10=p50 * 0.99,
            p50=p50,
            p90=p50 * 1.02,
            mean=p50 * 1.001,
            iqr=p50 * 0.01,
            reps=120,
            ci_low=None if reach is None else p50 - reach,
            ci_high=None if reach is None else p50 + reach,
            confidence=0.95,
            timer=Timer.CUPTI,
            cache=CacheState.READ_FLUSH,
        )
    values: dict[str, Any] = {
        "ts": "2026-11-20T10:00:00Z",
        "run": "r1",
        "wl": _workload(shape),
        "ok": status is Status.OK,
        "err": Failure(type=status.value, msg=reason) if reason else None,
        "work": Work(bytes_read=2**29, bytes_written=2**29, flops=10**9),
        "schema": 1,
    }
    return Record(impl=impl, lat_ms=latency, status=status, device=device, **(values | fields))


def _source(
    impl: str,
    times: Sequence[float | None] | None = None,
    *,
    status: Status = Status.ERROR,
    reason: str = "RuntimeError: it broke",
    device: Device = H200,
    front: dict[str, Any] | None = None,
    measured_now: bool = True,
    **fields: Any,
) -> Source:
    """One record for each time, in the order of the shapes; None failed. No times: one for them all."""
    shared: dict[str, Any] = {"device": device, **fields}
    failure = {"status": status, "reason": reason}
    if times is None:
        records = [_record(impl, shape=None, **failure, **shared)]
    else:
        pairs = zip(times, SHAPES, strict=False)
        records = [
            _record(impl, time, shape, **shared) if time else _record(impl, shape=shape, **failure, **shared)
            for time, shape in pairs
        ]
    matter = None if front is None else msgspec.convert(front, FrontMatter)
    return Source(records=records, front=matter, measured_now=measured_now)


@pytest.fixture(scope="session")
def record() -> MakeRecord:
    """Make one record: ``record("torch", 0.1)`` is ok, in 0.1 ms."""
    return _record


@pytest.fixture(scope="session")
def source() -> MakeSource:
    """Make the records of one implementation on one device."""
    return _source


@pytest.fixture
def field(source: MakeSource) -> list[Source]:
    """Two devices, six implementations: fast, slow, partly failed, wrong, and two that cannot run."""
    torch = {"title": "PyTorch Layer Norm", "family": "torch", "baseline": True}
    triton = {"title": "Triton Layer Norm", "family": "triton"}
    compiled = {"title": "PyTorch Compiled Layer Norm", "family": "torch-compile"}
    liger = {"title": "Liger Layer Norm", "family": "liger"}
    hub = {"title": "HF Kernels Layer Norm", "family": "hf-kernels"}
    mine = {"title": "My Layer Norm", "family": ""}
    no_cuda = {"status": Status.UNSUPPORTED, "reason": f"needs a CUDA device; this machine has {CPU.name}"}
    no_hub = {"status": Status.UNSUPPORTED, "reason": "the hub cannot be reached: name resolution failed"}
    return [
        source("torch_layer_norm", [0.121, 0.239, 0.241, 0.482], front=torch),
        source("triton_layer_norm", [0.0702, 0.141, 0.1405, 0.283], front=triton),
        source("torch_compiled_layer_norm", [0.0841, 0.162, None, 0.331], front=compiled),
        source("liger_layer_norm", [0.0731, None, None, 0.291], front=liger, status=Status.OOM),
        source("hf_kernels_layer_norm", front=hub, **no_hub),
        source("my_layer_norm", [0.5, 0.6, 0.7, 2.2], front=mine, half_width=0.2),
        source("torch_layer_norm", [4.1, 8.3, 8.2, 17.0], front=torch, device=CPU, half_width=0.03),
        source("triton_layer_norm", front=triton, device=CPU, **no_cuda),
        source(
            "torch_compiled_layer_norm", [3.1, 6.3, 6.2, 12.5], front=compiled, device=CPU, half_width=0.02
        ),
        source("liger_layer_norm", front=liger, device=CPU, **no_cuda),
        source("hf_kernels_layer_norm", front=hub, device=CPU, **no_hub),
        source("my_layer_norm", [9.0, None, 14.0, 33.0], front=mine, device=CPU, half_width=0.1),
    ]
