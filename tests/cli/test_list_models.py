"""``kbt list --model``: the kernels of a model."""

import json
import subprocess
from pathlib import Path

from projects import run_kbt


def run(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_kbt(folder, "list", "--model", *arguments)


def test_the_kernels_of_every_phase_are_listed_outside_of_any_project(tmp_path: Path) -> None:
    done = run(tmp_path, "llama-3.1-8b")

    lines = [line.split() for line in done.stdout.splitlines()]
    assert (done.returncode, done.stderr) == (0, "")
    assert ["1", "SiluAndMul", "32", "x", "bfloat16[2048,", "28672]"] in lines
    assert ["1", "SiluAndMul", "32", "x", "bfloat16[32,", "28672]"] in lines
    assert ["*.self_attn.store_kvcache", "value", "bfloat16[2048,", "8,", "128]"] in lines
    assert not any(line[:1] == ["2"] for line in lines)
    assert "8,030,261,248 parameters" in done.stdout


def test_one_phase_is_listed_with_its_blocks_and_layers(tmp_path: Path) -> None:
    phases = json.loads(run(tmp_path, "qwen3-30b-a3b", "--phase", "decode-1", "--json").stdout)["phases"]

    assert [phase["name"] for phase in phases] == ["decode-1"]
    assert {task["level"] for task in phases[0]["tasks"]} == {1, 2, 3, 4}


def test_a_model_that_only_transformers_has_is_listed_with_what_use_kernels_takes_on_each_device(
    tmp_path: Path,
) -> None:
    done = run(tmp_path, "falcon-mamba-7b")

    lines = [line.split() for line in done.stdout.splitlines()]
    assert ["1", "FalconMambaMixer:", "selective_scan", "64", "x", "bfloat16[1,", "8192,", "2048]"] in lines
    both = ["inference,", "training"]
    assert ["RMSNorm", *both, *both, "inference"] in lines
    assert ["selective_scan_fn", *both, "none", *both] in lines
