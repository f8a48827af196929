"""``kbt import``: files of other harnesses, judged like operators."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path
from typing import Any

from problems import HONEST, problem_name, write_candidates, write_problems
from projects import PYTHON, run_kbt, wait_until

from kernels_bench_tools.records.codec import read_records
from kernels_bench_tools.records.record import Judged

PROBLEMS = range(20 if os.environ.get("KBT_ALL_PROBLEMS") else 3)
LINEAR = range(17, 18)
CACHED = """        if not hasattr(self, "kept"):
            self.kept = {formula}
        return self.kept"""
FUSED = "        return torch.nn.functional.linear(x, self.linear.weight, self.linear.bias)"
BUG_IN_DATA = "        return {formula} + (0.5 if x.mean() > 0.47 else 0.0)"  # of 100 inputs, 99
OTHER_WEIGHTS = "        self.linear.weight.data.zero_()\n        return {formula}"
CANDIDATES = {
    "cached": ("rejected", CACHED, ""),
    "fused": ("ok", FUSED, ""),
    "bug_in_data": ("incorrect", BUG_IN_DATA, ""),
    "other_weights": ("incorrect", OTHER_WEIGHTS, ""),
}
BROKEN = {
    "hangs": ("timeout", "        __import__('time').sleep(600)", ""),
    "not_importable": ("error", HONEST, "        this is no Python"),
}


def _import(folder: Path, *arguments: str) -> dict[str, Any]:
    done = run_kbt(folder, "import", "kernelbench", "problems", *arguments, "--json", timeout=3600)
    assert done.returncode in {0, 1}, done.stderr
    return json.loads(done.stdout)


def test_each_candidate_gets_the_status_that_it_deserves(tmp_path: Path) -> None:
    write_problems(tmp_path / "problems", LINEAR)
    for candidates, timeout in ((CANDIDATES, 300), (BROKEN, 30)):
        for name, (_, forward, init) in candidates.items():
            write_candidates(tmp_path / "candidates" / name, LINEAR, forward, init)
        found = _import(tmp_path, "--candidates", "candidates", "--timeout", str(timeout))

    status = {row["candidate"]: row["status"] for row in found["results"]}
    shares = {score["candidate"]: score["fast"]["fast_0"] for score in found["scores"]}
    for name, (expected, *_) in {**CANDIDATES, **BROKEN}.items():
        if status[name] == "disturbed":  # on a busy machine, without a verdict
            assert expected == "ok"
        else:
            assert (status[name], shares[name]) == (expected, float(expected == "ok"))


def test_problems_in_folders_of_levels_and_samples_of_a_run_are_found_as_kernelbench_writes_them(
    tmp_path: Path,
) -> None:
    write_problems(tmp_path / "problems/level1", PROBLEMS[:1])
    write_problems(tmp_path / "problems/level2", PROBLEMS[:1])
    write_candidates(tmp_path / "right", PROBLEMS[:1])
    write_candidates(tmp_path / "wrong", PROBLEMS[:1], "        return x - 1")
    run = tmp_path / "runs/mine"
    run.mkdir(parents=True)
    for level, sample, folder in [(1, 0, "right"), (1, 1, "wrong"), (2, 0, "right")]:
        (path,) = (tmp_path / folder).glob("*.py")
        shutil.copy(path, run / f"level_{level}_problem_1_sample_{sample}_kernel.py")
    found, name = _import(tmp_path, "--candidates", "runs"), problem_name(PROBLEMS[0])
    files = {path: path.read_bytes() for path in (tmp_path / "kernelbench").rglob("*.jsonl")}
    shutil.rmtree(tmp_path / "problems/level1")
    again = _import(tmp_path, "--candidates", "runs/mine", "--rerun")

    rows = {(row["problem"], row["candidate"]): row["correct"] for row in found["results"]}
    right = {(f"level{level}/{name}", "mine-sample-0"): True for level in (1, 2)}
    assert rows == {**right, (f"level1/{name}", "mine-sample-1"): False}
    (of_run,) = found["runs"]
    assert (of_run["run"], of_run["problems"], of_run["pass"]) == ("mine", 2, {"1": 0.75})
    assert of_run["best"]["fast_0"] == 1.0
    assert [row["problem"] for row in again["results"]] == [f"level2/{name}"]
    assert {path.parts[-2] for path in files if path.read_bytes() != files[path]} == {"level2"}


def test_candidates_share_the_import_of_torch_and_nothing_else(tmp_path: Path) -> None:
    write_problems(tmp_path / "problems", PROBLEMS)
    leave = f"""        with open({str(tmp_path / "seen")!r}, "a") as file:
            print(hash("seed"), hasattr(torch, "LEFT"), file=file)
        torch.LEFT = True
"""
    write_candidates(tmp_path / "mine", PROBLEMS, HONEST, leave)
    _import(tmp_path, "--candidates", "mine")
    seen = [line.split() for line in (tmp_path / "seen").read_text().splitlines()]
    first = [seed for seed, left in seen if left == "False"]  # a candidate is made more than once

    assert len(first) == len(PROBLEMS)
    assert len(set(first)) == 1


def test_a_candidate_cannot_change_its_problem_the_comparison_or_what_the_reference_takes(
    tmp_path: Path,
) -> None:
    write_problems(tmp_path / "problems", PROBLEMS[:1])
    (problem,) = (tmp_path / "problems").glob("*.py")
    again = "import atexit; atexit.register(run_benchmark, 'layer_norm', print, impl_name='reference')"
    attacks = {
        "writes": (f"open({str(problem)!r}, 'a').write('LEFT = 1')", HONEST, "invalid"),
        "compares": (
            "from kernels_bench_tools.measure import trial; trial.check_calls = trial.require_correct = print",
            "        return torch.zeros_like(x)",
            "incorrect",
        ),
        "repeats": (f"from kernels_bench_tools import run_benchmark; {again}", HONEST, "ok"),
    }
    for name, (code, forward, _) in attacks.items():
        write_candidates(tmp_path / "candidates" / name, PROBLEMS[:1], forward, f"        {code}\n")
    found = _import(tmp_path, "--candidates", "candidates")["results"]
    (last,) = (tmp_path / "kernelbench/repeats").glob("*.jsonl")

    for row in found:  # on a busy machine, without a verdict
        assert row["status"] in {attacks[row["candidate"]][2], "disturbed"}
    assert [record.impl for record in read_records(last)] == ["reference", "repeats"]
    assert {record.judged for record in read_records(last)} == {Judged.SEPARATELY}


def test_what_is_killed_broken_or_changed_costs_itself_only(tmp_path: Path) -> None:
    write_problems(tmp_path / "problems", PROBLEMS)
    write_candidates(tmp_path / "mine", PROBLEMS)
    broken = tmp_path / "problems" / f"{problem_name(PROBLEMS[-1])}.py"
    broken.write_text(broken.read_text().replace("import torch", "import no_such_package", 1))
    arguments = ["import", "kernelbench", "problems", "--candidates", "mine", "--json"]
    command = [PYTHON, "-m", "kernels_bench_tools", *arguments]
    (temporary := tmp_path.parent / "t").mkdir()  # a short path, for sockets
    with subprocess.Popen(
        command,
        cwd=tmp_path,
        env=os.environ | {"TMPDIR": str(temporary)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        records = tmp_path / "kernelbench" / "mine" / f"{problem_name(0)}.jsonl"
        assert wait_until(records.exists, 300)
        process.send_signal(signal.SIGKILL)
    first = records.stat().st_mtime_ns
    assert wait_until(lambda: not any(temporary.iterdir()))

    results = _import(tmp_path, "--candidates", "mine")["results"]
    write_candidates(tmp_path / "mine", range(1, 2), "        return {formula} + 1.0")
    changed = _import(tmp_path, "--candidates", "mine")["results"]

    assert [row["correct"] for row in results] == [*[True] * (len(PROBLEMS) - 1), False]
    assert "no_such_package" in results[-1]["reason"]
    assert [row["correct"] for row in changed[:2]] == [True, False]
    assert records.stat().st_mtime_ns == first


def test_a_file_that_cannot_be_read_or_named_costs_itself_only(tmp_path: Path) -> None:
    write_problems(tmp_path / "problems", range(1))
    write_candidates(tmp_path / "mine", range(1))
    problem = (tmp_path / "problems" / f"{problem_name(0)}.py").read_bytes()
    folder = os.fsencode(tmp_path / "problems")
    for name in (b"\xff.py", b"x" * 250 + b".py"):
        for place in (folder, os.fsencode(tmp_path / "mine")):
            Path(os.fsdecode(place + b"/" + name)).write_bytes(problem)
    (tmp_path / "problems/fifo.py").mkdir()
    (tmp_path / "problems/2_folder.py").write_bytes(problem)
    (tmp_path / "mine/2_folder.py").mkdir()
    os.mkfifo(tmp_path / "problems/3_fifo.py")

    rows = {row["problem"]: row for row in _import(tmp_path, "--candidates", "mine")["results"]}

    assert rows.pop(problem_name(0))["status"] in {"ok", "disturbed"}
    assert {row["status"] for row in rows.values()} == {"invalid"}
    assert {*rows} == {"\\xff", "x" * 250}
