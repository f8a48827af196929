"""Changes since an earlier report, on the front page."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from markup import text_of

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import DeviceSummary, Point, Report, Row
from kernels_bench_tools.results.changes import read_report

Edit = Callable[[Report], None]


def row_of(report: Report, implementation: str, device: int = 0) -> Row:
    return next(
        row for row in report.operators[0].devices[device].rows if row.implementation == implementation
    )


def scale(point: Point, factor: float) -> None:
    """Make a point's time so many times as long, interval included."""
    for name in ("p50_ms", "ci_low_ms", "ci_high_ms"):
        setattr(point, name, getattr(point, name) * factor)


@pytest.fixture
def changes(sample, read_page) -> Callable[[Edit], list[str]]:
    """Publish beside an earlier report, which is today's after ``edit``; return the lines of the front page."""

    def shown(edit: Edit) -> list[str]:
        sample.publish()
        report = msgspec.json.decode((sample.site / "report.json").read_bytes(), type=Report)
        edit(report)
        sample.publish(report)
        page = read_page(sample.site, "index.html")
        (strip,) = (one for one in page.elements("section") if one.get("class") == "changes")
        lines = [strip.find("p"), *strip.iter("li")]
        return [text_of(line) for line in lines if line is not None]

    return shown


def test_no_changes_are_stated(changes):
    assert changes(lambda _: None) == ["No changes since the report of 2026-11-18"]


def test_a_faster_row_is_listed_with_its_ratio_and_significance(changes):
    def was_slower(report: Report) -> None:
        first, *_ = row_of(report, "triton_layer_norm").points
        scale(first, 2.0)

    heading, line = changes(was_slower)

    assert heading == "Changes since the report of 2026-11-18"
    assert line.startswith("▲ faster Triton layer norm Layer Normalization, NVIDIA H200")
    assert "; significant on 1 of 4 workloads" in line


def test_a_change_that_is_not_significant_has_no_effect_on_the_kind_of_change(changes):
    def was_slower(report: Report) -> None:
        first, *others = row_of(report, "triton_layer_norm").points
        scale(first, 1.05)
        for point in others:
            scale(point, 0.97)

    _, line = changes(was_slower)

    assert line.startswith("▲ faster Triton layer norm")
    assert line.endswith("1.05×; significant on 1 of 4 workloads")


def test_a_slowdown_is_not_hidden_by_speedups_of_other_workloads(changes):
    def mixed(report: Report) -> None:
        first, *others = row_of(report, "triton_layer_norm").points
        scale(first, 0.8)
        for point in others:
            scale(point, 2.0)

    _, line = changes(mixed)

    assert line.startswith("▼ slower Triton layer norm")
    assert line.endswith("0.80×; significant on 1 of 4 workloads; 2.00× on 3")


def test_a_difference_within_the_intervals_is_not_listed(changes):
    def a_little(report: Report) -> None:
        for point in row_of(report, "triton_layer_norm").points:
            scale(point, 1.02)

    assert len(changes(a_little)) == 1


def test_new_failures_are_listed_first_with_the_reason(changes):
    def passed(report: Report) -> None:
        for point in row_of(report, "hf_kernels_layer_norm").points:
            point.status, point.p50_ms = Status.OK, 1.0
        for point in row_of(report, "triton_layer_norm").points:
            scale(point, 0.5)

    _, first, second = changes(passed)

    assert first.startswith("✗ fails now HF Kernels layer norm")
    assert first.endswith("RuntimeError: no hub is reachable")
    assert second.startswith("▼ slower Triton layer norm")
    assert "0.50×; significant on 4 of 4 workloads" in second


def test_new_fixed_and_removed_rows_are_listed(changes):
    def other(report: Report) -> None:
        view: DeviceSummary = report.operators[0].devices[0]
        triton = row_of(report, "triton_layer_norm")
        for point in row_of(report, "torch_layer_norm").points:
            point.status, point.p50_ms = Status.ERROR, None
        view.rows = [row for row in view.rows if row is not triton]
        old = msgspec.structs.replace(triton, implementation="old", title="Old layer norm")
        view.rows.append(old)

    _, *lines = changes(other)

    assert [line.split(" layer norm")[0] for line in lines] == [
        "✓ passes now PyTorch",
        "+ new Triton",
        "− gone Old",
    ]
    assert "speed-up 1.62×" in lines[1]


def test_a_long_list_is_shortened(changes):
    def many(report: Report) -> None:
        view = report.operators[0].devices[0]
        row = row_of(report, "triton_layer_norm")
        view.rows += [
            msgspec.structs.replace(row, implementation=f"gone_{n}", title=f"Gone {n}") for n in range(20)
        ]

    lines = changes(many)

    assert len(lines) == 1 + 12 + 1
    assert lines[-1] == "and 8 more"


def test_without_an_earlier_report_there_is_no_list_of_changes(sample, published):

    page = published("index.html")
    assert not [one for one in page.elements("section") if one.get("class") == "changes"]


@pytest.mark.parametrize(
    ("text", "message"),
    [(None, "cannot be read"), ("[]", "is not a report that this version can read")],
)
def test_an_invalid_earlier_report_is_an_error(tmp_path: Path, text: str | None, message: str):
    file = tmp_path / "previous.json"
    if text is not None:
        file.write_text(text)

    with pytest.raises(ProjectError, match=message):
        read_report(file)
