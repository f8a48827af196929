"""``kbt list --records``: what the committed records cover, and what of it needs to be measured again."""

import json
from pathlib import Path
from typing import Any

import pytest
from builds import latency
from devices import H200
from projects import assert_one_line, run_kbt

from kernels_bench_tools.records.code import code_digest
from kernels_bench_tools.records.codec import write_records
from kernels_bench_tools.records.record import Failure, Flag, Provenance, Record, Status

CODE = "print('measure')"


def write_notebook(project: Path, name: str, code: str = CODE) -> None:
    header = "# /// script\n# dependencies = []\n# ///\n"
    text = f"Prose.\n\n```python id=benchmark outputs=softmax.jsonl\n{header}{code}\n```\n"
    (project / "softmax" / "impls" / f"{name}.md").write_text(text)


def measured(name: str, workload: str, workload_set: str, **fields: Any) -> Record:
    """Return a row that was measured with CODE."""
    given: dict[str, Any] = {
        "lat_ms": latency(raw_times=[1.0] * 8, reps=9),
        "ok": True,
        "ts": "2026-11-20T10:00:00Z",
    } | fields
    given["wl"] = {"name": workload, "set": workload_set}
    origin = Provenance(cell="benchmark", code_digest=code_digest(CODE))
    return Record(run="r", impl=name, op="softmax", device=H200, provenance=origin, **given)


@pytest.fixture
def recorded(bare: Path) -> Path:
    """A project with two implementations: ``plain`` has records of two sets, ``mine`` of one."""
    folder = bare / "softmax" / "results" / "records" / H200.slug
    folder.mkdir(parents=True)
    for name in ("plain", "mine"):
        write_notebook(bare, name)
        rows = [measured(name, "A", "default", process=process) for process in range(3)]
        rows.append(measured(name, "B", "default", ts="2026-11-19T10:00:00Z"))
        rows += [measured(name, "C", "large")] if name == "plain" else []
        write_records(folder / f"{name}.jsonl", rows)
    return bare


def covered(project: Path, *arguments: str) -> dict[tuple[str, str], dict[str, Any]]:
    """Return the rows of ``kbt list --records`` by implementation and set."""
    done = run_kbt(project, "list", "--records", "--json", *arguments)
    assert done.returncode == 0, done.stderr
    return {(row["implementation"], row["set"]): row for row in json.loads(done.stdout)["records"]}


def test_each_set_is_listed_and_what_only_another_implementation_has_is_not_measured(recorded: Path) -> None:
    row = covered(recorded)["plain", "default"]
    assert (row["measured"], row["workloads"], row["processes"], row["date"]) == (2, 2, 3, "2026-11-19")
    assert (row["device"], row["mode"], row["stale"]) == ("nvidia-h200", "fwd", False)
    assert covered(recorded, "softmax/mine")["mine", "large"]["rows"] == 0


def test_records_are_stale_after_an_edit_of_code_but_not_of_prose(recorded: Path) -> None:
    write_notebook(recorded, "mine", CODE + "\nprint('faster')")
    plain = recorded / "softmax" / "impls" / "plain.md"
    plain.write_text(plain.read_text().replace("Prose", "Other prose"))

    rows = covered(recorded)

    assert [rows[name, "default"]["stale"] for name in ("mine", "plain")] == [True, False]


def test_an_incorrect_result_does_not_count_as_measured_and_a_disturbed_one_does(recorded):
    path = recorded / "softmax" / "results" / "records" / H200.slug / "mine.jsonl"
    wrong = {"ok": False, "status": Status.INCORRECT, "err": Failure(type="Incorrect", msg="3 NaN")}
    for first, count, others in (
        (measured("mine", "A", "default", **wrong), 0, {"incorrect": 1}),
        (measured("mine", "A", "default", flags=[Flag.DISTURBED]), 1, {"disturbed": 1}),
    ):
        write_records(path, [first, measured("mine", "A", "default", process=1)])
        row = covered(recorded)["mine", "default"]
        assert (row["measured"], row["workloads"], row["others"]) == (count, 1, others)


def test_an_unknown_device_is_an_error_that_lists_the_known_ones(recorded: Path) -> None:
    done = run_kbt(recorded, "list", "--records", "--device", "t4")

    assert_one_line(done, "kbt: --device t4: has no records here. ", "Devices with records: nvidia-h200.")
