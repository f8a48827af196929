import csv
import io

import pytest
from builds import latency
from made_records import record, source
from msgspec.structs import replace

from kernels_bench_tools.records.record import Flag, Quantities, Regime, Roofline, Status, Timing
from kernels_bench_tools.records.summary import Point, Verdict
from kernels_bench_tools.results.counted import Source
from kernels_bench_tools.results.export import latency_csv, text_table
from kernels_bench_tools.results.imported import hf_payload, scores
from kernels_bench_tools.results.metrics import LATENCY
from kernels_bench_tools.results.summary import ComparedPoint, summarize

SEED = (
    *("Implementation", "Impl ID", "Workload", "Batch", "Seq Length", "Hidden Dim", "Dtype"),
    *("Mean (ms)", "P10 (ms)", "P50 (ms)", "P90 (ms)", "Reps", "Peak Mem (MB)", "Backend", "Family"),
)


def table(sources):
    text = latency_csv(summarize("layer_norm", "Layer Norm", sources))
    return text, list(csv.DictReader(io.StringIO(text)))


def test_the_columns_of_the_first_reports_are_there_in_order(field):
    header = table(field)[0].splitlines()[0].split(",")

    assert [name for name in header if name in SEED] == list(SEED)
    assert {"Device", "CI Low (ms)", "CI High (ms)", "Speedup", "Verdict", "Status", "Reason"} <= set(header)


def test_it_reads_back_as_the_summary(field):
    summary = summarize("layer_norm", "Layer Norm", field)
    _, lines = table(field)

    points = [
        (row.implementation, point)
        for device in summary.devices
        for row in device.rows
        for point in row.points
    ]
    assert len(points) == len(lines)
    for line, (implementation, point) in zip(lines, points, strict=True):
        assert (line["Impl ID"], line["Workload"]) == (implementation, point.workload)
        assert (line["P50 (ms)"] == "") == (point.p50_ms is None)
        for column, value in (("P50 (ms)", point.p50_ms), ("Speedup", point.speedup)):
            assert value is None or float(line[column]) == pytest.approx(value, rel=1e-5)
        assert line["Status"] == point.status.value
        assert line["Reason"] == point.reason


@pytest.mark.parametrize("start", ["=", "+", "-", "@", "\t"])
def test_text_that_a_spreadsheet_would_run_is_neutralised(start):
    _, lines = table([source("a", [0.1], front={"title": f"{start}HYPERLINK(1)"})])

    assert lines[0]["Implementation"] == f"'{start}HYPERLINK(1)"
    assert float(lines[0]["P50 (ms)"]) == 0.1


def test_what_is_known_of_a_row_has_columns():
    made = record(
        "a",
        0.1,
        regime=Regime.HBM,
        roofline=Roofline(ceiling="copy", value=4000.0, fraction=0.91),
        flags=[Flag.DRIFT, Flag.NEAR_FLOOR],
        quantities=Quantities(device_hot=Timing(p50=0.09), host_submit=Timing(p50=0.01), e2e=Timing(p50=0.2)),
        corr={"refused": ["odd sizes"], "refusal": "CallError: even only"},
        peak_bytes=3 * 2**20,
    )
    (line,) = table([Source(records=[made])])[1]

    columns = {
        "Fraction of Ceiling (1)": "0.91",
        "Ceiling": "copy",
        "Regime": "hbm",
        "Peak Mem (MB)": "3.0",
        "Hot (ms)": "0.09",
        "Host Submit (ms)": "0.01",
        "End to End (ms)": "0.2",
        "Flags": "drift near_floor",
        "Processes": "1",
        "Runs": "1",
        "Limitation": "refuses odd sizes (even only)",
    }
    assert line | columns == line
    assert line["Limitation"] in text_table(summarize("layer_norm", "", [Source(records=[made])]))


@pytest.mark.parametrize(("count", "said"), [(1, True), (2, True), (3, False), (4, False)])
def test_a_table_says_that_there_were_too_few_processes_for_a_verdict(count, said):
    records = [record("a", 0.1, process=number) for number in range(count)]

    assert ("no verdict" in text_table(summarize("op", "Op", [Source(records=records)]))) is said


def test_fast_p_is_the_share_of_speed_ups_above_p():
    results = [ComparedPoint(workload="w", status=Status.OK, speedup=value) for value in (1.0, 1.5, 2.0, 3.0)]
    results.append(ComparedPoint(workload="w", status=Status.INCORRECT))

    (score,) = scores([("mine", one) for one in results])
    assert score["fast"] == {"fast_0": 0.8, "fast_1": 0.6, "fast_2": 0.2}
    assert score["faster"] is None


def test_the_share_that_is_faster_is_that_of_verdicts_and_of_all_problems():
    speedups = {1.004: Verdict.SAME, 1.3: Verdict.FASTER, 1.5: Verdict.FEW_PROCESSES, 0.9: Verdict.SLOWER}
    results = [
        ComparedPoint(workload="w", status=Status.OK, speedup=value, verdict=verdict)
        for value, verdict in speedups.items()
    ]
    results.append(ComparedPoint(workload="w", status=Status.INCORRECT, speedup=2.0, verdict=Verdict.FASTER))

    (score,) = scores([("mine", one) for one in results])
    assert (score["fast"]["fast_1"], score["faster"]) == (0.6, 0.2)


def test_a_result_is_verified_if_all_processes_were_right():
    right = replace(record("mine", 0.1), lat_ms=latency(0.1))
    wrong = replace(right, status=Status.INCORRECT, ok=False)

    results = hf_payload({"a": [right, wrong], "b": [right, right]}, "x.py")["results"]
    assert {one["workload"]: one["verified"] for one in results} == {"a": False, "b": True}


def test_a_table_shows_ranks_medians_verdicts_and_reasons(field):
    text = text_table(summarize("layer_norm", "Layer Norm", field))

    assert "NVIDIA H200: 4 workloads, baseline PyTorch Layer Norm" in text
    assert "unsupported: the hub cannot be reached: name resolution failed" in text
    line = next(line for line in text.splitlines() if "Triton" in line and "no verdict" in line)
    assert " ".join(line.split()) == (
        "Triton Layer Norm 0.07020 ms ±0.2 % 1.72× [1.719, 1.729] no verdict 15,295 GB/s"
    )


def test_the_spread_of_a_latency_is_the_longer_side_of_its_interval():
    point = Point(workload="w", status=Status.OK, p50_ms=1.0, ci_low_ms=0.99, ci_high_ms=1.03)

    assert LATENCY.print(point) == "1.000 ms ±3.0 %"
    assert LATENCY.print(Point(workload="w", status=Status.OK, p50_ms=1234.4)) == "1,234 ms"


def test_lines_fit_into_80_characters_with_fewer_columns_and_no_word_is_cut(field):
    summary = summarize("layer_norm", "Layer Norm", field)
    wide, narrow = text_table(summary), text_table(summary, 80)

    assert max(map(len, narrow.splitlines())) <= 80
    assert max(map(len, wide.splitlines())) > 80
    assert set(narrow.split()) <= set(wide.split()) | {"CPU"}
    assert "1 process: no verdict" in " ".join(narrow.split())
