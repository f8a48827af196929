"""What a cell measured says which kernels its process had loaded."""

import subprocess
import sys
from typing import Any

from kernels_bench_tools.records.codec import read_records
from kernels_bench_tools.records.record import Status

Place = Any

CODE = """\
import torch


def norm(x, weight, bias, eps=1e-5):
    return torch.nn.functional.layer_norm(x, x.shape[-1:], weight, bias, eps)
"""
CELL = """\
from kernels_bench_tools import get_kernel, run_benchmark

run_benchmark("layer_norm", load=lambda: get_kernel("kernels-community/norm@1.norm"), workloads="smoke")
"""


def test_a_record_names_the_hub_kernel_that_was_measured(place: Place, tmp_path: Any) -> None:
    import os

    commit = place.hub.publish("kernels-community/norm", place.make(name="norm", code=CODE), "v1")

    done = subprocess.run(
        [sys.executable, "-c", CELL],
        cwd=tmp_path,
        env={**os.environ, **place.variables(USE_HUB_KERNELS="1", CUDA_VISIBLE_DEVICES="")},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    records = read_records(tmp_path / "layer_norm.jsonl")
    assert {record.status for record in records} == {Status.OK}
    (kernel,) = records[0].provenance.hub
    assert (kernel.repo, kernel.commit, kernel.origin) == ("kernels-community/norm", commit, "hub")
