"""On a CPU, processes of judged cells are forks of one that has imported torch; nothing of one reaches the next."""

import json
import os

import psutil
import pytest
from projects import survivors

from kernels_bench_tools.run.process import forks

CELL = """
import json, os, sys, time
import torch
from kernels_bench_tools import run_benchmark

found = {
    "left": [getattr(torch, "LEFT", None), os.environ.get("LEFT"), "left" in sys.modules, torch.get_default_dtype() == torch.half],
    "seed": hash("seed"),
    "parent": os.getppid(),
    "session": os.getsid(0) == os.getpid(),
    "seen": sorted(open("/proc/self/environ", errors="surrogateescape").read().rstrip("\\0").split("\\0")) == sorted(f"{k}={v}" for k, v in os.environ.items()),
    "owned": [os.environ["KBT_CONTEXT"] != "", os.getcwd() == os.path.dirname(os.path.realpath("found.json"))],
    "cores": len(os.sched_getaffinity(0)),
    "random": [torch.rand(1).item(), __import__("random").random()],
}
json.dump(found, open("found.json", "w"))
torch.LEFT, os.environ["LEFT"], sys.modules["left"] = 1, "1", torch
AFTER
run_benchmark("layer_norm", lambda x, w, b: torch.nn.functional.layer_norm(x, x.shape[-1:], w, b), workloads="smoke", device="cpu", output="layer_norm.jsonl")
"""
ATTRIBUTES = "id=a outputs=found.json,layer_norm.jsonl"


@pytest.fixture
def cells(workspace):
    """Write cells that find what others have left, and return what each has found."""

    def build(*after: str, on: str = "cpu", **options: object) -> list[dict[str, object]]:
        names = [f"layer_norm/impls/x{number}.md" for number in range(len(after))]
        for name, code in zip(names, after, strict=True):
            workspace.cell(name, CELL.replace("AFTER", code).replace('"cpu"', f'"{on}"'), ATTRIBUTES)
        workspace.build(**options)
        results = [workspace.result(name) for name in names]
        return [
            json.loads(workspace.text(one.artifacts["found.json"]))
            | {"status": one.status, "reason": one.reason}
            for one in results
        ]

    return build


def test_forks_have_the_variables_folder_and_session_of_a_process_that_was_started(cells, monkeypatch):
    monkeypatch.setitem(os.environb, b"TZ", b"\xff")  # is passed on as it is

    first, second = cells("", "torch.set_default_dtype(torch.half)")

    assert first["seed"] == second["seed"]
    assert first["left"] == second["left"] == [None, None, False, False]
    for found in first, second:
        assert (found["parent"], found["session"], found["seen"]) == (os.getpid(), True, True)
        assert found["owned"] == [True, True]
        assert (found["status"], found["reason"]) == ("ok", "")
    assert first["random"][1] != second["random"][1]


def test_processes_whose_differences_count_are_no_forks(cells):
    first, second = cells("", "", processes=2)

    assert first["seed"] != second["seed"]


@pytest.mark.gpu
def test_on_a_gpu_several_processes_are_forks_too(cells, workspace):
    first, second = cells("", "", on="cuda", processes=2)

    assert first["seed"] == second["seed"]
    assert [first["status"], second["status"]] == ["ok"] * 2
    assert (
        len({one["run"] for one in workspace.records("layer_norm/impls/x0.md", file="layer_norm.jsonl")}) == 2
    )


def test_a_fork_that_crashes_or_leaves_processes_ends_alone(cells, workspace):
    seconds = f"7{os.getpid()}"
    leaves = f"""
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0: time.sleep({seconds})
    os._exit(0)
"""
    crashed, left, last = cells("os.abort()", leaves, "")

    assert [one["status"] for one in (crashed, left, last)] == ["crashed", "ok", "ok"]
    assert crashed["seed"] == last["seed"]
    assert survivors(seconds) == []
    assert not [
        one for one in psutil.Process().children(recursive=True) if "judge.start" in " ".join(one.cmdline())
    ]


FORKING = """
import contextlib, glob

def read(path):
    with contextlib.suppress(OSError):  # the thread or process has ended
        return open(path).read()
    return ""

for path in glob.glob(f"/proc/{os.getppid()}/task/*/children"):
    for pid in map(int, read(path).split()):
        if pid != os.getpid() and read(f"/proc/{pid}/cmdline").endswith("judge.start\\0"): CHANGE
"""


@pytest.mark.parametrize(
    "change",
    [
        "os.sched_setaffinity(pid, {0})",
        "os.setpriority(os.PRIO_PROCESS, pid, 5)",
        "import resource; resource.prlimit(pid, resource.RLIMIT_NOFILE, (300, 300))",
        "os.kill(pid, 9)",
    ],
)
def test_a_cell_cannot_change_what_later_ones_are_forked_from(cells, change):
    first, second, third = cells("", FORKING.replace("CHANGE", change), "")

    assert first["seed"] == second["seed"] != third["seed"]
    assert first["cores"] == third["cores"]
    assert [one["status"] for one in (first, second, third)] == ["ok"] * 3


@pytest.mark.parametrize(("seconds", "change"), [(0.5, "os.kill(pid, 19)"), (1e-6, "pass")])
def test_if_what_forks_is_stopped_or_too_slow_cells_are_started(cells, monkeypatch, seconds, change):
    monkeypatch.setattr(forks, "FORK_SECONDS", seconds)

    first, second = cells(FORKING.replace("CHANGE", change), "")

    assert first["seed"] != second["seed"]
    assert [one["status"] for one in (first, second)] == ["ok"] * 2


COMBINE = """
import json, os, sys
from kernels_bench_tools import combine

found = {"seed": hash("seed"), "left": "left" in sys.modules, "parent": os.getppid(), "input": sys.stdin.read()}
found["drawing"] = "kernels_bench_tools.chart.figure" in sys.modules
json.dump(found | {"cwd": os.listdir(), "main": __name__}, open("found.json", "w"))
sys.modules["left"] = sys
"""


def test_cells_that_combine_records_are_forks_of_what_draws_charts_and_others_are_not(workspace):
    for name, imported in (("a", "combine"), ("b", "combine"), ("c", "__version__")):
        workspace.cell(f"{name}.md", COMBINE.replace("combine", imported), "id=a outputs=found.json")
    workspace.build()
    first, second, third = (
        json.loads(workspace.text(workspace.result(f"{name}.md").artifacts["found.json"])) for name in "abc"
    )

    assert first["seed"] == second["seed"] != third["seed"]
    assert [one["drawing"] for one in (first, second, third)] == [True, True, False]
    for one in first, second:
        assert one | {"seed": 0} == {
            "seed": 0,
            "left": False,
            "parent": os.getpid(),
            "input": "",
            "drawing": True,
            "cwd": [],
            "main": "__main__",
        }
