"""How implementations compare at drawn workloads, which are in no ranking."""

from typing import Any

import pytest
from made_records import record, rows_of

from kernels_bench_tools.records.codec import share_fields, thin_record
from kernels_bench_tools.records.notebook import FrontMatter
from kernels_bench_tools.records.record import Flag, Judged, Record, Status
from kernels_bench_tools.records.summary import Summary
from kernels_bench_tools.results.choose import Measurements, choose, nearest
from kernels_bench_tools.results.counted import Source
from kernels_bench_tools.results.export import latency_csv, text_table
from kernels_bench_tools.results.summary import summarize

H200 = "nvidia-h200"


def workload(width: int, workload_set: str) -> dict[str, Any]:
    name = f"{workload_set.replace(':', '')}_D{width}"
    return {"name": name, "set": workload_set, "rows": 64, "hidden_dim": width, "dtype": "bfloat16"}


def records(
    impl: str, times: dict[int, float | None], workload_set: str = "random:3:1", **fields: Any
) -> list[Record]:
    return [
        record(impl, ms, wl=workload(width, workload_set), **fields)
        if ms
        else record(impl, wl=workload(width, workload_set), status=Status.ERROR, reason="it broke", **fields)
        for width, ms in times.items()
    ]


def summary_of(*given: list[Record], measured_now: bool = False) -> Summary:
    return summarize(
        "op",
        "Op",
        [
            Source(
                records=one,
                front=FrontMatter(baseline=one[0].impl == "torch") if measured_now else None,
                measured_now=measured_now,
            )
            for one in given
        ],
    )


TIMES = {
    "torch": {100: 0.4, 200: 0.2, 300: 0.3},
    "fast": {100: 0.2, 200: 0.25, 300: None},
    "slow": {100: 0.8, 200: 0.8, 300: 0.3},
}
TABLE = {"torch": 0.1, "fast": 0.05, "slow": 0.2}


@pytest.fixture
def summary() -> Summary:
    drawn = [records(name, times) for name, times in TIMES.items()]
    return summary_of(*drawn, *(records(name, {4096: ms}, "default") for name, ms in TABLE.items()))


@pytest.mark.parametrize(
    ("implementation", "ratios", "median", "share"),
    [
        ("torch", [0.5, 1.0, 1.25], 1.0, 2 / 3),
        ("fast", [0.8, 2.0], 1.4, 1 / 2),
        ("slow", [0.25, 0.25, 1.0], 0.25, 1 / 3),
    ],
)
def test_a_row_has_its_speed_ups_over_the_fastest_other_at_each_drawn_workload(
    summary: Summary, implementation: str, ratios: list[float], median: float, share: float
) -> None:
    found = rows_of(summary)[implementation].drawn

    assert found is not None
    assert found.ratios == pytest.approx(ratios)
    assert (found.median, found.share) == pytest.approx((median, share))


def test_drawn_workloads_are_in_no_ranking_table_or_model(summary: Summary) -> None:
    (view,) = summary.devices
    (drawn,) = summary.drawn

    assert [one.set for one in view.workloads] == ["default"]
    assert [row.speedup_workloads or row.total for row in view.rows] == [1, 1, 1]
    assert len(drawn.workloads) == 3
    assert "random" not in latency_csv(summary)
    assert len(Measurements({"op": summary}, H200)._equal["op"]) == 1


def test_seeds_are_compared_together_and_a_set_is_none() -> None:
    (view,) = summary_of(records("torch", {100: 0.1}), records("fast", {200: 0.1}, "random:9:2")).drawn

    assert {one.name for one in view.workloads} == {"random31_D100", "random92_D200"}
    assert [row.drawn for row in view.rows] == [None, None]


@pytest.mark.parametrize("fields", [{"flags": [Flag.APPROXIMATE]}, {"judged": Judged.NOT}])
def test_neither_approximate_nor_self_reported_ones_are_the_fastest_other(fields: dict[str, Any]) -> None:
    times = {100: 0.4}
    summary = summary_of(records("a", times), records("b", times), records("cheap", {100: 0.1}, **fields))
    rows = {row.implementation: row.drawn for row in summary.drawn[0].rows}

    assert [rows[name].ratios for name in ("a", "b", "cheap")] == [[1.0], [1.0], [4.0]]


def test_a_closer_drawn_shape_is_chosen_although_the_fastest_failed_at_another(summary: Summary) -> None:
    (near,) = nearest(summary, H200, {"hidden_dim": 110})
    choice = choose(near)

    assert choice is not None
    assert (choice.workload, choice.implementation) == ("random31_D100", "fast")
    assert choose(nearest(summary, H200, {"hidden_dim": 4000})[0]).workload == "default_D4096"


@pytest.mark.parametrize(("measured", "kept"), [("random:3:1", "default"), ("default", "random:3:1")])
def test_a_build_of_drawn_workloads_keeps_the_committed_others_and_the_other_way_round(
    measured: str, kept: str
) -> None:
    now = [Source(records=records(name, {100: 0.1}, measured), measured_now=True) for name in ("a", "b")]
    before = [Source(records=records(name, {7: 9.0, 8: 9.0}, kept)) for name in ("a", "b")]

    summary = summarize("op", "Op", [*now, *before])

    widths = {one.axes["hidden_dim"] for view in (*summary.devices, *summary.drawn) for one in view.workloads}
    assert widths == {100, 7, 8}


def test_the_ranking_in_the_terminal_has_the_columns_only_where_something_was_drawn(summary: Summary) -> None:
    printed = text_table(summary)

    assert "0.97 or" in printed
    (line,) = [line for line in printed.splitlines() if line.split()[1:2] == ["Slow"] and "0.25×" in line][:1]
    assert "33%" in line
    assert "0.97 or" not in text_table(summary_of(records("torch", {4096: 0.1}, "default")))


def test_a_committed_record_of_a_drawn_workload_is_short_and_read_again_as_it_was() -> None:
    (ordinary,), whole = records("a", {4096: 0.1}, "default"), records("a", {100: 0.1, 200: 0.2})

    thin = share_fields(map(thin_record, whole))

    assert thin_record(ordinary).work is not None
    assert all(one.work is None and not one.kernels and one.quantities is None for one in thin)
    assert [one.lat_ms.p50 for one in thin] == [0.1, 0.2]
    assert [one.wl["set"] for one in thin] == ["random:3:1"] * 2
