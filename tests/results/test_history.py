"""What git has of a row's times, what differs between two of them, and when that is a change."""

import random
from collections.abc import Callable
from copy import deepcopy
from math import log
from pathlib import Path

import pytest
from history import make_repository, rows, with_status
from msgspec.structs import replace
from projects import git

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.git import Repository
from kernels_bench_tools.records.codec import write_records
from kernels_bench_tools.records.record import Flag, HubKernel, Record, Status
from kernels_bench_tools.records.summary import CauseKind, ChangeKind, DeviceSummary, Row
from kernels_bench_tools.results.history.causes import RowName, measurement_of, points_of, rows_of
from kernels_bench_tools.results.history.changes import Step, compare_rows, decide_changes
from kernels_bench_tools.results.history.states import read_history, read_report, record_paths
from kernels_bench_tools.results.history.timeline import History

THEN = (0.1000, 0.1001, 0.0999)
SLOWER = (0.1040, 0.1041, 0.1039)
HUB = {"hub": [HubKernel(repo="a/b", commit="2")]}


def step(before: list[Record], after: list[Record], workload: str = "a") -> Step:
    row = RowName("op", "mine", "nvidia-h200", workload)
    sides = [measurement_of(next(iter(rows_of(one).values()))) for one in (before, after)]
    return Step(row, sides[0], sides[1])


def history(root: Path, *names: str) -> list[Step]:
    return read_history(Repository(root), [record_paths(*(names or ["op"]))])


@pytest.mark.parametrize(
    ("changed", "kinds", "detail"),
    [
        ({}, [CauseKind.NOTHING], ""),
        ({"code_digest": "c2"}, [CauseKind.CODE], "code c1 → c2"),
        ({"notebook_digest": "n2"}, [CauseKind.NOTHING], ""),  # prose
        ({"notebook_digest": "n2", "code_digest": ""}, [CauseKind.CODE], "notebook n1 → n2"),
        ({"operator_digest": "o2"}, [CauseKind.OPERATOR], "module o1 → o2"),
        ({"torch": "2.13.0"}, [CauseKind.TOOLCHAIN], "torch 2.12.0 → 2.13.0"),
        ({"packages": {"quack-kernels": "0.7"}}, [CauseKind.TOOLCHAIN], "quack-kernels 0.6 → 0.7"),
        ({"packages": {"quack-kernels": "0.6", "pip": "9"}}, [CauseKind.NOTHING], ""),
        ({"hub": [HubKernel(repo="a/b", commit="3")]}, [CauseKind.TOOLCHAIN], "a/b 2 → 3"),
        ({"harness": "2"}, [CauseKind.HARNESS], "version 1 → 2"),
        ({"copy": 0.51}, [CauseKind.DEVICE], "sentinel copy +2.00 %"),
        ({"copy": 0.5005}, [CauseKind.NOTHING], ""),
        ({"operator_digest": ""}, [CauseKind.NOTHING], ""),  # an old record does not know it
        (
            {"torch": "2.13.0", "code_digest": "c2"},
            [CauseKind.CODE, CauseKind.TOOLCHAIN],
            "code c1 → c2; torch 2.12.0 → 2.13.0",
        ),
    ],
)
def test_what_differs_between_two_measurements_is_named(changed, kinds, detail):
    common = {"notebook_digest": "n1", "packages": {"quack-kernels": "0.6", "pip": "8"}, **HUB}
    found = step(rows("r1", *THEN, **common), rows("r2", *THEN, **(common | changed)))

    assert [cause.kind for cause in found.causes] == kinds
    assert "; ".join(cause.detail for cause in found.causes) == detail


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (THEN, SLOWER, ChangeKind.SLOWER),
        (SLOWER, THEN, ChangeKind.FASTER),
        (THEN, (0.1002, 0.1003, 0.1001), ChangeKind.SAME),
        (THEN, (0.1004, 0.10041, 0.10039), ChangeKind.SAME),  # certain, and less than 0.5 %
        (THEN, (0.0900, 0.1050, 0.1300), ChangeKind.SAME),  # large, and not certain
        (THEN, SLOWER[:2], ChangeKind.UNSURE),
    ],
)
def test_a_time_changed_if_the_intervals_are_apart_by_more_than_half_a_percent(before, after, kind):
    (found,) = decide_changes([step(rows("r1", *before), rows("r2", *after, code_digest="c2"))])

    assert found.kind is kind


def test_a_row_that_varies_while_nothing_changes_needs_a_larger_difference():
    noise = [step(rows("r1", *THEN), rows("r2", 0.105, 0.1051, 0.1049))]
    change = step(rows("r3", *THEN), rows("r4", *SLOWER, code_digest="c2"))
    other = step(rows("r3", *THEN, workload="b"), rows("r4", *SLOWER, workload="b", code_digest="c2"), "b")

    decide_changes([*noise, change, other], [*noise, change, other])

    assert (change.kind, other.kind) == (ChangeKind.SAME, ChangeKind.SLOWER)
    assert change.floor == pytest.approx(0.0488, rel=0.01)
    assert noise[0].unexplained  # its own difference is not its noise


def test_of_many_rows_without_a_change_few_are_called_one():
    chance = random.Random(1)

    def times() -> list[float]:
        return [0.1 * (1 + chance.gauss(0, 0.004)) for _ in range(3)]

    found = [step(rows("r1", *times()), rows("r2", *times(), code_digest="c2"), str(n)) for n in range(400)]
    real = [step(rows("r1", *THEN), rows("r2", *SLOWER, code_digest="c2"), f"real {n}") for n in range(40)]

    decide_changes([*found, *real])

    assert sum(one.kind is ChangeKind.SLOWER for one in real) == 40
    assert sum(one.kind is not ChangeKind.SAME for one in found) <= 3


@pytest.mark.parametrize(("changed", "unchanged", "found"), [(1, 14, 1), (1, 19, 0), (10, 10, 10)])
def test_a_change_needs_to_be_more_certain_the_fewer_of_the_rows_changed(changed, unchanged, found):
    """With a p-value of 0.003, which is 0.05 of one in fifteen."""
    before, after = rows("r1", *THEN), rows("r2", *(1.0052 * time for time in THEN), code_digest="c2")
    pairs = [(before, after)] * changed + [(before, rows("r2", *THEN, code_digest="c2"))] * unchanged

    steps = decide_changes([step(*pair, str(number)) for number, pair in enumerate(pairs)])

    assert sum(one.kind is ChangeKind.SLOWER for one in steps) == found


def test_the_noise_of_a_row_is_the_95_percent_quantile_of_its_latest_20_differences():
    percents = [50, -19, 25, *range(1, 19)]
    times = [[time * (1 + percent / 100) for time in THEN] for percent in percents]
    quiet = [step(rows("r1", *THEN), rows("r2", *after)) for after in times]
    change = step(rows("r2", *THEN), rows("r3", *SLOWER, code_digest="c2"))  # from where they ended

    decide_changes([change], quiet)

    assert change.floor == pytest.approx(-log(0.81))


@pytest.mark.parametrize(("failed_before", "kind"), [(False, ChangeKind.FAILS), (True, ChangeKind.PASSES)])
def test_a_row_that_fails_now_or_passes_now_is_a_change_without_times(failed_before, kind):
    good = rows("r1", *THEN)
    bad = with_status(rows("r2", *THEN), status=Status.OOM)

    (found,) = decide_changes([step(bad, good) if failed_before else step(good, bad)])

    assert found.kind is kind


def test_a_row_that_is_wrong_now_is_a_change_although_its_times_are_the_same():
    good = rows("r1", *THEN)
    wrong = [replace(one, status=Status.INCORRECT, ok=False) for one in good]
    sides = ({step(good, one).row: step(good, one).after} for one in (good, wrong))

    (found,) = compare_rows(*sides, [])

    assert found.kind is ChangeKind.FAILS


def test_rows_of_a_busy_machine_have_no_verdict_unless_they_fail():
    busy = [replace(one, flags=[Flag.DISTURBED]) for one in rows("r2", *SLOWER)]
    (failed,) = decide_changes([step(rows("r1", *THEN), with_status(busy, status=Status.OOM))])
    assert failed.kind is ChangeKind.FAILS

    found = decide_changes([step(rows("r1", *THEN), busy), step(busy, busy), step(busy, rows("r3", *THEN))])

    assert {one.kind for one in found} == {ChangeKind.UNSURE}


def test_each_measurement_is_a_step_of_the_commit_that_brought_it(tmp_path):
    first, second = rows("r1", *THEN), rows("r2", *SLOWER, torch="2.13.0")
    rewritten = rows("r1", *THEN, code_digest="c9")  # the same measurement, with another digest
    other = rows("r3", *THEN, workload="b")
    third = rows("r4", *SLOWER, torch="2.13.0", code_digest="c9")
    root = make_repository(tmp_path, [first, [*rewritten, *other], [*second, *other], [*third, *other]])
    (root / "op/results/records/nvidia-h200/mine.jsonl").unlink()
    git(root, "commit", "-qam", "removed")

    found = history(root, "op")

    told = [
        (one.row.workload, one.commit.subject, one.kind, [str(why) for why in one.causes]) for one in found
    ]
    assert told == [
        ("a", "version 0", ChangeKind.NEW, []),
        ("a", "version 2", ChangeKind.SLOWER, ["code", "toolchain: torch 2.12.0 → 2.13.0"]),
        ("a", "version 3", ChangeKind.SAME, ["code"]),
        ("b", "version 1", ChangeKind.NEW, []),
    ]


def test_a_merge_brings_what_was_measured_on_its_branch(tmp_path):
    root = make_repository(tmp_path, [rows("r1", *THEN)])
    main = git(root, "branch", "--show-current")
    git(root, "checkout", "-qb", "side")
    (root / "other").touch()
    file = root / "op/results/records/nvidia-h200/mine.jsonl"
    write_records(file, rows("r2", *SLOWER, code_digest="c2"))
    git(root, "add", ".")
    git(root, "commit", "-qm", "on the branch")
    git(root, "checkout", "-q", main)
    git(root, "merge", "-q", "--no-ff", "-m", "merged", "side")

    assert [one.commit.subject for one in history(root)] == ["version 0", "merged"]


def test_records_that_cannot_be_read_and_names_with_odd_characters_are_no_steps(tmp_path):
    root = make_repository(tmp_path, [rows("r1", *THEN)])
    folder = root / "op/results/records/nvidia-h200"
    (folder / "mine.jsonl").write_text("{broken\n")
    (folder / "\1x\2y\nz.jsonl").write_text("no record\n")
    git(root, "add", ".")
    git(root, "commit", "-qm", "\1subject\2 with marks")

    assert [one.commit.subject for one in history(root)] == ["version 0"]


Edit = Callable[[DeviceSummary, dict[str, Row]], None]
TRITON = "triton_layer_norm"


def scaled(*factors: float) -> Edit:
    """Multiply the times of one implementation, interval included; the last factor is that of all other workloads."""

    def edit(_: DeviceSummary, rows: dict[str, Row]) -> None:
        for number, point in enumerate(rows[TRITON].points):
            for name in ("p50_ms", "ci_low_ms", "ci_high_ms"):
                setattr(point, name, getattr(point, name) * factors[min(number, len(factors) - 1)])

    return edit


def fixed_now(_: DeviceSummary, rows: dict[str, Row]) -> None:
    for point in rows["torch_layer_norm"].points:
        point.status, point.p50_ms = Status.ERROR, None


def passed_before(_: DeviceSummary, rows: dict[str, Row]) -> None:
    for point in rows["hf_kernels_layer_norm"].points:
        point.status, point.p50_ms = Status.OK, 1.0
    scaled(0.5)(_, rows)


def renamed(view: DeviceSummary, rows: dict[str, Row]) -> None:
    view.rows.remove(rows[TRITON])
    view.rows.append(replace(rows[TRITON], implementation="old", title="Old"))


@pytest.mark.parametrize(
    ("edit", "expected", "counted"),
    [
        (scaled(1.0), [], "0 slower, 0 faster"),
        (scaled(2.0, 1.0), [("faster", TRITON)], "0 slower, 1 faster (unexplained)"),
        # A change that is not significant counts neither for nor against.
        (scaled(1.05, 0.97), [("faster", TRITON)], "0 slower, 1 faster (unexplained), 3 no change"),
        (
            scaled(0.8, 2.0),
            [("slower", TRITON)] + 3 * [("faster", TRITON)],
            "1 slower (unexplained), 3 faster (unexplained)",
        ),
        (scaled(1.02), [], "0 slower, 0 faster, 4 no change"),
        (
            passed_before,
            4 * [("fails now", "hf_kernels_layer_norm")] + 4 * [("slower", TRITON)],
            "4 fails now, 4 slower (unexplained), 0 faster",
        ),
        (
            fixed_now,
            4 * [("passes now", "torch_layer_norm")],
            "0 slower, 0 faster, 4 passes now",
        ),
        (renamed, [], "0 slower, 0 faster, 4 new, 4 gone"),
    ],
)
def test_only_significant_changes_are_found_the_most_important_first(sample, edit, expected, counted):
    now = sample.read_summary()
    before = deepcopy(now)
    edit(before.devices[0], {row.implementation: row for row in before.devices[0].rows})

    said, found = History("HEAD", points_of([before]), []).changes([now])

    assert [(change.kind, change.row.implementation) for change in found] == expected
    assert said == counted


@pytest.mark.parametrize(
    ("text", "message"), [(None, "cannot be read"), ("[]", "is not a report that this version can read")]
)
def test_an_invalid_earlier_report_is_an_error(tmp_path: Path, text: str | None, message: str):
    file = tmp_path / "previous.json"
    if text is not None:
        file.write_text(text)

    with pytest.raises(ProjectError, match=message):
        read_report(file)
