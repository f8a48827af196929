"""What a cell measured says which kernels its process had loaded."""

import json
import subprocess
import sys
from typing import Any

from projects import run_kbt

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


def test_builds_of_a_kernel_and_another_notebook_are_compared_with_one_build_in_one_session(
    place: Place,
) -> None:
    calls = {
        "hub_norm": 'load=lambda: get_kernel("kernels-community/norm@1.norm")',
        "plain": "lambda x, w, b, eps=1e-5: __import__('torch').nn.functional.layer_norm(x, x.shape[-1:], w, b, eps)",
    }
    impls = place.folder / "layer_norm" / "impls"
    impls.mkdir(parents=True)
    for name, call in calls.items():
        code = f"from kernels_bench_tools import get_kernel, run_benchmark\nrun_benchmark('layer_norm', {call})\n"
        (impls / f"{name}.md").write_text(
            f"---\ntitle: {name}\n---\n\n```python id=benchmark outputs=layer_norm.jsonl\n{code}```\n"
        )
    place.make("one", name="norm", code=CODE)
    place.make("two", name="norm", code=CODE.replace("eps)", "eps) * 2"))
    builds = [f"kernels-community/norm@{place.folder / name}" for name in ("one", "two")]
    versions = ["--against", builds[0], "--with", builds[1], "--with", "layer_norm/impls/plain.md"]

    smoke = ("--env", "current", "--workloads", "smoke", "--processes", "1")
    done = run_kbt(
        place.folder,
        "gate",
        "layer_norm/hub_norm",
        *versions,
        *smoke,
        "--json",
        **place.variables(USE_HUB_KERNELS="1"),
    )

    assert done.returncode == 1, done.stdout + done.stderr  # one of the builds is wrong
    rows = json.loads(done.stdout)["rows"]
    passed = {Status.OK, Status.DISTURBED}  # on a busy machine
    assert {row["base"]["status"] for row in rows} <= passed
    assert [(row["version"], row["head"]["status"] in passed) for row in rows] == [
        (builds[1], False),
        ("layer_norm/impls/plain.md", True),
    ]
    assert rows[0]["head"]["status"] == Status.INCORRECT
