"""Changes since an earlier report."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
from msgspec.structs import replace

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import DeviceSummary, Row
from kernels_bench_tools.results.history import History, points_of, read_report

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
