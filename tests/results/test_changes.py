"""Changes since an earlier report."""

from collections.abc import Callable
from copy import deepcopy
from pathlib import Path

import pytest
from msgspec.structs import replace

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import ChangeKind, DeviceSummary, Report, Row
from kernels_bench_tools.results.changes import changes_since, read_report

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


HUB, PYTORCH, NORM = "HF Kernels layer norm", "PyTorch layer norm", "Triton layer norm"


@pytest.mark.parametrize(
    ("edit", "expected"),
    [
        (scaled(1.0), []),
        (scaled(2.0, 1.0), [(ChangeKind.FASTER, NORM, "2.00×; significant on 1 of 4 workloads")]),
        # A change that is not significant counts neither for nor against.
        (scaled(1.05, 0.97), [(ChangeKind.FASTER, NORM, "1.05×; significant on 1 of 4 workloads")]),
        (scaled(0.8, 2.0), [(ChangeKind.SLOWER, NORM, "0.80×; significant on 1 of 4 workloads; 2.00× on 3")]),
        (scaled(1.02), []),
        (
            passed_before,
            [
                (ChangeKind.FAILS, HUB, "N2048_D4096: RuntimeError: no hub is reachable"),
                (ChangeKind.SLOWER, NORM, "0.50×; significant on 4 of 4 workloads"),
            ],
        ),
        (fixed_now, [(ChangeKind.PASSES, PYTORCH, "")]),
        (renamed, [(ChangeKind.NEW, NORM, "speed-up 1.62×"), (ChangeKind.GONE, "Old", "")]),
    ],
)
def test_only_significant_changes_are_found_the_most_important_first(sample, edit, expected):
    now = sample.read_summary()
    before = deepcopy(now)
    edit(before.devices[0], {row.implementation: row for row in before.devices[0].rows})

    found = changes_since(Report(title="", repository="", operators=[before]), [now])

    assert [(change.kind, change.row.title, change.detail) for change in found] == expected


def test_the_front_page_lists_a_dozen_changes_and_counts_the_others(sample):
    summary = sample.read_summary()
    view = summary.devices[0]
    view.rows += [replace(view.rows[0], implementation=f"gone_{n}", title=f"Gone {n}") for n in range(20)]
    previous = Report(title="", repository="", measured="2026-11-18T10:00:00Z", operators=[summary])

    sample.publish(previous)

    page = (sample.site / "index.html").read_text()
    assert "Changes since the report of 2026-11-18" in page
    assert page.count("Gone ") == 12
    assert "and 8 more" in page


@pytest.mark.parametrize(
    ("text", "message"), [(None, "cannot be read"), ("[]", "is not a report that this version can read")]
)
def test_an_invalid_earlier_report_is_an_error(tmp_path: Path, text: str | None, message: str):
    file = tmp_path / "previous.json"
    if text is not None:
        file.write_text(text)

    with pytest.raises(ProjectError, match=message):
        read_report(file)
