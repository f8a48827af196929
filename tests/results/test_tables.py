"""Values that pages derive from rows."""

import pytest

from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import Point, Row
from kernels_bench_tools.results.tables import typical


def row(*times: tuple[float, float | None, float | None], total: int = 0, **fields) -> Row:
    points = [
        Point(workload=f"w{at}", status=Status.OK, p50_ms=p50, ci_low_ms=low, ci_high_ms=high)
        for at, (p50, low, high) in enumerate(times)
    ]
    known = {"implementation": "a", "slug": "a", "title": "A", "status": Status.OK} | fields
    return Row(**known, passed=len(points), total=total or len(points), points=points)


@pytest.mark.parametrize(
    ("first", "failed", "expected", "known"),
    [
        ((1.0, 0.9, 1.2), 0, (2.0, 1.8, 2.4), True),
        ((1.0, None, None), 0, (2.0,), False),
        ((1.0, 0.9, 1.2), 1, None, False),
    ],
)
def test_the_typical_time_is_the_geometric_mean_over_all_workloads(first, failed, expected, known):
    found = typical(row(first, (4.0, 3.6, 4.8), total=2 + failed))

    assert (found and found[: len(expected)]) == (expected and pytest.approx(expected))
    assert (found is not None and found.known) is known
