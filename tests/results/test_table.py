from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import Point
from kernels_bench_tools.results.export import text_table
from kernels_bench_tools.results.metrics import LATENCY
from kernels_bench_tools.results.summary import summarize


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
