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


def test_a_line_has_every_figure_and_the_flags() -> None:
    line = result_line(
        Record(
            ts="",
            run="",
            impl="x",
            status=Status.OK,
            ok=True,
            lat_ms=Latency(
                p10=0.2, p50=0.2, p90=0.2, mean=0.2, iqr=0.0, reps=60, ci_low=0.199, ci_high=0.2004
            ),
            work=Work(bytes_read=4 * 10**8, bytes_written=4 * 10**8, flops=1),
            quantities=Quantities(host_submit=Timing(p50=0.0123), e2e=Timing(p50=0.2345)),
            roofline=Roofline(ceiling="copy", value=4270, fraction=0.937),
            flags=[Flag.DRIFT],
        )
    )

    head = heading()
    assert line.split() == (
        ["0.2000", "ms", "0.5", "%", "60", "4000.0", "94%", "copy", "0.01230", "0.2345", "ok", "[drift]"]
    )
    assert head.index("of peak") + len("of peak") == line.index("94% copy") + len("94% copy")


def test_a_wrong_result_has_a_time_and_no_rate() -> None:
    line = result_line(
        Record(
            ts="",
            run="",
            impl="x",
            status=Status.INCORRECT,
            err=Failure(type="WrongResult", msg="3 NaN"),
            lat_ms=Latency(p10=0.2, p50=0.2, p90=0.2, mean=0.2, iqr=0.0, reps=60),
            work=Work(bytes_read=4 * 10**8, bytes_written=4 * 10**8, flops=1),
            roofline=Roofline(ceiling="copy", value=4270, fraction=0.937),
        )
    )

    assert line.split() == ["0.2000", "ms", "60", "incorrect:", "3", "NaN"]


def test_a_line_without_a_time_has_the_reason() -> None:
    line = result_line(
        Record(
            ts="", run="", impl="x", status=Status.OOM, err=Failure(type="OutOfMemoryError", msg="too large")
        )
    )

    assert line.split() == ["oom:", "too", "large"]
