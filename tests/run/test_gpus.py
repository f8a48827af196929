"""Sessions on several GPUs of this machine, which a stand-in for nvidia-smi lists."""

import os
from itertools import pairwise

import pytest
from workspace import MEASURING, WRITE_MEASURED

from kernels_bench_tools.records import device
from kernels_bench_tools.run import build as build_module

SMI = """#!/bin/sh
case "$*" in
  -L) echo "GPU 0: NVIDIA H200 (UUID: GPU-0)"; echo "GPU 1: NVIDIA H200 (UUID: GPU-1)"; echo "GPU 2: NVIDIA T4 (UUID: GPU-2)";;
  *--id=2) echo "580.1, NVIDIA T4";;
  *) echo "580.1, NVIDIA H200";;
esac
"""
TIMED = f"""{WRITE_MEASURED}
import json, os, time
begin = time.time()
time.sleep(0.5)
print(json.load(open(os.environ["KBT_CONTEXT"]))["operator"], os.environ["CUDA_VISIBLE_DEVICES"], begin, time.time(), flush=True)
"""


@pytest.fixture
def gpus(workspace, tmp_path, monkeypatch):
    """A project with three operators on a machine with two GPUs of one model and one of another."""
    smi = tmp_path / "bin/nvidia-smi"
    smi.parent.mkdir()
    smi.write_text(SMI)
    smi.chmod(0o755)
    monkeypatch.setenv("PATH", f"{smi.parent}:{os.environ['PATH']}")
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    caches = device.current_device, device._gpu_device
    for function in caches:
        function.cache_clear()
    for operator in "abc":
        for name in ("x", "y"):
            workspace.cell(f"{operator}/impls/{name}.md", TIMED, MEASURING)
    yield workspace
    for function in caches:
        function.cache_clear()


def measured(workspace):
    """Yield operator, GPU, begin and end of each process."""
    lines = workspace.build(processes=2).lines
    for line in lines:
        operator, gpu, begin, end = line.split()
        yield operator, gpu, float(begin), float(end)


def test_operators_are_measured_on_all_gpus_of_one_model_one_after_the_other_on_each(gpus, monkeypatch):
    monkeypatch.setattr(build_module, "CORES_PER_GPU", 0)

    found = list(measured(gpus))

    assert {gpu for _, gpu, _, _ in found} == {"0", "1"}
    assert all(len({gpu for own, gpu, _, _ in found if own == operator}) == 1 for operator in "abc")
    by_gpu = {gpu: sorted(times for _, own, *times in found if own == gpu) for gpu in "01"}
    for times in by_gpu.values():
        assert all(end <= begin for (_, end), (begin, _) in pairwise(times))
    # Beside a single session nothing runs.
    assert any(one[0] < other[1] and other[0] < one[1] for one in by_gpu["0"] for other in by_gpu["1"])
