"""``kbt import hf``: benchmarks of ``kernels benchmark``, on kernels in Python."""

import json
from pathlib import Path
from xml.etree import ElementTree

from kit import make_kernel
from projects import run_kbt

CODE = """
import torch


def scale(out, x):
    torch.mul(x, 2, out=out)


def shift(x):
    return torch.where(x > 0.9, x, x + 1)
"""
BENCHMARK = """
import torch
from kernels.benchmark import Benchmark


class Scale(Benchmark):
    seed = 3

    def setup(self):
        self.x = torch.randn(64, 96, device=self.device)
        self.out = torch.empty_like(self.x)

    def benchmark_base(self):
        self.kernel.scale(self.out, self.x)

    def verify_base(self):
        return self.x * 2


class Shift(Benchmark):
    def setup(self):
        self.x = torch.rand(64, 96, device=self.device)

    def benchmark_wrong(self):
        self.out = self.kernel.shift(self.x)

    def verify_wrong(self):
        return self.x + 1

    def benchmark_inside(self):
        self.kernel.scale(self.x, self.x)

    def verify_inside(self):
        self.out = self.x
        return self.x
"""


def test_workloads_of_a_kernel_s_folder_are_judged_by_their_reference_and_a_file_is_run_like_a_notebook(
    tmp_path: Path,
) -> None:
    kernel = make_kernel(tmp_path / "scale", code=CODE)
    (kernel / "benchmarks").mkdir()
    (kernel / "benchmarks/benchmark.py").write_text(BENCHMARK)
    (tmp_path / "pyproject.toml").write_text("[tool.kbt]\ntitle = 'Hub'\n")

    files = ["--payload", "their.json", "--card", "media", "--page", "scale.md"]
    done = run_kbt(tmp_path, "import", "hf", "scale", *files, "--json", USE_HUB_KERNELS="1")

    results = {row["problem"]: row for row in json.loads(done.stdout)["results"]}
    status = {name: row["status"].replace("disturbed", "ok") for name, row in results.items()}
    expected = {
        "Scale.base": "ok",
        "Shift.inside": "unsupported",
        "Shift.wrong": "incorrect",
    }
    assert status == expected, done.stderr
    assert done.returncode == 1
    lines = (tmp_path / "hf-benchmarks/scale/Scale.base.jsonl").read_text().splitlines()
    assert [json.loads(line)["tags"]["reference"] for line in lines] == ["theirs", "theirs"]
    payload = json.loads((tmp_path / "their.json").read_text())
    timed = {one["workload"]: one for one in payload["results"]}
    assert {name: one["verified"] for name, one in timed.items()} == {
        "Scale.base": True,
        "Shift.wrong": False,
    }
    timing = timed["Scale.base"]["timingResults"]
    assert 0 < timing["min_ms"] <= timing["q1_ms"] <= timing["q3_ms"] <= timing["max_ms"]
    assert timing["ref_mean_ms"] > 0
    charts = {path.name: ElementTree.parse(path).getroot() for path in (tmp_path / "media").iterdir()}
    assert charts.keys() == {
        f"benches_{theme}_{quantity}.svg"
        for theme in ("light", "dark")
        for quantity in ("latency", "throughput")
    }
    for chart in charts.values():
        assert "Scale.base" in "".join(chart.itertext())
        bars = [one for one in chart.findall("{*}rect") if one.get("height") == "13"]
        assert len(bars) >= 2
    assert run_kbt(tmp_path, "build", "--no-measure").returncode == 0
    assert "Scale.base" in (tmp_path / "site/scale.html").read_text()

    again = run_kbt(tmp_path, "run", "scale/benchmarks/benchmark.py", "--json", USE_HUB_KERNELS="1")
    assert {row["problem"]: row["status"] for row in json.loads(again.stdout)["results"]} == {
        name: row["status"] for name, row in results.items()
    }
