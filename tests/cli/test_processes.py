"""Several processes per cell, rows that cannot be, and what is kept of them, by the command."""

import json
import re
from pathlib import Path

import pytest
from projects import run_kbt
from written_records import write_implementation

from kernels_bench_tools.records.codec import read_records


@pytest.fixture
def operator(bare: Path) -> Path:
    """An operator with a baseline and another implementation, whose cells take no time."""
    write_implementation(bare, "plain", "baseline: true")
    write_implementation(bare, "mine", flags=["near_floor", "drift"])
    return bare


def recorded(project: Path, name: str = "plain") -> Path:
    (path,) = (project / "softmax" / "results" / "records").glob(f"*/{name}.jsonl")
    return path


def test_run_names_the_line_that_raised_and_the_missing_package(operator: Path) -> None:
    path = operator / "softmax" / "impls" / "broken.md"
    cell = "# Broken\n\n```python id=benchmark outputs=softmax.jsonl\n{}\nimport nosuchpackage.of_mine\n```\n"
    path.write_text(cell.format(""))
    done = run_kbt(operator, "run", "softmax/broken", "--env", "current")

    assert len(re.findall("^every workload .* error: ", done.stdout, re.MULTILINE)) == 1
    assert done.stdout.count("error: ModuleNotFoundError") == 1
    assert "softmax/impls/broken.md:5: import nosuchpackage.of_mine" in done.stdout.splitlines()
    assert "note: to import nosuchpackage in a cell" in done.stderr

    path.write_text(cell.format("# /// script\n# dependancies = ['numpy']\n# ///"))
    told = run_kbt(operator, "run", "softmax/broken", "--env", "current").stderr
    assert "note: softmax/impls/broken.md:5: unknown key 'dependancies'" in told


def test_run_shows_processes_flags_and_interval_and_says_what_a_verdict_needs(operator: Path) -> None:
    run = ("run", "softmax/mine", "--env", "current")
    quick, again = run_kbt(operator, *run), run_kbt(operator, *run)
    built = run_kbt(operator, "build", "--env", "current", "--processes", "3")
    after = run_kbt(operator, *run, COLUMNS="120")
    narrow = run_kbt(operator, *run)
    as_data = json.loads(run_kbt(operator, *run, "--json").stdout)

    running = re.findall(r"(\w+)\.md:benchmark  running, process (\d) of 3", built.stderr)
    assert [*map("".join, running)] == ["mine1", "plain1", "plain2", "mine2", "mine3", "plain3"]
    assert ["--rerun measures again" in one.stderr for one in (quick, again, after)] == [False, True, True]
    needs = "note: a verdict needs 3 processes: --processes 3"
    assert [needs in one.stderr for one in (quick, after)] == [True, False]
    assert quick.stdout.splitlines()[0].endswith(", 1 process")
    assert after.stdout.splitlines()[0].endswith(", 3 processes")
    assert "running" not in after.stderr
    assert as_data[0]["processes"] == 3
    row = next(line for line in after.stdout.splitlines() if line.startswith("w0"))
    assert "(near launch overhead, drift)" in row
    assert re.search(r"\d  \[[\d.]+, [\d.]+\]", row)
    assert max(map(len, narrow.stdout.splitlines())) <= 80
    assert "1 process: no verdict" in " ".join(quick.stdout.split())


def test_records_are_committed_thin_with_all_processes_and_whole_on_request(operator: Path) -> None:
    run_kbt(operator, "build", "--env", "current", "--processes", "3")

    done = run_kbt(operator, "record")
    thin = read_records(recorded(operator))
    assert "plain.jsonl: 2 of 2 workloads measured, 3 processes" in done.stdout
    assert [(entry.process, entry.workload) for entry in thin] == [
        (n, w) for n in range(3) for w in ("w0", "w1")
    ]
    assert {(len(entry.lat_ms.raw_times), entry.lat_ms.p50) for entry in thin if entry.lat_ms} == {(20, 1.0)}

    assert run_kbt(operator, "record", "--full").returncode == 0
    full = read_records(recorded(operator))
    assert {(len(e.lat_ms.raw_times), e.lat_ms.p50) for e in full if e.lat_ms} == {(90, 1.00000123)}


def test_committed_records_without_a_notebook_are_noted(operator: Path) -> None:
    run_kbt(operator, "build", "--env", "current", "--processes", "1")
    run_kbt(operator, "record")
    (operator / "softmax" / "impls" / "plain.md").rename(operator / "softmax" / "impls" / "renamed.md")
    where = recorded(operator).relative_to(operator)

    assert f"note: {where}: no notebook has this name" in run_kbt(operator, "check").stderr

    rows = recorded(operator).read_text().replace('"impl":"plain"', '"impl":"renamed"')
    recorded(operator).rename(recorded(operator).with_stem("renamed")).write_text(rows)
    done = run_kbt(operator, "check", "softmax/renamed")
    assert (done.returncode, "no notebook has this name" in done.stderr) == (0, False), done.stderr


def test_what_is_kept_is_told_and_shares_the_fields_of_its_run(operator: Path) -> None:
    run_kbt(operator, "build", "--env", "current", "--processes", "1")
    run_kbt(operator, "record")
    line = json.loads(recorded(operator).read_bytes().splitlines()[0]) | {"sentinels": {"copy": [1.0, 1.0]}}
    rows = [line | {"wl": {"name": name}} for name in ("w0", "w1", "w2")]
    failure = {"status": "oom", "ok": False, "lat_ms": None, "err": {"type": "E", "msg": "m"}}
    for name, lines in (
        ("more", rows),
        ("again", [rows[0] | {"run": "again"}]),
        ("failed", [line | failure]),
    ):
        (operator / f"{name}.jsonl").write_text("\n".join(map(json.dumps, lines)))

    told = [run_kbt(operator, "record", f"{name}.jsonl").stdout for name in ("more", "again", "failed")]

    assert "3 of 3 workloads measured" in told[0]
    assert "1 of 1 workloads measured, 1 process, 2 kept" in told[1]
    assert told[2].startswith("kept softmax/")
    assert "--force" in told[2]
    assert recorded(operator).read_text().count('"sentinels"') == 2
    assert all(entry.sentinels for entry in read_records(recorded(operator)))
