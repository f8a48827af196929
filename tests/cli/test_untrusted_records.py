"""Files of records that came from elsewhere: what ``kbt check`` names and ``kbt record`` refuses to write."""

import json
from pathlib import Path
from typing import Any

import pytest
from projects import run_kbt

DEVICE = {"kind": "cpu", "name": "Test CPU", "slug": "test-cpu"}
RECORD = {"ts": "t", "run": "r", "impl": "plain", "op": "softmax", "wl": {"name": "w"}, "device": DEVICE}
LINE = json.dumps(RECORD | {"schema": 1, "status": "error", "err": {"type": "E", "msg": "m"}})


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*.jsonl")}


def test_check_names_every_bad_line_of_the_committed_records_and_links_among_them(bare: Path) -> None:
    file = bare / "softmax" / "results" / "records" / "test-cpu" / "plain.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(
        f"{LINE}\n<<<<<<< HEAD\n{LINE.replace('test-cpu', 'other')}\n{LINE[:40]}", encoding="utf-8"
    )
    file.with_name("linked.jsonl").symlink_to(file)
    file.with_name("loop.jsonl").symlink_to("loop.jsonl")
    file.with_name("a\nb.jsonl").write_text("no record\n")
    (bare / "loop").symlink_to("loop")

    done = run_kbt(bare, "check")

    where = "softmax/results/records/test-cpu"
    assert done.returncode == 1
    assert sorted(line.removeprefix(f"{where}/").partition(": ")[0] for line in done.stderr.splitlines()) == [
        "a\\nb.jsonl:1",
        "linked.jsonl",
        "loop.jsonl",
        *(f"plain.jsonl:{line}" for line in (2, 3, 4)),
    ]
    assert done.stderr.count("cannot be read (it is a symbolic link") == 2
    for why in ("a merge conflict marker", "of device 'other', expected 'test-cpu'", "may be cut off"):
        assert done.stderr.count(why) == 1
    assert run_kbt(bare, "check", "loop").stderr.startswith("kbt: loop: there is no such notebook")


@pytest.mark.parametrize(
    "fields",
    [
        {"impl": "../../../../../outside"},
        {"op": "../outside"},
        {"device": DEVICE | {"slug": "../../../../outside"}},
    ],
    ids=["implementation", "operator", "device"],
)
def test_record_writes_nothing_outside_of_the_project(
    bare: Path, tmp_path: Path, fields: dict[str, Any]
) -> None:
    source = tmp_path / "source.jsonl"
    source.write_text(LINE + "\n" + json.dumps(json.loads(LINE) | fields) + "\n", encoding="utf-8")

    done = run_kbt(bare, "record", str(source))

    assert "source.jsonl:2: is not a record" in done.stderr
    assert files_below(tmp_path) == {"source.jsonl", "bare/softmax/results/records/test-cpu/plain.jsonl"}


@pytest.mark.parametrize("link", ["results", "results/records", "results/records/test-cpu"])
def test_record_follows_no_link(bare: Path, tmp_path: Path, link: str) -> None:
    source, outside = tmp_path / "source.jsonl", tmp_path / "outside"
    source.write_text(LINE + "\n", encoding="utf-8")
    outside.mkdir()
    (bare / "softmax" / link).parent.mkdir(parents=True, exist_ok=True)
    (bare / "softmax" / link).symlink_to(outside)

    done = run_kbt(bare, "record", str(source))

    assert done.returncode == 2
    assert "symbolic link" in done.stderr
    assert files_below(outside) == set()


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (f"=======\n{LINE}\n", 1),
        (f"{LINE}\n{json.dumps(json.loads(LINE) | {'schema': 2})}", 2),
        (f"{LINE}\n{LINE[:-30]}", 2),
    ],
    ids=["conflict", "newer", "cut off"],
)
def test_record_keeps_a_file_with_a_bad_line_as_it_is(
    bare: Path, tmp_path: Path, text: str, line: int
) -> None:
    source = tmp_path / "source.jsonl"
    source.write_text(LINE + "\n" + LINE.replace("plain", "another") + "\n", encoding="utf-8")
    file = bare / "softmax" / "results" / "records" / "test-cpu" / "another.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(text, encoding="utf-8")

    done = run_kbt(bare, "record", str(source))

    assert done.returncode == 2
    assert f"another.jsonl:{line}: is not a record" in done.stderr
    assert file.read_text(encoding="utf-8") == text
    assert file.with_name("plain.jsonl").exists()
