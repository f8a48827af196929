"""An operator's records."""

import pytest
from devices import EPYC
from made_records import source

from kernels_bench_tools.records.record import Status
from kernels_bench_tools.results.counted import Source


@pytest.fixture
def field() -> list[Source]:
    """Two devices, six implementations: fast, slow, partly failed, wrong, and two that cannot run."""
    torch = {"title": "PyTorch Layer Norm", "family": "torch", "baseline": True}
    triton = {"title": "Triton Layer Norm", "family": "triton"}
    compiled = {"title": "PyTorch Compiled Layer Norm", "family": "torch-compile"}
    liger = {"title": "Liger Layer Norm", "family": "liger"}
    hub = {"title": "HF Kernels Layer Norm", "family": "hf-kernels"}
    mine = {"title": "My Layer Norm", "family": ""}
    no_cuda = {"status": Status.UNSUPPORTED, "reason": f"needs a CUDA device; this machine has {EPYC.name}"}
    no_hub = {"status": Status.UNSUPPORTED, "reason": "the hub cannot be reached: name resolution failed"}
    return [
        source("torch_layer_norm", [0.121, 0.239, 0.241, 0.482], front=torch),
        source("triton_layer_norm", [0.0702, 0.141, 0.1405, 0.283], front=triton),
        source("torch_compiled_layer_norm", [0.0841, 0.162, None, 0.331], front=compiled),
        source("liger_layer_norm", [0.0731, None, None, 0.291], front=liger, status=Status.OOM),
        source("hf_kernels_layer_norm", front=hub, **no_hub),
        source("my_layer_norm", [0.5, 0.6, 0.7, 2.2], front=mine, half_width=0.2),
        source("torch_layer_norm", [4.1, 8.3, 8.2, 17.0], front=torch, device=EPYC, half_width=0.03),
        source("triton_layer_norm", front=triton, device=EPYC, **no_cuda),
        source(
            "torch_compiled_layer_norm", [3.1, 6.3, 6.2, 12.5], front=compiled, device=EPYC, half_width=0.02
        ),
        source("liger_layer_norm", front=liger, device=EPYC, **no_cuda),
        source("hf_kernels_layer_norm", front=hub, device=EPYC, **no_hub),
        source("my_layer_norm", [9.0, None, 14.0, 33.0], front=mine, device=EPYC, half_width=0.1),
    ]
