"""``kbt compare``."""

import json
import shutil

import msgspec
import pytest
from history import FILE, make_repository, rows
from msgspec.structs import replace
from projects import git, run_kbt

from kernels_bench_tools.records.code import code_digest
from kernels_bench_tools.records.codec import write_records
from kernels_bench_tools.records.record import Provenance
from kernels_bench_tools.records.summary import Report

THEN, SLOWER = (0.1000, 0.1001, 0.0999), (0.1040, 0.1041, 0.1039)
OTHER = rows("r1", *THEN, workload="b")


@pytest.fixture
def repository(tmp_path):
    """A repository in whose last commit one of two rows became slower, while torch was another one."""
    return make_repository(
        tmp_path / "project", [[*rows("r1", *THEN), *OTHER], [*rows("r2", *SLOWER, torch="2.13.0"), *OTHER]]
    )


def compare(root, *arguments):
    done = run_kbt(root, "compare", *arguments, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("sides", [("HEAD~1", "HEAD"), ("HEAD~1",), ("before",), ("before", "HEAD")])
def test_revisions_folders_and_the_files_as_they_are_are_compared(repository, sides):
    if "before" in sides:
        git(repository, "checkout", "-q", "HEAD~1")
        shutil.copytree(repository / "op/results/records", repository / "before")
        git(repository, "checkout", "-q", "-")

    found = compare(repository, *sides)

    assert found["summary"] == "1 slower (by torch 2.12.0 → 2.13.0), 0 faster"
    (row,) = found["rows"]  # the other was not measured again
    assert (row["operator"], row["implementation"], row["workload"]) == ("op", "mine", "a")
    assert row["difference"] == pytest.approx(0.04)
    assert row["difference_low"] < 0.04 < row["difference_high"]
    assert [cause["kind"] for cause in row["causes"]] == ["toolchain"]


def test_records_that_are_not_committed_count_and_a_change_back_is_faster(repository):
    write_records(repository / FILE, [*rows("r3", *THEN), *OTHER])

    (row,) = compare(repository, "HEAD")["rows"]

    assert (row["change"], row["causes"][0]["detail"]) == ("faster", "torch 2.13.0 → 2.12.0")


@pytest.mark.parametrize(("option", "code"), [((), 0), (("--fail-on", "slower"), 1)])
def test_it_fails_only_if_it_is_asked_to_and_prints_the_summary_first(repository, option, code):
    done = run_kbt(repository, "compare", "HEAD~1", *option, COLUMNS="150")

    assert done.returncode == code
    assert run_kbt(repository, "compare", "HEAD", "HEAD~1", *option).returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0] == "1 slower (by torch 2.12.0 → 2.13.0), 0 faster"
    assert lines[1] == "op/mine on nvidia-h200"
    assert lines[3].split()[:2] == ["a", "0.1000"]


def test_a_comment_has_no_markup_that_records_could_bring(repository):
    name = "a|b `x` @you <img src=x> [l](mailto:a)"
    for run, times in (("r1", THEN), ("r2", SLOWER)):
        write_records(repository / FILE, [replace(one, wl={"name": name}) for one in rows(run, *times)])
        git(repository, "commit", "-qam", "named")

    done = run_kbt(repository, "compare", "HEAD~1", "--markdown")

    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last.count("|") == 9
    assert not set("`@<[(") & set(last)


def test_two_reports_are_compared(repository, sample):
    reports = []
    for factor in (1, 2):
        summary = sample.read_summary()
        (row,) = (one for one in summary.devices[0].rows if one.implementation == "triton_layer_norm")
        for point in row.points[:factor]:
            for name in ("p50_ms", "ci_low_ms", "ci_high_ms"):
                setattr(point, name, factor * getattr(point, name))
        row.provenance = Provenance(code_digest=f"c{factor}")
        report = Report(title="", repository="", operators=[summary])
        reports.append(repository / f"{factor}.json")
        reports[-1].write_bytes(msgspec.json.encode(report))

    found = compare(repository, *map(str, reports))

    assert found["summary"] == "2 slower (by code), 0 faster"
    assert {row["difference"] for row in found["rows"]} == {1.0}


def test_rows_whose_code_changed_without_a_new_measurement_are_stale(repository):
    notebook = repository / "op/impls/mine.md"
    records = [
        replace(one, provenance=Provenance(code_digest=code_digest("1"), cell="benchmark", harness="1"))
        for one in rows("r3", *THEN)
    ]
    write_records(repository / FILE, records)
    git(repository, "commit", "-qam", "measured")
    notebook.write_text(notebook.read_text().replace("\n1\n", "\n1  # a comment\n"))
    comment = compare(repository, "HEAD")

    notebook.write_text(notebook.read_text().replace("\n1  #", "\n2  #"))
    uncommitted = compare(repository, "HEAD")
    git(repository, "commit", "-qam", "changed")

    assert comment["rows"] == []
    assert [(row["workload"], row["change"]) for row in uncommitted["rows"]] == [("a", "stale")]
    assert compare(repository, "HEAD~1", "HEAD") == uncommitted
