import pytest
from devices import EPYC
from made_records import record, source

from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import Verdict, WorkloadSummary
from kernels_bench_tools.results.counted import Source
from kernels_bench_tools.results.summary import summarize
from kernels_bench_tools.results.views import (
    View,
    in_order,
    in_view_order,
    labels,
    titles_and_keys,
    workload_summary,
)

NO_CARD = {"status": Status.UNSUPPORTED, "reason": "needs a CUDA device"}


@pytest.fixture
def made():
    """Make the records of one implementation: a time for each (group, set, mode), or its end as a whole."""

    def make(impl, times=None, *, device=None, whole=None, front=None):
        place = {} if device is None else {"device": device}
        records = []
        for (group, name, mode), ms in (times or {}).items():
            parts = {"set": name, "group": group, "mode": mode}
            named = {part: value for part, value in parts.items() if value}
            workload = {"name": "_".join(filter(None, ("w", group, name, mode))), "n": 8, **named}
            records.append(record(impl, ms, wl=workload, **place))
        ended = source(impl, front=front, **(whole or {}), **place)
        return Source(records=records + (ended.records if whole else []), front=ended.front)

    return make


def rows(summary):
    """Return which implementations have a row in each view of each device."""
    return {
        (view.device.kind, view.view): sorted(row.implementation for row in view.rows)
        for view in summary.devices
    }


def test_workloads_of_other_functions_sets_and_modes_are_other_views(made):
    times = {
        ("GELU", "large", ""): 0.4,
        ("SwiGLU", "decode", ""): 0.1,
        ("SwiGLU", "default", "bwd"): 0.3,
        ("SwiGLU", "default", ""): 0.2,
    }

    summary = summarize("x", "X", [made("a", times), made("b", {("SwiGLU", "default", ""): 0.1})])

    assert [(view.view, view.key) for view in summary.devices] == [
        ("SwiGLU · default", ""),
        ("SwiGLU · default · bwd", "swiglu-default-bwd"),
        ("SwiGLU · decode", "swiglu-decode"),
        ("GELU · large", "gelu-large"),
    ]
    assert [[it.name for it in view.workloads] for view in summary.devices] == [
        ["w_SwiGLU_default"],
        ["w_SwiGLU_default_bwd"],
        ["w_SwiGLU_decode"],
        ["w_GELU_large"],
    ]
    named = summary.devices[1].workloads[0]
    assert (named.group, named.set, named.mode, named.axes) == ("SwiGLU", "default", "bwd", {"n": 8})


def test_nothing_is_ranked_or_averaged_across_views(made):
    base = made("base", {("", "default", ""): 0.1, ("", "large", ""): 1.0}, front={"baseline": True})
    ours = made("ours", {("", "default", ""): 0.05, ("", "large", ""): 4.0})

    first, second = summarize("x", "X", [base, ours]).devices

    assert [(row.implementation, row.rank, row.total) for row in first.rows] == [
        ("ours", 1, 1),
        ("base", 2, 1),
    ]
    assert [row.speedup for row in first.rows] == [pytest.approx(2.0), 1.0]
    assert [row.implementation for row in second.rows] == ["base", "ours"]
    assert second.rows[1].speedup == pytest.approx(0.25)


def test_each_group_has_the_baseline_that_computes_it(made):
    sources = [
        made("torch_gelu", {("GELU", "default", ""): 0.2}, front={"baseline": True}),
        made("torch_swiglu", {("SwiGLU", "default", ""): 0.3}, front={"baseline": True}),
        made("triton_gelu", {("GELU", "default", ""): 0.1}),
        made("triton_swiglu", {("SwiGLU", "default", ""): 0.1}),
    ]

    found = {view.view: view for view in summarize("x", "X", sources).devices}

    assert {name: view.baseline for name, view in found.items()} == {
        "GELU · default": "torch_gelu",
        "SwiGLU · default": "torch_swiglu",
    }
    assert found["SwiGLU · default"].rows[0].points[0].verdict is Verdict.FEW_PROCESSES
    assert found["SwiGLU · default"].rows[0].speedup == pytest.approx(3.0)


def test_an_implementation_that_did_not_run_has_a_row_in_every_view_of_its_functions(made):
    measured = {(group, name, ""): 0.1 for group in ("GELU", "SwiGLU") for name in ("default", "large")}
    sources = [
        made("all", measured),
        made("swiglu_only", {("SwiGLU", "cpu", ""): 5.0}, device=EPYC),
        made("swiglu_only", whole=NO_CARD),
        made("who_knows", whole=NO_CARD),
        made("all", whole=NO_CARD, device=EPYC),
        made("who_knows", whole=NO_CARD, device=EPYC),
    ]

    found = rows(summarize("x", "X", sources))

    assert found == {
        ("cuda", "SwiGLU · default"): ["all", "swiglu_only", "who_knows"],
        ("cuda", "SwiGLU · large"): ["all", "swiglu_only", "who_knows"],
        ("cuda", "GELU · default"): ["all", "who_knows"],
        ("cuda", "GELU · large"): ["all", "who_knows"],
        ("cpu", ""): ["all", "swiglu_only", "who_knows"],
    }


def test_a_crash_is_reported_in_the_views_that_were_not_reached(made):
    crashed = {"status": Status.CRASHED, "reason": "ended by SIGSEGV"}
    sources = [
        made("base", {("", "default", ""): 0.1, ("", "large", ""): 1.0}),
        made("ours", {("", "default", ""): 0.1}, whole=crashed),
    ]

    first, second = summarize("x", "X", sources).devices

    assert {row.implementation: row.status for row in first.rows}["ours"] is Status.OK
    told = {row.implementation: (row.status, row.reason, row.total) for row in second.rows}["ours"]
    assert told == (Status.CRASHED, "ended by SIGSEGV", 1)


@pytest.mark.parametrize("ran", [False, True])
def test_a_device_on_which_nothing_was_measured_yet_is_not_listed(made, ran):
    def waiting(name):
        failed = {"status": Status.ERROR, "reason": "r"}
        not_run = Source(records=[], implementation=name, measured_now=True, unmeasured=EPYC)
        return made(name, whole=failed, device=EPYC) if ran else not_run

    sources = [
        made("base", {("", "default", ""): 0.1}),
        waiting("base"),
        waiting("new"),
        made("hub", whole=NO_CARD, device=EPYC),
    ]

    summary = summarize("x", "X", sources)

    found = {view.device.slug: {row.implementation for row in view.rows} for view in summary.devices}
    everything = {"base", "hub", "new"}
    here = {} if not ran else {"amd-epyc-2-cores": everything}
    assert found == {"nvidia-h200": everything} | here


def test_what_was_measured_on_another_device_does_not_change_the_first_view_of_a_device(made):
    committed = [made("gelu", {("GELU", "", ""): 0.1}), made("swiglu", {("SwiGLU", "", ""): 0.1})]
    local = [made(name, {("SwiGLU", "", ""): 9.0}, device=EPYC) for name in ("swiglu", "other", "third")]

    views = [
        view.view
        for sources in (committed, committed + local)
        for view in summarize("x", "X", sources).devices
        if view.device.slug == "nvidia-h200"
    ]

    assert views == ["GELU", "SwiGLU"] * 2


def test_views_of_functions_that_were_not_measured_here_are_in_order_of_their_names():
    views = [View("SwiGLU"), View("ReLU"), View("GELU"), View("SiLU")]

    for given in (views, views[::-1]):
        assert [view.group for view in in_view_order(given, ["SiLU"])] == ["SiLU", "GELU", "ReLU", "SwiGLU"]


def test_views_with_similar_titles_have_different_keys():
    views = [View("a"), View("x y"), View("x-y")]

    assert [key for _, key in titles_and_keys(views)] == ["", "x-y", "x-y-2"]


def make(dtype: str = "bfloat16", **axes: object) -> WorkloadSummary:
    return WorkloadSummary(name="_".join(map(str, axes.values())), dtype=dtype, axes=axes)


@pytest.mark.parametrize(
    ("workloads", "ticks", "axis"),
    [
        (
            [make(batch=16, seq=2048), make(batch=16, seq=4096)],
            ["2048", "4096"],
            "seq   (batch 16, bfloat16)",
        ),
        ([make("float32", n=1), make("torch.bfloat16", n=1)], ["float32", "bfloat16"], "dtype   (n 1)"),
        (
            [WorkloadSummary(name=name, axes={"n": 1}) for name in ("sparse", "dense")],
            ["sparse", "dense"],
            "n 1",
        ),
    ],
)
def test_labels_are_the_axes_and_the_type_that_vary_or_else_the_names(workloads, ticks, axis):
    assert labels(workloads) == (ticks, axis)


def test_numbers_are_ordered_as_numbers():
    mixed = [make(n=1024), make(n=128), make(n="ragged"), make(other=1)]

    assert [workload.axes for workload in in_order(mixed)] == [
        {"n": 128},
        {"n": 1024},
        {"n": "ragged"},
        {"other": 1},
    ]


def test_seed_and_device_are_no_axes():
    found = workload_summary({"name": "w", "n": 2, "dtype": "float32", "device": "cuda", "seed": 0})

    assert (found.name, found.dtype, found.axes) == ("w", "float32", {"n": 2})
