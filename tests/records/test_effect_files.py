"""Committed files of ``kbt effect``: which lines are theirs, and what a new run replaces."""

from pathlib import Path
from typing import Any

import pytest
from effect_records import effect_record, latency
from msgspec.structs import replace

from kernels_bench_tools.cli.record import keep_records
from kernels_bench_tools.errors import RecordError
from kernels_bench_tools.notebooks.project import find_project
from kernels_bench_tools.records.codec import read_committed, refuse, write_records
from kernels_bench_tools.records.committed import effect_file
from kernels_bench_tools.records.record import Failure, Record, Status

GOOD = effect_record()
FAILED = replace(
    GOOD, status=Status.ERROR, ok=False, lat_ms=None, effect=None, err=Failure(type="E", msg="m")
)


def with_effect(**fields: Any) -> Record:
    assert GOOD.effect
    return replace(GOOD, effect=replace(GOOD.effect, **fields))


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "pyproject.toml").write_text("[tool.kbt]\n")
    return effect_file(tmp_path, "llama-3.2-1b", GOOD, ())


@pytest.mark.parametrize(
    ("record", "problem"),
    [
        (
            replace(GOOD, impl="other"),
            "is a record of implementation 'rms_norm--other', expected 'rms_norm--mine'",
        ),
        (effect_record(model="tiny"), "is a record of model 'tiny', expected 'llama-3.2-1b'"),
        (with_effect(others=["rotary/fast"]), "is a record of implementation 'rms_norm--mine+rotary--fast'"),
        (with_effect(model="../x"), "effect.model is not a valid name"),
        (with_effect(phase="decode 1"), "Expected `str` matching regex"),
        (with_effect(level=5), "Expected `int` <= 4"),
        (with_effect(baseline=latency(0.0)), "its p50 is 0"),
        (with_effect(again=latency(1e-300)), "less than 1e-09 ms"),
        (with_effect(others=["../../x"]), "effect.others is not a valid name"),
        (replace(GOOD, effect=None), "is not a record of `kbt effect`"),
        (with_effect(calls=0), "Expected `int` >= 1"),
    ],
)
def test_a_line_of_something_else_costs_itself_only(
    file: Path, tmp_path: Path, record: Record, problem: str
) -> None:
    write_records(file, [GOOD, record, FAILED])
    problems: list[RecordError] = []

    found = read_committed(tmp_path, file, problems.append)

    assert [*found] == [GOOD, FAILED]
    (error,) = problems
    assert str(error).startswith(f"{file.relative_to(tmp_path)}:2: ")
    assert problem in str(error)


def test_an_effect_among_the_results_of_an_operator_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rms_norm/results/records/nvidia-h200/mine.jsonl"
    write_records(path, [GOOD])
    problems: list[RecordError] = []

    assert not read_committed(tmp_path, path, problems.append)
    assert "belongs in effects/" in str(problems[0])


@pytest.mark.parametrize("above", [0, 1, 2])
def test_a_link_is_not_read_or_written(file: Path, tmp_path: Path, above: int) -> None:
    outside = tmp_path / "outside"
    write_records(effect_file(outside, "llama-3.2-1b", GOOD, ()), [GOOD])
    link = file.parents[above]
    link.parent.mkdir(parents=True, exist_ok=True)
    link.symlink_to(outside / link.relative_to(tmp_path))
    problems: list[RecordError] = []

    assert not read_committed(tmp_path, file, problems.append)
    assert "symbolic link" in str(problems[0])
    with pytest.raises(RecordError, match="symbolic link"):
        keep_records(find_project(tmp_path), {file: [GOOD]})


def test_phases_that_were_measured_again_are_replaced_and_others_kept(file: Path, tmp_path: Path) -> None:
    project = find_project(tmp_path)
    keep_records(
        project, {file: [effect_record(), effect_record(module="device"), effect_record(phase="decode-32")]}
    )
    keep_records(project, {file: [effect_record(phase="prefill-8"), effect_record(candidate_ms=3.0)]})
    keep_records(project, {file: [FAILED]})

    found = [
        (one.effect.phase, one.effect.module, one.lat_ms.p50)
        for one in read_committed(tmp_path, file, refuse)
        if one.effect and one.lat_ms
    ]
    assert found == [("decode-32", "eager", 2.0), ("prefill-8", "eager", 2.0), ("decode-1", "eager", 3.0)]


def test_a_phase_of_more_layers_is_kept_until_its_file_is_removed(
    file: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    project = find_project(tmp_path)
    for layers in (2, 1, 0, 2):
        keep_records(project, {file: [with_effect(layers=layers)]})

    measured, fewer, replaced, again = capsys.readouterr().out.splitlines()
    assert "1 of 1 phases measured" in measured
    assert "1 of 1 phases measured" in replaced
    why = ": measured with fewer layers or in fewer processes than before (remove the file to replace it)"
    assert fewer.endswith(why)
    assert again.endswith(why)
    assert [one.effect.layers for one in read_committed(tmp_path, file, refuse) if one.effect] == [0]
