"""``kbt import``: files of other harnesses, judged like operators."""

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from problems import HONEST, problem_name, write_candidates, write_problems
from projects import PYTHON, assert_one_line, run_kbt

PROBLEMS = range(20) if os.environ.get("KBT_ALL_PROBLEMS") else range(17, 19)
LINEAR = range(17, 18)
CACHED = """        if not hasattr(self, "kept"):
            self.kept = {formula}
        return self.kept"""
DATA_DEPENDENT = """        found = {formula}
        return found + 1.0 if x[0, 0] < 0.5 else found"""
OTHER_WEIGHTS = "        self.linear.weight.data.zero_()\n        return {formula}"
CANDIDATES = {
    "honest": ("ok", HONEST, ""),
    "fused": ("ok", "        return torch.addmm(self.linear.bias, x, self.linear.weight.T)", ""),
    "cached": ("rejected", CACHED, ""),
    "data_dependent": ("incorrect", DATA_DEPENDENT, ""),
    "other_weights": ("incorrect", OTHER_WEIGHTS, ""),
    "not_importable": ("error", HONEST, "        this is no Python"),
    "hangs": ("timeout", "        while True:\n            pass", ""),
}


def _import(folder: Path, *arguments: str) -> dict[str, Any]:
    done = run_kbt(folder, "import", "kernelbench", "problems", *arguments, "--json", timeout=3600)
    assert done.returncode in {0, 1}, done.stderr
    return json.loads(done.stdout)


def test_each_candidate_gets_the_status_that_it_deserves(tmp_path: Path) -> None:
    write_problems(tmp_path / "problems", LINEAR)
    for name, (_, forward, init) in CANDIDATES.items():
        write_candidates(tmp_path / "candidates" / name, LINEAR, forward, init)

    found = _import(tmp_path, "--candidates", "candidates", "--timeout", "60")

    status = {row["candidate"]: row["status"].replace("disturbed", "ok") for row in found["results"]}
    assert status == {name: expected for name, (expected, *_) in CANDIDATES.items()}
    shares = {score["candidate"]: score["fast"]["fast_0"] for score in found["scores"]}
    assert shares == {name: float(expected == "ok") for name, (expected, *_) in CANDIDATES.items()}


def test_a_broken_problem_costs_only_itself(tmp_path: Path) -> None:
    write_problems(tmp_path / "problems", PROBLEMS)
    write_candidates(tmp_path / "mine", PROBLEMS)
    broken = tmp_path / "problems" / f"{problem_name(PROBLEMS[0])}.py"
    broken.write_text(broken.read_text().replace("import torch", "import no_such_package", 1))

    results = _import(tmp_path, "--candidates", "mine")["results"]

    assert [row["correct"] for row in results] == [False, *[True] * (len(PROBLEMS) - 1)]
    assert "no_such_package" in results[0]["reason"]


def test_a_killed_run_continues_with_what_has_no_records(tmp_path: Path) -> None:
    write_problems(tmp_path / "problems", range(2))
    write_candidates(tmp_path / "mine", range(2))
    arguments = ["import", "kernelbench", "problems", "--candidates", "mine", "--json"]
    command = [PYTHON, "-m", "kernels_bench_tools", *arguments]
    with subprocess.Popen(
        command, cwd=tmp_path, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        records = tmp_path / "kernelbench" / "mine" / f"{problem_name(0)}.jsonl"
        deadline = time.monotonic() + 300
        while not records.exists() and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(signal.SIGKILL)
    first = records.stat().st_mtime_ns

    results = _import(tmp_path, "--candidates", "mine")["results"]

    assert [row["correct"] for row in results] == [True, True]
    assert records.stat().st_mtime_ns == first


def test_changed_code_is_measured_again(tmp_path: Path) -> None:
    write_problems(tmp_path / "problems", LINEAR)
    write_candidates(tmp_path / "mine", LINEAR)
    assert _import(tmp_path, "--candidates", "mine")["results"][0]["correct"]
    write_candidates(tmp_path / "mine", LINEAR, "        return {formula} + 1.0")
    assert not _import(tmp_path, "--candidates", "mine")["results"][0]["correct"]


@pytest.mark.parametrize(
    ("arguments", "place"),
    [
        (["empty"], "empty: has no problem"),
        (["problems", "--candidates", "empty"], "empty: has no file for any"),
    ],
)
def test_folders_without_files_are_mistakes(tmp_path: Path, arguments: list[str], place: str) -> None:
    write_problems(tmp_path / "problems", LINEAR)
    (tmp_path / "empty").mkdir()
    assert_one_line(run_kbt(tmp_path, "import", "kernelbench", *arguments), place)
