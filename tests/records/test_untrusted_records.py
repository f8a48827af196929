"""Records are read from files that anybody may have written: a bad line costs itself, and is named."""

import json
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kernels_bench_tools.errors import RecordError
from kernels_bench_tools.records.codec import ignore, read_committed, read_records, valid_lines
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.foreign import mark_unjudged
from kernels_bench_tools.records.record import Judged

CPU = {"kind": "cpu", "name": "AMD EPYC, 2 cores", "slug": "amd-epyc-2-cores"}
LATENCY = {"p10": 1.0, "p50": 1.0, "p90": 1.0, "mean": 1.0, "iqr": 0.0, "raw_times": [1.0], "reps": 1}
GOOD: dict[str, Any] = {
    "ts": "2026-11-20T00:00:00Z",
    "run": "r",
    "impl": "mine",
    "wl": {"name": "w", "dtype": "float32"},
    "lat_ms": LATENCY,
    "ok": True,
    "schema": 1,
    "op": "norm",
    "status": "ok",
    "device": CPU,
}
LINE = json.dumps(GOOD)


def changed(**fields: Any) -> str:
    return json.dumps(GOOD | fields)


def timed(**fields: Any) -> str:
    return changed(lat_ms=LATENCY | fields)


BAD = {
    "not finite": timed(p50=float("nan")),
    "infinite": LINE.replace('"p50": 1.0', '"p50": 1e999'),
    "zero": timed(p50=0),
    "negative": timed(p50=-1.0),
    "a negative sample": timed(raw_times=[1.0, -1.0]),
    "no repetitions": timed(reps=0),
    "longer than a year": timed(p50=1e300),
    "shorter than any": timed(p10=1e-300, p50=1e-300, raw_times=[1e-300]),
    "a shorter quantity": changed(quantities={"e2e": {"p50": 1e-300}}),
    "an unknown status": changed(status="excellent"),
    "a newer schema": changed(schema=2, novelty=1),
    "a conflict marker": "<<<<<<< HEAD",
    "another conflict marker": "=======",
    "a byte order mark": "\ufeff" + LINE,
    "half a line": LINE[:-30],
    "a wrong type": changed(impl=3),
    "a list": "[]",
    "a huge integer": LINE.replace('"schema": 1', '"schema": 1, "peak_bytes": 1' + "0" * 400),
    "a huge integer in the workload": changed(wl={"name": "w", "n": 10**400}),
    "deep nesting": LINE.replace('"w"', "[" * 100_000 + "]" * 100_000),
    "an implementation that is a path": changed(impl="../../../outside"),
    "an absolute implementation": changed(impl="/tmp/outside"),
    "no implementation": changed(impl=""),
    "a hidden implementation": changed(impl=".mine"),
    "an operator that is a path": changed(op="../norm"),
    "a workload that is a path": changed(wl={"name": "../w"}),
    "a workload with a bidirectional override": changed(wl={"name": "w\u202e"}),
    "a workload that is no text": changed(wl={"name": ["w"]}),
    "a device that is a path": changed(device=CPU | {"slug": "../../outside"}),
    "a device that is no slug": changed(device=CPU | {"slug": "AMD"}),
    "a device without a name in paths": changed(device=CPU | {"slug": ""}),
}


@pytest.fixture
def committed(tmp_path: Path) -> Path:
    """The file of an implementation's committed records, which is not there yet."""
    path = tmp_path / "norm" / "results" / "records" / CPU["slug"] / "mine.jsonl"
    path.parent.mkdir(parents=True)
    return path


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD.keys())
def test_a_bad_line_is_named_and_all_others_are_kept(tmp_path: Path, bad: str) -> None:
    path = tmp_path / "norm.jsonl"
    path.write_text("\n".join([LINE, bad, LINE, ""]), encoding="utf-8")
    problems: list[RecordError] = []

    records = read_records(path, "norm.jsonl", problems.append)

    assert len(records) == 2
    assert len(problems) == 1
    assert str(problems[0]).startswith("norm.jsonl:2: is not a record: ")
    assert str(problems[0]).isprintable()
    assert len(str(problems[0])) < 700
    assert valid_lines(path).decode() == f"{LINE}\n{LINE}\n"


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"latncy": 1}, "latncy"),
        ({"schema": 99}, "newer"),
        ({"lat_ms": None}, "contradict"),
        ({"status": "error", "ok": False}, "contradict"),
        ({"status": "incorrect"}, "contradict"),
        ({"ok": False}, "contradict"),
        # What must have no rank.
        ({"flags": ["stale_output"]}, "contradict"),
        ({"wl": {"batch": 16}}, "no wl.name"),
    ],
)
def test_a_record_with_fields_that_are_unknown_or_inconsistent_is_refused(
    tmp_path: Path, changes: dict[str, Any], said: str
) -> None:
    (tmp_path / "norm.jsonl").write_text(changed(**changes) + "\n", encoding="utf-8")

    with pytest.raises(RecordError, match=said):
        read_records(tmp_path / "norm.jsonl")


@pytest.mark.parametrize(
    ("last", "cut_off"), [(LINE[:-30], True), (LINE[:-20], True), ("[1", True), ("[1]", False)]
)
def test_a_last_line_that_is_cut_off_is_ignored_unless_problems_are_asked_for(
    tmp_path: Path, last: str, cut_off: bool
) -> None:
    path = tmp_path / "norm.jsonl"
    path.write_text(f"{LINE}\n{last}", encoding="utf-8")
    problems: list[RecordError] = []

    assert len(read_records(path, "norm.jsonl", problems.append)) == 1
    assert [error.where for error in problems] == ["norm.jsonl:2"]
    assert ("it may be cut off" in str(problems[0])) == cut_off
    with nullcontext() if cut_off else pytest.raises(RecordError, match="2: is not a record"):
        assert len(read_records(path)) == 1


def test_of_many_bad_lines_the_first_are_named(tmp_path: Path) -> None:
    path = tmp_path / "norm.jsonl"
    path.write_text("no record\n" * 1000 + LINE + "\n", encoding="utf-8")
    problems: list[RecordError] = []

    assert len(read_records(path, "norm.jsonl", problems.append)) == 1
    assert len(problems) == 21
    assert "has 980 more lines" in str(problems[-1])


@pytest.mark.parametrize("above", range(4))
def test_a_link_among_committed_records_is_not_followed(tmp_path: Path, committed: Path, above: int) -> None:
    committed.write_text(LINE + "\n", encoding="utf-8")
    place = [committed, *committed.parents][above]
    place.symlink_to(place.rename(tmp_path / "elsewhere"))
    problems: list[RecordError] = []

    assert committed.is_file()
    assert not read_committed(tmp_path, committed, problems.append)
    assert "symbolic link" in str(problems[0])


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"impl": "torch"}, "is a record of implementation 'torch', expected 'mine'"),
        ({"op": "rotary"}, "is a record of operator 'rotary', expected 'norm'"),
        (
            {"device": CPU | {"slug": "nvidia-h200"}},
            "is a record of device 'nvidia-h200', expected 'amd-epyc-2-cores'",
        ),
        ({"device": None, "env": {"gpu": "NVIDIA B300"}, "run": "s"}, "is a record of device 'nvidia-b300'"),
        ({"device": None, "env": {"cpu": "Cray"}, "run": "s"}, "is a record of device 'cray'"),
    ],
)
def test_committed_records_are_held_to_folder_and_file_name(committed: Path, fields: Any, said: str) -> None:
    other = changed(**({"schema": 0} if "env" in fields else {}), **fields)
    committed.write_text(f"{LINE}\n{other}\n", encoding="utf-8")
    problems: list[RecordError] = []

    assert len(read_committed(committed.parents[4], committed, problems.append)) == 1
    assert f"mine.jsonl:2: {said}" in str(problems[0])


def test_records_of_a_process_whose_first_line_is_lost_keep_their_device(committed: Path) -> None:
    shared = changed(run="second", device=None)
    committed.write_text("\n".join([LINE, changed(run="second")[:-9], shared, ""]), encoding="utf-8")

    first, second = read_committed(committed.parents[4], committed, ignore)

    assert first.device == second.device == msgspec.convert(CPU, Device)


@pytest.mark.parametrize("slug", ["../x", "/x", "a/b", "A", "", "a--b", "-a", "x" * 201, "a b", "\u202e"])
def test_a_device_has_a_slug_that_can_be_a_path(slug: str) -> None:
    with pytest.raises(ValueError, match="slug"):
        Device(kind="cpu", name="x", slug=slug)


@pytest.mark.parametrize("error", [0.0, float("nan")])
def test_a_record_that_a_cell_wrote_by_itself_is_not_judged(error: float, tmp_path: Path) -> None:
    fields = {name: value for name, value in GOOD.items() if name not in {"schema", "status"}}
    line = json.dumps(fields | {"judged": "separately", "absmax": error})
    (tmp_path / "a.jsonl").write_text(f"{line}\n")
    mark_unjudged(tmp_path, (), 1)
    (record,) = read_records(tmp_path / "a.jsonl")

    assert (record.judged, record.process) == (Judged.NOT, 1)
