"""Builds judge cells in another process: attacks get no rank, honest implementations keep theirs."""

import json
import os
import re
import shutil
from multiprocessing import Pipe
from pathlib import Path

import judged_cells as cells
import msgspec
import pytest
from projects import ROOT, copy_package, once_per_run, run_kbt

from kernels_bench_tools.file_io import read_struct
from kernels_bench_tools.measure.judge.remote import JudgeError, RemoteCandidate, wait_for_turn
from kernels_bench_tools.records.codec import read_records
from kernels_bench_tools.records.device import current_device
from kernels_bench_tools.records.record import Judged, Record, Status
from kernels_bench_tools.records.summary import Row, Summary

SECONDS = 1500
"""For one build of all cells."""
ALL = "KBT_ALL_ATTACKS"
"""Variable with which all attacks are tried, which takes several minutes; by default one of each kind."""
pytestmark = pytest.mark.timeout(SECONDS + 100)

ATTACKS = [name for name in cells.ATTACKS if name in cells.ONE_OF_EACH_KIND or os.environ.get(ALL)]


def write_cell(
    project: Path, name: str, code: str, *, timeout: int = 100, outputs: str = "layer_norm.jsonl"
) -> None:
    own = name, str(project / "attacked" / name), json.dumps(msgspec.to_builtins(current_device()))
    front = f"title: {name}\nbaseline: {str(name == 'torch_layer_norm').lower()}"
    fence = f"```python id=benchmark outputs={outputs} timeout={timeout}"
    code = f"{cells.HEAD}\nNAME, MARK, DEVICE = {own}\n{code}\n"
    path = project / "layer_norm" / "impls" / f"{name}.md"
    path.write_text(f"---\n{front}\n---\n\n{fence}\n{code}```\n", encoding="utf-8")


@pytest.fixture(scope="session")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project with all these cells, built once for all workers of a test run."""

    def build(project: Path) -> None:
        copy_package(project)
        shutil.copytree(ROOT / "templates", project / "templates")
        for folder in ("layer_norm/impls", "layer_norm/results", "attacked"):
            (project / folder).mkdir(parents=True)
        (project / "pyproject.toml").write_text('[tool.kbt]\ntitle = "Attacks"\n')
        shutil.copy(ROOT / "layer_norm/results/combined_results.md", project / "layer_norm/results")
        for name, code in cells.HONEST.items():
            write_cell(project, name, code)
        for name in ATTACKS:
            write_cell(project, name, cells.ATTACKS[name].code)
        write_cell(project, "six_runs", cells.SIX_RUNS)
        write_cell(project, "no_name", cells.NO_NAME, outputs="*.jsonl")
        write_cell(project, "crash", cells.CRASH)
        write_cell(project, "endless", cells.ENDLESS, timeout=20)
        options = ("--env", "current", "--workloads", "smoke")
        done = run_kbt(project, "build", *options, timeout=SECONDS)
        assert "site/index.html" in done.stdout, done.stderr

    return once_per_run(tmp_path_factory, "judged", build)


@pytest.fixture(scope="session")
def summary(built: Path) -> Summary:
    (path,) = built.glob("site/layer_norm/results/artifacts/combine/summary.json")
    return read_struct(path, Summary)


def rows(summary: Summary, name: str) -> list[Row]:
    return [row for device in summary.devices for row in device.rows if row.implementation == name]


def records(built: Path, name: str) -> list[Record]:
    (path,) = built.glob(f"site/layer_norm/impls/artifacts/{name}/**/layer_norm.jsonl")
    return read_records(path)


@pytest.mark.parametrize("name", ATTACKS)
def test_an_attack_ends_without_a_rank_and_as_expected(built: Path, summary: Summary, name: str) -> None:
    attack, found = cells.ATTACKS[name], rows(summary, name)

    def as_expected(row: Row) -> bool:
        statuses = {row.status, *(point.status for point in row.points)}  # other workloads may have no record
        flags = {flag for point in row.points for flag in point.flags}
        texts = [row.reason, *(point.reason for point in row.points)]
        texts += [row.judged.value, *(it.value for it in statuses | flags)]
        return bool(statuses & attack.statuses) and any(re.search(attack.why, text) for text in texts)

    assert (built / "attacked" / name).exists(), "it has not taken place"
    assert any(map(as_expected, found)), msgspec.json.encode(found).decode()
    for row in found:
        assert row.rank is None
        assert as_expected(row) or row.judged is Judged.NOT, row
        assert row.judged is Judged.NOT or row.status is not Status.OK, row
        assert not re.match(cells.OWN_ERRORS, row.reason), row.reason


def test_several_runs_are_counted_with_one_that_the_cell_ended_and_the_last_is_shown(built: Path) -> None:
    found = records(built, "six_runs")

    assert [record.outcome for record in found] == [Status.ERROR, *[Status.OK] * 6]
    assert len({record.run for record in found}) == 7


@pytest.mark.parametrize("name", cells.HONEST)
def test_an_honest_implementation_is_ok(built: Path, name: str) -> None:
    found = records(built, name)

    assert {record.outcome for record in found} == {Status.OK}, [record.err for record in found]
    assert {record.judged for record in found} == {Judged.SEPARATELY}
    assert len({record.run for record in found}) == cells.HONEST[name].count("on_smoke"), (
        "a run has no record"
    )


def test_a_process_that_cannot_go_on_costs_one_workload(built: Path) -> None:
    found = {str(record.wl["seq_len"]): record for record in records(built, "crash")}

    assert {size: record.outcome for size, record in found.items()} == {
        "128": Status.CRASHED,
        "256": Status.ERROR,
        "512": Status.OK,
    }
    assert "SIGSEGV" in found["128"].err.msg
    assert "illegal memory access" in found["256"].err.msg


def test_a_file_with_a_name_that_no_file_can_have_costs_its_own_cell(summary: Summary) -> None:
    found = rows(summary, "no_name")

    assert {row.status for row in found} == {Status.ERROR}
    assert all("writes to 'a\\x00.jsonl'" in row.reason for row in found)


def test_a_timeout_says_so_and_keeps_the_workloads_before(built: Path) -> None:
    found = records(built, "endless")

    assert [record.outcome for record in found][:2] == [Status.OK, Status.TIMEOUT]
    assert found[1].err.msg.startswith("timed out after 20 s")


def test_no_other_implementation_lost_or_got_a_record(built: Path, summary: Summary) -> None:
    assert {device.device.slug for device in summary.devices} == {current_device().slug}
    assert {record.impl for record in records(built, "torch_layer_norm")} == {"torch_layer_norm"}


def test_a_cell_whose_judge_fails_before_its_turn_says_why() -> None:
    judge, cell = Pipe()
    RemoteCandidate(judge).fail("the judge failed: no memory is left")

    with pytest.raises(JudgeError, match=r"^the judge failed: no memory is left$"):
        wait_for_turn(cell)
