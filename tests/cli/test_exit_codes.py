"""What a command that measures exits with, and what it names as the reason."""

import json
import re
from pathlib import Path

import pytest
from projects import ROOT, run_kbt
from written_records import write_implementation

from kernels_bench_tools.cli import EXIT_CODES
from kernels_bench_tools.records.device import current_device

BUILD = ("build", "--env", "current")
FAILED = {"lat_ms": None, "ok": False, "err": {"type": "RuntimeError", "msg": "bad shape"}}
WRONG = {"status": "incorrect", "ok": False, "err": {"type": "Incorrect", "msg": "3 NaN"}}
RECORDS = {
    "ok": {},
    "incorrect": WRONG,
    "rejected": {"status": "rejected", "ok": False, "flags": ["stale_output"]},
    "error": FAILED | {"status": "error"},
    "unsupported": FAILED | {"status": "unsupported"},
    "exceeds_physics": WRONG | {"status": "exceeds_physics"},
}


def test_a_cell_has_the_status_of_its_kernels_and_the_exit_code_follows(bare: Path) -> None:
    (bare / "softmax/impls/plain.md").unlink()
    for status, fields in RECORDS.items():
        write_implementation(bare, status, **fields)

    cells = json.loads(run_kbt(bare, *BUILD, "--json").stdout)["cells"]

    assert {cell["cell"].partition(".md")[0].rpartition("/")[2]: cell["workloads"] for cell in cells} == {
        status: {status: 2} for status in RECORDS
    }
    assert all(cell["status"] in cell["cell"] for cell in cells)
    for status in RECORDS:
        codes = [run_kbt(bare, *BUILD, f"softmax/{status}", *more).returncode for more in ((), ("--strict",))]
        assert codes == [status not in {"ok", "unsupported"}, status != "ok"], status


def test_the_last_line_names_what_needs_a_look_and_the_page_of_failures_lists_it(bare: Path) -> None:
    write_implementation(bare, "plain")
    write_implementation(bare, "mine", **WRONG)
    (bare / "softmax" / "impls" / "exits.md").write_text("```python id=other\nraise SystemExit(3)\n```\n")

    done = run_kbt(bare, *BUILD)

    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    for words in (
        "2 of 3 cells",
        "exits.md:other (error)",
        "mine.md (incorrect: 2 of 2 workloads)",
        "site/status.html",
    ):
        assert words in last
    page = (bare / "site" / "status.html").read_text()
    assert "softmax/impls/mine.md:benchmark</a>" in page
    assert "3 NaN" in page
    cell = (bare / "site" / "softmax" / "impls" / "mine.html").read_text()
    assert "<span>2 of 2 workloads</span>" in cell


def test_a_run_names_the_log_with_the_traceback_of_a_kernel_that_raised(bare: Path) -> None:
    write_implementation(bare, "mine", **RECORDS["error"])
    path = bare / "softmax" / "impls" / "mine.md"
    path.write_text(
        path.read_text().replace("\n```\n", "\nimport sys; print('in line 7', file=sys.stderr)\n```\n")
    )

    done = run_kbt(bare.parent, "run", str(path), "--env", "current")

    (log,) = [line.removeprefix("log: ") for line in done.stdout.splitlines() if line.startswith("log: ")]
    assert "in line 7" in (bare.parent / log).read_text()


def test_results_of_other_cells_do_not_count_and_failed_cells_run_again_only_on_request(bare: Path) -> None:
    write_implementation(bare, "plain")
    write_implementation(bare, "mine", **WRONG)

    assert run_kbt(bare, *BUILD).returncode == 1
    done = run_kbt(bare, *BUILD, "softmax/plain")
    assert done.returncode == 0
    assert "0 cells ran, 1 unchanged, 0 unsupported here, 0 failed\n" in done.stdout
    assert run_kbt(bare, "run", "softmax/mine", "--env", "current").returncode == 1
    assert run_kbt(bare, "record").returncode == 0

    done = run_kbt(bare, *BUILD)
    assert (done.returncode, "--retry-failed" in done.stdout) == (1, True)
    assert "1 would run" in run_kbt(bare, "plan", "--env", "current", "--retry-failed").stdout
    again = json.loads(run_kbt(bare, *BUILD, "--retry-failed", "--json").stdout)["cells"]
    assert sorted(cell["cached"] for cell in again) == [False, True]


@pytest.mark.parametrize("listed", ["", "forged.jsonl", "{}/../../../../../forged.jsonl"])
def test_results_that_changed_after_the_build_are_not_recorded(bare: Path, listed: str) -> None:
    write_implementation(bare, "plain")
    run_kbt(bare, *BUILD)
    (path,) = bare.glob(".kbt/cache/*/artifacts/softmax.jsonl")
    forged = bare / "forged.jsonl" if listed else path
    forged.write_text(path.read_text().replace('"schema"', '"other":0,"schema"'))
    if listed:
        state = bare / ".kbt/build.json"
        stored = path.relative_to(bare).as_posix()
        state.write_text(state.read_text().replace(stored, listed.format(Path(stored).parent)))

    done = run_kbt(bare, "record")

    assert "softmax/impls/plain.md:benchmark: its result is not as the build stored it" in done.stderr
    assert not (bare / "softmax/results/records").exists()


EXPECT = 'expect: { incorrect: "rounded to bfloat16" }'


def test_a_wrong_kernel_that_its_notebook_expects_fails_nothing_and_a_right_one_is_noted(bare: Path) -> None:
    write_implementation(bare, "plain", EXPECT, **WRONG)
    done = run_kbt(bare, *BUILD)

    assert done.returncode == 0
    assert re.search("note: .*plain.md is incorrect: .* as expected: rounded to bfloat16", done.stderr)
    assert "0 failed" in done.stdout
    page = (bare / "site" / "softmax" / "impls" / "plain.html").read_text()
    assert "rounded to bfloat16" in page
    assert "incorrect, as expected" in page
    # Any other failure counts.
    write_implementation(bare, "plain", EXPECT, **RECORDS["error"])
    assert run_kbt(bare, *BUILD).returncode == 1
    write_implementation(bare, "plain", EXPECT)
    done = run_kbt(bare, *BUILD)
    assert (done.returncode, "plain.md expects incorrect" in done.stderr) == (0, True)


def test_a_run_of_an_operator_prints_its_ranking_and_what_did_not_run_within_80_columns(bare: Path) -> None:
    write_implementation(bare, "plain", "baseline: true")
    write_implementation(bare, "mine", **WRONG)
    write_implementation(bare, "elsewhere", "requires: [mps]")
    (bare / "softmax/impls/prints.md").write_text("```python id=gpu\nprint(1)\n```\n")
    (bare / "softmax/results").mkdir()
    combine = "```python id=combine needs=../impls/*.md:benchmark\nprint('combined')\n```\n"
    (bare / "softmax/results/combined_results.md").write_text(combine)

    done = run_kbt(bare, "run", "softmax", "--env", "current")

    lines = done.stdout.splitlines()
    assert done.returncode == 1
    assert max(map(len, lines)) <= 80
    assert sum(line.startswith(current_device().name) for line in lines) == 1
    assert [line.split()[:2] for line in lines if line.split()[:1] in (["1"], ["–"])] == [
        ["1", "plain"],
        ["–", "mine"],
        ["–", "elsewhere"],
    ]
    assert "unsupported: needs" in done.stdout
    assert not re.search("combined|prints", done.stdout.lower())


def test_the_help_and_the_docs_list_the_exit_codes(bare: Path) -> None:
    said = " ".join(run_kbt(bare, "build", "--help").stdout.split())
    docs = (ROOT / "docs/exit-codes.md").read_text()

    for code, meaning in EXIT_CODES.items():
        assert f"{code} {meaning}" in said
        assert f"| {code} | {meaning}" in docs
