"""Sessions: cells that measure run in several fresh processes in alternating order, and sentinels are compared."""

import pytest
from filelock import FileLock, Timeout
from workspace import MEASURED, MEASURING, build_options

from kernels_bench_tools.records.codec import read_records
from kernels_bench_tools.records.device import cuda_device, current_device, hardware_id
from kernels_bench_tools.records.record import Flag
from kernels_bench_tools.run.build import build
from kernels_bench_tools.run.environment.variables import user_cache
from kernels_bench_tools.run.options import DEFAULT_PROCESSES, BuildOptions
from kernels_bench_tools.run.progress import Progress
from kernels_bench_tools.run.session import LIMITS, find_deviations
from kernels_bench_tools.text.names import slugify

X, Y = "op/impls/x.md", "op/impls/y.md"

WRITE = f"""
import json, os, pathlib, uuid
context = json.load(open(os.environ["KBT_CONTEXT"]))
process, processes = context["process"], context["processes"]
def write(**more):
    record = {MEASURED!r} | {{"process": process, "run": uuid.uuid4().hex}} | more
    with open("op.jsonl", "a") as file:
        file.write(json.dumps(record) + chr(10))
"""


QUIET = [[[1.0, 1.0]]] * 3


def measured(workspace, notebook=X):
    return read_records(workspace.root / workspace.result(notebook).artifacts["op.jsonl"])


def sentinel_cell(workspace, values, notebook=X, then=""):
    """Write a cell whose sentinel takes ``values[process][how often it was tried before]``."""
    tried = workspace.root / ".tried" / notebook.replace("/", "_")
    code = f"""{WRITE}
tried = pathlib.Path({str(tried)!r}) / str(process)
tried.mkdir(parents=True, exist_ok=True)
attempt = len(list(tried.iterdir()))
(tried / str(attempt)).touch()
write(sentinels={{"copy": {values!r}[process][attempt], "null": [0.002, 0.0025]}})
{then}
"""
    workspace.cell(notebook, code, MEASURING)


def test_processes_are_fresh_and_alternate_and_their_logs_and_records_are_kept_in_order(workspace):
    code = WRITE + "write(tags={'seen': f'{process} of {processes}, {sorted(os.listdir())}'})\n"
    code += "pathlib.Path(os.environ['HOME'], 'mark').touch(exist_ok=False)\n"
    workspace.cell(X, code + "print(process, end='' if process else chr(10))", MEASURING)
    for notebook in (Y, "other/impls/z.md"):
        workspace.cell(notebook, WRITE + "write()", MEASURING)
    recorder = workspace.build(processes=3)

    turns = [f"{name.removesuffix('.md:a')[-1]}{process}" for name, process in recorder.processes]
    assert turns == ["x0", "y0", "y1", "x1", "x2", "y2", "z0", "z1", "z2"]
    run, records = workspace.result(X), measured(workspace)
    assert run.status == "ok"
    assert [record.tags["seen"] for record in records] == [f"{n} of 3, []" for n in range(3)]
    assert [record.process for record in records] == [0, 1, 2]
    assert len({record.run for record in records}) == 3
    assert workspace.text(run.stdout) == "0\n--- process 2 of 3\n1\n--- process 3 of 3\n2"
    assert run.stderr == ""


def test_a_failed_process_ends_its_cell_and_no_other(workspace):
    workspace.cell(X, WRITE + "write()\nif process == 1: raise ValueError('no')", MEASURING)
    workspace.cell(Y, WRITE + "write()", MEASURING)
    recorder = workspace.build(processes=3)

    run, records = workspace.result(X), measured(workspace)

    assert (run.status, run.reason, run.exit_code) == ("error", "ValueError: no", 1)
    assert [(record.process, record.status) for record in records] == [(0, "ok"), (1, "ok"), (1, "error")]
    assert (X + ":a", 2) not in recorder.processes
    assert workspace.result(Y).status == "ok"
    assert len(measured(workspace, Y)) == 3
    assert workspace.build(processes=3, retry_failed=True).started == [X + ":a"]


def test_the_process_that_was_started_ahead_does_not_run_after_a_failed_one(workspace, monkeypatch):
    # On a GPU, a process starts while the one before it measures.
    monkeypatch.setattr("kernels_bench_tools.run.build.current_device", lambda: cuda_device("NVIDIA H200"))
    begun = workspace.root / ".begun"
    code = f"open({str(begun)!r}, 'a').write(str(process))\nraise ValueError('no')"
    workspace.cell(X, WRITE + code, MEASURING)
    workspace.build(processes=3)

    assert (workspace.result(X).reason, begun.read_text()) == ("ValueError: no", "0")


def test_a_cell_changes_no_record_of_another_cell_of_its_session(workspace):
    workspace.cell(X, WRITE + "write()", MEASURING)
    cache = workspace.root / ".kbt/cache"
    edit = f"""
for path in pathlib.Path({str(cache)!r}).glob("*/artifacts/op.jsonl"):
    text = path.read_text()
    path.write_text(text.replace('"w"', '"v"'))
    path.with_name("more.jsonl").write_text(text)
"""
    workspace.cell(Y, WRITE + "write()" + edit, MEASURING)

    recorder = workspace.build(processes=2)

    assert [record.workload for record in measured(workspace)] == ["w", "w"]
    assert set(workspace.result(X).artifacts) == {"op.jsonl"}
    assert any("another cell changed op.jsonl" in note for note in recorder.notes)


def test_an_unsupported_cell_runs_in_one_process(workspace):
    code = WRITE + "write(status='unsupported', ok=False, lat_ms=None)\n"
    workspace.cell(X, code, MEASURING)
    workspace.cell(Y, code + "write(wl={'name': 'v'})", MEASURING)
    recorder = workspace.build(processes=3)

    assert (workspace.result(X).status, workspace.result(Y).status) == ("unsupported", "ok")
    assert [name for name, _ in recorder.processes].count(X + ":a") == 1
    assert (len(measured(workspace)), len(measured(workspace, Y))) == (1, 6)


def test_the_device_is_held_from_the_first_process_to_the_last(workspace):
    workspace.cell(X, WRITE + "write()", MEASURING)
    workspace.cell(Y, WRITE + "write()", MEASURING)
    free = []

    class Recorder(Progress):
        def process_ended(self, name, waits):
            lock = FileLock(user_cache() / "locks" / f"{slugify(hardware_id(current_device()))}.lock")
            try:
                lock.acquire(timeout=0)
                free.append(name)
                lock.release()
            except Timeout:
                free.append(None)

    build(workspace.project, [], BuildOptions(environment="current", processes=2), Recorder())

    assert free == [None] * 4


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, DEFAULT_PROCESSES),
        ({"workloads": "smoke"}, {"cuda": 1, "cpu": 1}),
        ({"quick": True}, {"cuda": 1, "cpu": 1}),
        ({"quick": True, "processes": 2}, {"cuda": 2, "cpu": 2}),
        ({"workloads": "smoke", "processes": 5}, {"cuda": 5, "cpu": 5}),
    ],
)
def test_the_number_of_processes_depends_on_options_and_device(options, expected):
    assert {kind: build_options(**options).process_counts(kind)[-1] for kind in DEFAULT_PROCESSES} == expected


def test_a_quick_run_uses_the_results_of_a_build_unless_rerun_is_set(workspace):
    workspace.cell(X, WRITE + "write()", MEASURING)
    workspace.build(processes=3)

    assert workspace.build(processes=0, quick=True).processes == []
    assert len(measured(workspace)) == 3
    assert workspace.build(processes=0, quick=True, rerun=True).processes == [(X + ":a", 0)]
    assert len(measured(workspace)) == 1
    assert workspace.build(processes=0).processes == []
    assert len(measured(workspace)) == 3


@pytest.mark.parametrize(
    ("values", "others", "again", "flagged"),
    [
        # Once, and not when it is measured again.
        ([[[1.0, 1.0]], [[1.0, 2.0], [1.0, 1.001]], [[1.0, 1.0]]], QUIET, [1], []),
        # Twice.
        ([[[1.0, 1.0]], [[1.0, 1.0]], [[2.0, 2.0], [2.0, 2.0]]], QUIET, [2], [2]),
        # All processes alike, because of the workloads.
        ([[[1.0, 2.0]], [[1.0, 2.1]], [[1.0, 2.0]]], QUIET, [], [0, 1, 2]),
        # An only process is compared with its own first value.
        ([[[1.0, 2.0], [1.0, 2.0]]], [[[2.0, 2.0]]], [0], [0]),
    ],
)
def test_a_process_whose_sentinel_deviates_is_measured_again(workspace, values, others, again, flagged):
    sentinel_cell(workspace, values)
    sentinel_cell(workspace, others, Y)
    count = len(values)
    recorder = workspace.build(processes=count)

    assert recorder.processes[2 * count :] == [(X + ":a", process) for process in again]
    records = measured(workspace)
    expected = [[Flag.SENTINEL] if process in flagged else [] for process in range(count)]
    assert [record.flags for record in records] == expected
    assert [record.flags for record in measured(workspace, Y)] == [[]] * count
    assert [record.sentinels["copy"] for record in records] == [one[-1] for one in values]
    assert sum("is measured again: sentinel 'copy'" in note for note in recorder.notes) == len(again)
    assert sum("is flagged: sentinel 'copy'" in note for note in recorder.notes) == len(flagged)
    assert workspace.build(processes=count).processes == []


@pytest.mark.parametrize(
    ("times", "expected"),
    [
        ([{"copy": [1.0, 1.014]}] * 3, [False] * 3),
        ([{"copy": [1.0, 1.0]}, {"copy": [1.0, 1.0]}, {"copy": [1.016, 1.0]}], [False, False, True]),
        # A kernel of nothing takes two microseconds: half of one is the clock's, not the device's.
        ([{"null": [0.002, 0.0025]}, {"null": [0.002, 0.002]}, {"null": [0.003, 0.002]}], [False] * 3),
        (
            [{"null": [0.002, 0.002]}, {"null": [0.002, 0.002]}, {"null": [0.0035, 0.002]}],
            [False, False, True],
        ),
        # A drift that all share: the median of the session tells what is usual.
        ([{"copy": [1.0, 1.0]}, {"copy": [1.01, 1.01]}, {"copy": [1.02, 1.02]}], [False] * 3),
        # Too few to tell: before and after.
        ([{"copy": [1.0, 1.02]}], [True]),
        ([{"copy": [1.0]}, {"copy": [3.0, 3.0]}], [False, False]),
        ([{}, {"copy": []}], [False, False]),
    ],
)
def test_sentinels_deviate_by_a_share_and_by_more_than_a_microsecond(times, expected):
    found = find_deviations(times, LIMITS["cuda"])

    assert [deviation is not None for deviation in found] == expected


def test_a_build_whose_output_nobody_reads_ends(workspace):
    class Closed(Progress):
        def process_started(self, *_):
            raise BrokenPipeError

    workspace.cell(X, f"{WRITE}write()", MEASURING)

    with pytest.raises(BrokenPipeError):
        build(workspace.project, [], BuildOptions(environment="current"), Closed())
