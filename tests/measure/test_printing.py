from typing import Any

import pytest

from kernels_bench_tools.measure.task import heading, result_line
from kernels_bench_tools.records.record import (
    Failure,
    Flag,
    Latency,
    Quantities,
    Record,
    Roofline,
    Status,
    Timing,
    Work,
)

LATENCY = Latency(p10=0.2, p50=0.2, p90=0.2, mean=0.2, iqr=0.0, reps=60, ci_low=0.199, ci_high=0.2004)
WORK = Work(bytes_read=4 * 10**8, bytes_written=4 * 10**8, flops=1)
ROOFLINE = Roofline(ceiling="copy", value=4270, fraction=0.937)


def line_of(status: Status, **fields: Any) -> str:
    return result_line(Record(ts="", run="", impl="x", status=status, ok=status is Status.OK, **fields))


def test_a_line_has_every_figure_below_its_title_and_the_flags() -> None:
    quantities = Quantities(host_submit=Timing(p50=0.0123), e2e=Timing(p50=0.2345))

    line = line_of(
        Status.OK, lat_ms=LATENCY, work=WORK, quantities=quantities, roofline=ROOFLINE, flags=[Flag.DRIFT]
    )

    assert " ".join(line.split()) == "0.2000 ms 0.5 % 60 4000.0 94% copy 0.01230 0.2345 ok [drift]"
    head = heading()
    assert head.index("of peak") + len("of peak") == line.index("94% copy") + len("94% copy")


@pytest.mark.parametrize(
    ("status", "fields", "expected"),
    [
        # A wrong result has a time and no rate.
        (
            Status.INCORRECT,
            {"lat_ms": LATENCY, "work": WORK, "roofline": ROOFLINE},
            "0.2000 ms 0.5 % 60 incorrect: 3 NaN",
        ),
        (Status.OOM, {}, "oom: 3 NaN"),
    ],
)
def test_a_line_of_a_failure_has_the_reason(status: Status, fields: dict[str, Any], expected: str) -> None:
    assert " ".join(line_of(status, err=Failure(type="", msg="3 NaN"), **fields).split()) == expected
