import json
from pathlib import Path

import jsonschema
import pytest
from builds import latency
from devices import H200
from msgspec.structs import replace

from kernels_bench_tools.records.codec import (
    ignore,
    read_committed,
    read_records,
    share_fields,
    write_records,
)
from kernels_bench_tools.records.committed import effect_files, record_file
from kernels_bench_tools.records.foreign import is_plain, near_records
from kernels_bench_tools.records.json_schema import PUBLISHED, schema_text
from kernels_bench_tools.records.record import (
    Environment,
    Failure,
    Judged,
    Provenance,
    Record,
    Status,
)

ROOT = Path(__file__).parents[2]


def record(**changes: object) -> Record:
    fields: dict[str, object] = {
        "ts": "2026-11-20T00:00:00Z",
        "run": "r",
        "impl": "mine",
        "wl": {"name": "w", "dtype": "float32"},
        "lat_ms": latency(),
        "ok": True,
        "schema": 1,
        "status": Status.OK,
    }
    return Record(**(fields | changes))


def test_written_records_are_read_back(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "a.jsonl"
    records = [record(), record(lat_ms=None, ok=False, status=Status.OOM, err=Failure(type="E", msg="m"))]

    write_records(path, records)

    assert read_records(path) == records


def test_what_records_of_a_run_share_is_on_the_first_and_read_for_all(tmp_path: Path) -> None:
    shared: dict[str, object] = {
        "env": Environment(torch="2.12.0"),
        "device": H200,
        "sentinels": {"copy": [0.5]},
        "ceilings": {"read": 4337.0},
    }
    first = record(provenance=Provenance(harness="1", packages={"numpy": "2"}, seed=1), **shared)
    second = replace(first, provenance=Provenance(harness="1", seed=2), process=1)
    own = replace(second, ceilings={"read": 4402.0}, provenance=Provenance(harness="2"))
    records = [first, second, own, replace(first, run="other")]

    write_records(tmp_path / "a.jsonl", share_fields(records))

    assert read_records(tmp_path / "a.jsonl") == records
    lines = [json.loads(line) for line in (tmp_path / "a.jsonl").read_text().splitlines()]
    written = [{name: line[name] for name in (*shared, "provenance") if line.get(name)} for line in lines]
    assert written[0].keys() == written[3].keys() == {*shared, "provenance"}
    assert written[1:3] == [
        {"provenance": {"seed": 2}},
        {"ceilings": own.ceilings, "provenance": {"harness": "2"}},
    ]


@pytest.mark.parametrize(
    ("slug", "folder", "count"),
    [
        ("nvidia-h200", "nvidia-h200", 1),
        ("nvidia-h200-mig-1g-18gb", "nvidia-h200", 1),
        ("nvidia-h200-mig-1g-18gb", "nvidia-h200-mig-1g-18gb", 1),
        ("nvidia-h200-nvl", "nvidia-h200", 0),
        ("nvidia-h200", "nvidia-h200-mig-1g-18gb", 0),
    ],
)
def test_records_of_a_part_of_a_gpu_belong_in_the_folder_of_the_gpu(
    tmp_path: Path, slug: str, folder: str, count: int
) -> None:
    path = record_file(tmp_path / "op", folder, "mine")
    write_records(path, [record(op="op", device=replace(H200, slug=slug))])

    assert len(read_committed(tmp_path, path, ignore)) == count


@pytest.mark.parametrize(
    ("ok", "error", "expected"),
    [
        (True, None, Status.OK),
        (False, None, Status.INCORRECT),
        (False, {"type": "E", "msg": "m"}, Status.ERROR),
    ],
)
def test_a_line_of_kernels_benchmarks_loads(
    ok: bool, error: object, expected: Status, tmp_path: Path
) -> None:
    times = None if error else {"p10": 1, "p50": 2, "p90": 3, "mean": 2, "iqr": 1, "raw_times": [1, 2, 3]}
    line = {
        "ts": "2025-12-01T00:00:00Z",
        "run": "ab",
        "impl": "torch_eager",
        "tags": {"family": "torch"},
        "wl": {"name": "LN_B16_S2048_D4096", "batch": 16, "dtype": "bfloat16", "device": "cuda", "seed": 0},
        "env": {"torch": "2.8.0", "cuda": "12.8", "gpu": "L40S", "sm": "8.9", "py": "3.11", "plat": "Linux"},
        "lat_ms": times and times | {"has_warnings": False, "reps": 5, "warmup": 2},
        "compile_ms": None if error else 1.5,
        "peak_bytes": None,
        "ok": ok,
        "absmax": float("inf"),
        "corr": {"mse": float("nan")},
        "err": error,
    }

    (tmp_path / "a.jsonl").write_text(json.dumps(line))  # with NaN and Infinity, as Python writes them
    (loaded,) = read_records(tmp_path / "a.jsonl", on_problem=pytest.fail)

    assert loaded.outcome is expected
    assert (loaded.schema, loaded.absmax, loaded.corr) == (0, None, {"mse": None})


@pytest.mark.parametrize("stem", PUBLISHED)
def test_the_published_schema_is_current(stem: str) -> None:
    published = (ROOT / "docs" / f"{stem}.schema.json").read_text()

    assert published == schema_text(PUBLISHED[stem]), "run `just schema`"


def test_the_committed_records_fit_the_published_schema() -> None:
    schema = json.loads((ROOT / "docs" / "record.schema.json").read_text())
    validate = jsonschema.Draft202012Validator(schema).validate

    for path in [*ROOT.glob("*/results/records/*/*.jsonl"), *effect_files(ROOT)]:
        lines = path.read_text().splitlines()
        for line in {lines[0], max(lines, key=len), lines[-1]}:
            validate(json.loads(line))


@pytest.mark.parametrize(
    ("text", "plain"),
    [
        ('{"event": 1}\n', True),
        ("[1, 2]\n3\n", True),
        ("", False),
        ('{"ts": "20', False),
        ('[1]\n{"impl": "x", "wl": {}}\n', True),
        ('{"impl": "x", "wl": {}, "schema": 1}\n', False),
        ('{"a": 1}\n{"impl": "x", "wl": {"name": "w"}, "lat_ms": {"mean": 1.0}}\n', False),
    ],
)
def test_a_file_is_plain_if_it_is_json_without_records(tmp_path, text, plain):
    (tmp_path / "x.jsonl").write_text(text)

    assert is_plain(tmp_path / "x.jsonl") is plain


FOREIGN = {"impl": "x", "wl": {"name": "w", "size": 4}}


@pytest.mark.parametrize(
    ("fields", "p50"),
    [
        ({"lat_ms": {"p50": 0.5}}, 0.5),
        ({"lat_ms": {"median": 0.5, "mean": 9.0}}, 0.5),
        ({"lat_ms": {"mean": 0.5}}, 0.5),
        ({"lat_ms": {"p50": 0.5, "p90": "n/a", "reps": 0, "iqr": None}}, 0.5),
        (
            {
                "lat_ms": {"p50": 0.5},
                "ts": 1700000000,
                "run": 3,
                "tags": {"n": 1},
                "device": "cuda",
                "env": [],
            },
            0.5,
        ),
        ({"lat_ms": {"p50": 0.5}, "compile_ms": float("nan")}, 0.5),
        ({"ok": False}, None),
        ({"err": "out of memory"}, None),
        ({"err": "late", "lat_ms": {"p50": 0.5}}, None),
    ],
)
def test_a_record_of_another_harness_needs_little(tmp_path, fields, p50):
    (tmp_path / "a.jsonl").write_text(json.dumps({**FOREIGN, **fields}) + "\n")
    (loaded,) = read_records(tmp_path / "a.jsonl", on_problem=pytest.fail)

    assert (loaded.workload, loaded.lat_ms and loaded.lat_ms.p50) == ("w", p50)
    assert loaded.outcome is (Status.OK if p50 else Status.ERROR)
    assert loaded.judged is Judged.NOT


@pytest.mark.parametrize(("more", "reps"), [({}, 1), ({"raw_times": [0.4, 0.5, 0.6]}, 3), ({"reps": 9}, 9)])
def test_a_time_of_another_harness_is_of_as_many_calls_as_it_has_samples(tmp_path, more, reps):
    (tmp_path / "a.jsonl").write_text(json.dumps(FOREIGN | {"lat_ms": {"p50": 0.5, **more}}))

    (loaded,) = read_records(tmp_path / "a.jsonl")

    assert loaded.lat_ms.reps == reps


NEAR = [
    ({"impl": None}, "it has no impl"),
    ({"wl": {"size": 4}}, "it has no wl.name"),
    ({"wl": "w"}, "it has no wl.name"),
    ({"lat_ms": {"p99": 1.0}}, "lat_ms has no numeric p50, median or mean"),
    ({"lat_ms": {"p50": "0.5 ms"}}, "lat_ms has no numeric p50, median or mean"),
    ({"lat_ms": None}, "lat_ms has no numeric p50, median or mean"),
    ({"lat_ms": {"mean": -1}}, "Expected `float` >= 0.0"),
    ({"lat_ms": {"p50": float("nan")}}, "lat_ms has no numeric p50, median or mean"),
    ({"note": "\ud800"}, "surrogate"),
]


@pytest.mark.parametrize(("fields", "why"), NEAR)
def test_a_line_that_is_nearly_a_record_is_named_and_its_file_is_plain(tmp_path, fields, why):
    line = {**FOREIGN, "lat_ms": {"p50": 0.5}, **fields}
    path = tmp_path / "a.jsonl"
    path.write_text('{"event": 1}\n' + json.dumps({name: it for name, it in line.items() if it}) + "\n")

    ((number, said),) = near_records(path)
    assert (is_plain(path), number) == (True, 2)
    assert why in said
