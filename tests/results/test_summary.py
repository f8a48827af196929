import msgspec
import pytest
from devices import EPYC, H200
from made_records import record, rows_of, source

from kernels_bench_tools.records.record import (
    Environment,
    Flag,
    HubKernel,
    Judged,
    Provenance,
    Status,
    Work,
    device_of,
)
from kernels_bench_tools.records.summary import Verdict
from kernels_bench_tools.results.counted import Source
from kernels_bench_tools.results.summary import compare_records, summarize

BASELINE = {"title": "Base", "baseline": True, "family": "torch"}


def test_the_overall_speedup_covers_only_workloads_that_both_passed():
    sources = [source("base", [0.1, 0.2, None, 0.4], front=BASELINE), source("ours", [0.05, None, 0.1, 0.05])]

    row = rows_of(summarize("op", "Op", sources))["ours"]

    assert row.speedup == pytest.approx((2 * 8) ** 0.5)
    assert row.speedup_workloads == 2


@pytest.mark.parametrize(
    ("times", "baseline", "ranks"),
    [
        # What passed less than the baseline has no rank.
        (
            {
                "torch": [0.1, 0.2, None],
                "all": [0.2, 0.4, 0.6],
                "enough": [0.05, 0.1, None],
                "part": [0.01, None, 1.0],
            },
            "torch",
            {"enough": 1, "torch": 2, "all": 3, "part": None},
        ),
        (
            {"slow": [0.3, 0.3], "fast": [0.1, 0.1], "part": [0.01, None]},
            "",
            {"fast": 1, "slow": 2, "part": None},
        ),
        ({"torch": [None, None], "ours": [0.1, 0.1]}, "", {"ours": 1, "torch": None}),
        # Approximate ones are ranked among themselves, after exact ones.
        (
            {"int8": [0.3], "torch": [0.9], "fp8": [0.2], "triton": [0.4]},
            "torch",
            {"triton": 1, "torch": 2, "fp8": 3, "int8": 4},
        ),
    ],
)
def test_rows_are_ranked_by_speed_if_they_passed_enough(times, baseline, ranks):
    sources = [
        source(
            name, found, front={"baseline": name == "torch"}, flags=[Flag.APPROXIMATE] if "8" in name else []
        )
        for name, found in times.items()
    ]

    device = summarize("op", "Op", sources).devices[0]

    assert device.baseline == baseline
    assert [(row.implementation, row.rank) for row in device.rows] == [*ranks.items()]
    assert baseline or {row.speedup for row in device.rows} == {None}


def test_of_two_baselines_the_faster_counts():
    slow = source("a_slow", [10.0, 20.0], front={"baseline": True})
    partial = source("b_partial", [0.01, None], front={"baseline": True})
    torch = source("torch", [1.0, 2.0], front={"baseline": True})

    summary = summarize("op", "Op", [slow, partial, torch, source("mine", [0.5, 1.0])])

    assert summary.devices[0].baseline == "torch"
    assert rows_of(summary)["mine"].speedup == pytest.approx(2.0)


@pytest.mark.parametrize(("harness", "ranks"), [("", [1, 2]), ("0.1.0", [None, None])])
def test_self_reported_rows_are_ranked_only_if_another_harness_wrote_them(harness, ranks):
    sources = [source("slow", [0.3]), source("fast", [0.1])]
    for measured in (one for found in sources for one in found.records):
        measured.judged = Judged.NOT
        measured.provenance = Provenance(harness=harness)

    assert [row.rank for row in summarize("op", "Op", sources).devices[0].rows] == ranks


L2 = Environment(l2_bytes=60 * 2**20)
PEAKS = {"ceilings": {"read": 4400.0, "copy": 4300.0}}
"""Of an H200: a call that moves 1 GiB takes at least 0.22 ms."""


@pytest.mark.parametrize("honest", [["torch"], ["honest", "other"]], ids=" and ".join)
@pytest.mark.parametrize(
    "claims",
    [
        {},
        {"ceilings": {}},
        {"ceilings": {"read": 4e6, "copy": 4e6}},
        {"work": Work(bytes_read=0, bytes_written=0, flops=0)},
        {"work": None},
        {"env": Environment(l2_bytes=2**50)},
        {"env": Environment()},
    ],
    ids=[
        "edited",
        "no peaks",
        "higher peaks",
        "less work",
        "no work",
        "a large cache",
        "no size of the cache",
    ],
)
def test_a_time_above_the_measured_peak_is_shown_without_a_rank(claims, honest):
    fields = {"env": L2, **PEAKS}
    sources = [source(name, [0.25], front={"baseline": name == "torch"}, **fields) for name in honest]
    forged = source("forged", [0.1], **fields | claims)

    rows = rows_of(summarize("op", "Op", [*sources, forged]))

    assert [rows[name].rank for name in honest] == [*range(1, len(honest) + 1)]
    assert (rows["forged"].rank, rows["forged"].status) == (None, Status.EXCEEDS_PHYSICS)
    assert rows["forged"].points[0].p50_ms == 0.1
    assert "its measured peak is" in rows["forged"].reason


@pytest.mark.parametrize(
    "claims",
    [
        {"ceilings": {"read": 4.0, "copy": 4.0}},
        {"work": Work(bytes_read=2**40, bytes_written=2**40, flops=0)},
        {"sentinels": {"null": [1e6, 1e6]}},
        {"env": Environment(l2_bytes=1)},
    ],
    ids=["lower peaks", "more work", "a slow empty kernel", "no cache"],
)
def test_what_one_record_claims_costs_no_other_row(claims):
    fields = {"env": L2, "sentinels": {"null": [0.001, 0.001]}, **PEAKS}
    baseline = source("torch", [0.25], front={"baseline": True}, **fields)
    forged = source("forged", [0.2], **fields | claims)

    rows = rows_of(summarize("op", "Op", [forged, baseline]))

    assert (rows["torch"].status, rows["torch"].rank) == (Status.OK, 1)


@pytest.mark.parametrize(
    ("fields", "honest", "forged", "claims"),
    [
        # A time below an empty kernel's, of a record that does not say what that takes.
        (
            {"work": Work(bytes_read=2**10, bytes_written=2**10, flops=0), "sentinels": {"null": [0.001]}},
            *(0.002, 0.0001, {"sentinels": {}}),
        ),
        # A rate above that of a matmul, of a record with a type that has no peak.
        (
            {
                "work": Work(bytes_read=2**20, bytes_written=0, flops=10**12),
                "ceilings": {"read": 4400.0, "matmul_bfloat16": 700.0},
            },
            *(2.0, 0.5, {"dtype": "none"}),
        ),
    ],
)
def test_a_record_cannot_hide_that_its_time_is_impossible(fields, honest, forged, claims):
    given = {"env": L2, **PEAKS, **fields}
    others = [source(name, [honest], **given) for name in ("honest", "other")]
    dtype = {"dtype": claims.pop("dtype")} if "dtype" in claims else {}
    suspect = source("forged", [forged], **given | claims)
    suspect.records[0].wl = suspect.records[0].wl | dtype

    assert rows_of(summarize("op", "Op", [*others, suspect]))["forged"].status is Status.EXCEEDS_PHYSICS


def test_a_device_and_its_margin_are_what_most_records_say():
    baseline = source("torch", [0.25], front={"baseline": True}, env=L2, **PEAKS)
    device = device_of(baseline.records[0])
    renamed = msgspec.structs.replace(device, kind="cpu", name="Another")
    forged = source("forged", [0.18], env=L2, device=renamed, **PEAKS)  # possible on a CPU only

    (view,) = summarize("op", "Op", [forged, baseline]).devices

    assert view.device == device
    assert {row.implementation: row.rank for row in view.rows} == {"torch": 1, "forged": None}


def test_the_gpu_with_most_records_comes_first_then_others_then_cpus():
    gpus = [msgspec.structs.replace(H200, name=name, slug=name.lower()) for name in ("A", "B")]
    times = [[0.1], [0.1, 0.2], [0.1, 0.2, 0.3]]
    found = [source("ours", some, device=on) for some, on in zip(times, (*gpus, EPYC), strict=True)]

    devices = [view.device.name for view in summarize("op", "Op", found).devices]

    assert devices == ["B", "A", EPYC.name]


OTHER_WORKLOADS = [
    ({"hidden_dim": 64}, "hidden_dim=64, expected 4096"),
    ({"dtype": "float32"}, "dtype='float32', expected 'bfloat16'"),
    ({"seq_len": "2048"}, "seq_len='2048', expected 2048"),
    ({"causal": True}, "causal=True, expected None"),
]


@pytest.mark.parametrize(("changed", "difference"), OTHER_WORKLOADS)
@pytest.mark.parametrize("others", [1, 3])
def test_a_record_of_another_workload_with_the_baselines_name_is_invalid(changed, difference, others):
    baseline = source("torch", [0.25, 0.5], front={"baseline": True})
    fast = [source(f"fast{number}", [0.05, 0.25]) for number in range(others)]
    for one in fast:
        one.records[0].wl = one.records[0].wl | changed

    row = rows_of(summarize("op", "Op", [*fast, baseline]))["fast0"]

    wrong = next(point for point in row.points if point.workload == baseline.records[0].workload)
    assert (wrong.status, wrong.speedup, wrong.p50_ms) == (Status.INVALID, None, None)
    assert difference in wrong.reason
    assert (row.passed, row.rank, row.speedup_workloads) == (1, None, 1)
    compared = compare_records(fast[0].records, baseline.records)
    assert [point.status for point in compared] == [Status.INVALID, Status.OK]


@pytest.mark.parametrize("said", [{"dtype": "torch.bfloat16"}, {"seed": 3}, {"seq_len": 2048.0}, {}])
def test_a_record_that_says_less_of_its_workload_is_compared(said):
    baseline, other = source("torch", [0.25], front={"baseline": True}), source("fast", [0.05])
    wl = baseline.records[0].wl
    other.records[0].wl = wl | said if said else {"name": wl["name"]}

    assert rows_of(summarize("op", "Op", [baseline, other]))["fast"].speedup == pytest.approx(5)


def test_processes_of_different_workloads_are_not_merged_into_a_time():
    baseline, other = source("torch", [0.25], front={"baseline": True}), source("fast", [0.05])
    second = msgspec.structs.replace(other.records[0], process=1, wl=other.records[0].wl | {"batch": 1})
    other.records.append(second)

    assert rows_of(summarize("op", "Op", [baseline, other]))["fast"].status is Status.INVALID


def test_a_self_reported_row_has_no_rank_in_a_view_of_its_own():
    own = source("forged", [0.001], judged=Judged.NOT)
    own.records[0].wl = own.records[0].wl | {"name": "mine", "set": "mine"}

    summary = summarize("op", "Op", [source("honest", [0.25]), own])

    assert [row.rank for view in summary.devices for row in view.rows if row.implementation == "forged"] == [
        None
    ]


def test_workloads_of_this_build_replace_committed_ones_of_the_same_device():
    committed = [
        source("ours", [0.9, 0.8], measured_now=False, ts="2027-01-01"),
        source("ours", [5.0], measured_now=False, device=EPYC),
    ]

    summary = summarize("op", "Op", [*committed, source("ours", [0.1])])

    assert [point.p50_ms for point in rows_of(summary, 0)["ours"].points] == [0.1, 0.8]
    assert [point.p50_ms for point in rows_of(summary, 1)["ours"].points] == [5.0]


def test_a_cell_of_this_build_that_crashed_has_no_times_of_committed_records():
    committed = source("ours", [0.9, 0.8], measured_now=False, ts="2027-01-01")
    base = source("base", [0.5, 0.5])

    row = rows_of(summarize("op", "Op", [committed, base, source("ours", status=Status.CRASHED)]))["ours"]

    assert [point.status for point in row.points] == [Status.CRASHED] * 2


def test_an_implementation_whose_notebook_is_gone_keeps_its_row():
    row = rows_of(summarize("op", "Op", [source("old_kernel", [0.1], measured_now=False)]))["old_kernel"]

    assert (row.title, row.rank) == ("Old Kernel", 1)


@pytest.mark.parametrize(("earlier", "latest"), [("hub", "source build"), ("source build", "hub")])
def test_a_row_has_a_hub_kernel_as_published_or_from_source_but_not_both(earlier, latest):
    before, now = source("ours", [0.9, 0.9], ts="2026-01-01"), source("ours", [0.1])
    for records, origin in ((before.records, earlier), (now.records, latest)):
        for one in records:
            one.provenance.hub = [HubKernel(repo="org/kernel", origin=origin)]
    refused = source("ours", [None, None, None]).records[2:]
    committed = Source(records=[*before.records, *now.records, *refused], measured_now=False)

    row = rows_of(summarize("op", "Op", [committed]))["ours"]

    assert [point.p50_ms for point in row.points] == [0.1, None]
    assert row.provenance.hub[0].origin == latest


def test_bandwidth_counts_bytes_over_the_median():
    point = rows_of(summarize("op", "Op", [source("ours", [0.5])]))["ours"].points[0]

    assert point.gb_per_s == pytest.approx(2**30 / 0.5e-3 / 1e9)
    assert point.tflop_per_s == pytest.approx(1e9 / 0.5e-3 / 1e12)


@pytest.mark.parametrize("gpu", ["N/A", "[N/A]", "[Not Supported]", "None", " "])
def test_what_tools_write_without_a_gpu_is_no_name_of_one(gpu):
    old = record("a", 0.1, device=None, env=Environment(gpu=gpu, cpu="AMD EPYC"))

    assert device_of(old).kind == "cpu"


def test_an_old_record_of_a_cpu_beside_a_gpu_is_of_the_cpu():
    workload = {"name": "w", "device": "cpu:0"}
    old = record("a", 0.1, device=None, env=Environment(gpu="NVIDIA L40S"), wl=workload)

    assert device_of(old).kind == "cpu"


def test_a_record_of_kernels_benchmarks_has_device_and_family_from_environment_and_tags():
    shape = {"name": "LN_B16_S2048_D4096", "batch": 16, "seq_len": 2048, "dtype": "bfloat16"}
    fields = {"env": Environment(gpu="NVIDIA L40S"), "tags": {"family": "torch-ln"}, "wl": shape}
    old = record("torch_eager", 0.82, half_width=None, device=None, **fields)

    device = summarize("layer_norm", "Layer Norm", [Source(records=[old])]).devices[0]

    assert device.device.slug == "nvidia-l40s"
    row = device.rows[0]
    assert (row.title, row.family, row.rank) == ("Torch Eager", "torch-ln", 1)
    assert (row.points[0].p50_ms, row.points[0].ci_low_ms) == (0.82, None)
    assert device.workloads[0].axes == {"batch": 16, "seq_len": 2048}


def test_a_row_of_a_busy_machine_has_no_rank_but_its_time_and_the_reason():
    disturbed = {
        "flags": [Flag.DISTURBED],
        "tags": {"timer_note": "a thread waited 48 % of the time for a core"},
    }
    sources = [source("base", [0.1, 0.2], front=BASELINE), source("ours", [0.05, 261.0], **disturbed)]

    row = rows_of(summarize("op", "Op", sources))["ours"]

    assert (row.rank, row.speedup, row.passed, row.status) == (None, None, 2, Status.DISTURBED)
    assert row.reason.startswith("a thread waited 48 %")
    assert [point.p50_ms for point in row.points] == [0.05, 261.0]
    assert {point.verdict for point in row.points} == {Verdict.NONE}


def test_a_workload_on_which_zeros_pass_has_no_speed_up_and_does_not_count_for_the_rank():
    sources = [source("base", [0.1, 0.1], front=BASELINE), source("ours", [0.05, 0.01])]
    for side in sources:
        side.records[1].flags = [Flag.ZEROS_PASS]
    row = rows_of(summarize("op", "Op", sources))["ours"]
    for side in sources:
        del side.records[0]
    only = rows_of(summarize("op", "Op", sources))["ours"]

    assert (row.rank, row.speedup, row.speedup_workloads, row.passed) == (1, 2.0, 1, 2)
    assert [point.speedup for point in row.points] == [2.0, None]
    assert (only.rank, only.speedup, only.status) == (None, None, Status.OK)


def test_nothing_is_compared_with_a_baseline_of_a_busy_machine():
    sources = [source("base", [0.1], front=BASELINE, flags=[Flag.DISTURBED]), source("ours", [0.05])]

    row = rows_of(summarize("op", "Op", sources))["ours"]

    assert (row.speedup, row.status) == (None, Status.OK)
