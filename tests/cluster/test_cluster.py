"""Builds whose cells run on a real Dask cluster, with workers, clients and schedulers that are killed."""

import itertools
import json
import logging
import multiprocessing.spawn
import os
import re
import shutil
import signal
import socket
import subprocess
import time
from contextlib import contextmanager
from unittest import mock

import psutil
import pytest
from distributed import Client
from msgspec.structs import replace
from projects import PYTHON, assert_one_line, contents, run_kbt, survivors, wait_until
from workspace import MEASURED, MEASURING, make_wheel

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.own_process import PACKAGE_FOLDER
from kernels_bench_tools.records.build import CellRun
from kernels_bench_tools.report.site import publish

WRITE = f"""
import json, os, time
process = json.load(open(os.environ["KBT_CONTEXT"]))["process"]
record = {MEASURED!r} | {{"process": process}}
def write(**more):
    with open("op.jsonl", "a") as file:
        file.write(json.dumps(record | more) + chr(10))
"""
# Workers send events in batches: the build must have received which cell runs.
KILL_WORKER = "time.sleep(0.3); os.kill(os.getppid(), 9); time.sleep(60)\n"


@pytest.fixture(scope="module")
def caches(tmp_path_factory):
    """The user's caches, for all workers."""
    return tmp_path_factory.mktemp("caches")


@pytest.fixture(scope="module")
def cluster(caches):
    """Dask's own cluster of processes; at first with two workers. They look at few files around each cell."""
    import dask
    from distributed import LocalCluster

    # On a busy machine a worker takes its time to come back, and would not be waited for.
    patience = {"distributed.deploy.lost-worker-timeout": "120s"}
    # Dask sets variables in this process, too: keys of cells that later tests run would differ.
    with mock.patch.dict(os.environ), pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(caches))
        patch.delenv("UVNOTE_PLATFORM", raising=False)
        patch.setattr(multiprocessing.spawn, "_python_exe", os.fsencode(PYTHON))
        with (
            dask.config.set(patience),
            LocalCluster(
                n_workers=2,
                threads_per_worker=2,
                resources={"device": 1},
                memory_limit=0,
                dashboard_address=":0",  # other tests run at the same time
                silence_logs=logging.CRITICAL,
            ) as cluster,
        ):
            yield cluster


def start(module, *arguments, **variables):
    """Start a command of this environment."""
    return subprocess.Popen(
        [PYTHON, "-m", module, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | variables,
        cwd=variables.get("PWD"),
    )


def start_build(workspace, address):
    arguments = ("build", "--env", "current", "--cluster", address)
    return start("kernels_bench_tools", *arguments, PWD=str(workspace.root))


@contextmanager
def started_worker(address, **variables):
    """Run Dask's command for a worker with one device."""
    options = ("--resources", "device=1", "--nthreads", "1", "--memory-limit", "0", "--no-dashboard")
    worker = start("distributed.cli.dask_worker", address, *options, **variables)
    try:
        yield worker
    finally:
        worker.send_signal(signal.SIGINT)
        worker.communicate(timeout=60)


@contextmanager
def started_scheduler(folder):
    """Run Dask's command for a scheduler; yield its process and address."""
    file = folder / "scheduler.json"
    options = ("--host", "127.0.0.1", "--port", "0", "--no-dashboard", "--scheduler-file", str(file))
    scheduler = start("distributed.cli.dask_scheduler", *options)
    try:
        assert wait_until(lambda: file.is_file() and file.stat().st_size, 60)
        yield scheduler, json.loads(file.read_text())["address"]
    finally:
        scheduler.kill()
        scheduler.communicate(timeout=60)


@pytest.fixture
def stand_in_gpus(caches, tmp_path):
    """A scheduler, and workers for two GPUs, of which there are none; yield the processes and the address."""
    smi = tmp_path / "bin" / "nvidia-smi"
    smi.parent.mkdir()
    listed = "".join(f"GPU {n}: NVIDIA H200 (UUID: GPU-{n}{n}{n}{n}-stand-in)\\n" for n in range(2))
    smi.write_text(f"#!/bin/sh\n[ \"$1\" = -L ] && printf '{listed}' || echo '580.1, NVIDIA H200'\n")
    smi.chmod(0o755)
    variables = {"PATH": f"{smi.parent}{os.pathsep}{os.environ['PATH']}", "XDG_CACHE_HOME": str(caches)}
    with (
        started_scheduler(tmp_path) as (scheduler, address),
        started_worker(address, CUDA_VISIBLE_DEVICES="0", **variables) as first,
        started_worker(address, CUDA_VISIBLE_DEVICES="1", **variables) as second,
        Client(address) as client,
    ):
        client.wait_for_workers(2, timeout=60)
        yield (scheduler, first, second), address


def sleeper(workspace, name="n.md"):
    """Write a cell that starts a process that lives long; return what it is found by."""
    seconds = f"7{os.getpid()}.{abs(hash(str(workspace.root) + name)) % 10000}"
    workspace.cell(name, f"import subprocess; subprocess.run(['sleep', '{seconds}'])")
    return seconds


def write_tree(workspace):
    for operator in ("p", "q"):
        for name in ("one", "two"):
            front = f"title: {name}\nfamily: f\n" + ("baseline: true" if name == "one" else "")
            workspace.cell(f"{operator}/impls/{name}.md", WRITE + "write()", MEASURING, front)
        table = "import os\nfor name in sorted(os.environ):\n"
        table += "    if name.startswith('UVNOTE_FILE'): print(name, os.listdir(os.environ[name]), os.environ[name])\n"
        table += "open('t.csv', 'w').write('a,b')"
        workspace.cell(
            f"{operator}/results/all.md", table, "id=c needs=../impls/*.md:a,../data.txt outputs=t.csv"
        )
        workspace.write(f"{operator}/data.txt", operator)
    code = "import json, os\nneeds = json.load(open(os.environ['KBT_NEEDS']))\nprint(needs['files'], needs['project'])\n"
    workspace.cell(
        "files.md", code + "print([open(file).read() for file in needs['files']])", "id=a needs=./*/data.txt"
    )
    text = "```python id=a\nimport os\nprint(os.getcwd(), os.environ['HOME'], __file__)\nopen('x.txt', 'w').write('x')\n```\n"
    workspace.write(
        "n.md",
        text
        + "```python id=b needs=a\nimport os\nprint(os.environ['UVNOTE_INPUT_A'])\nraise ValueError('no')\n```\n",
    )
    workspace.cell("died.md", "import os; os.kill(os.getpid(), 9)")


def site(workspace, **options):
    """Build from nothing; return the bytes of every page, with the seconds that cells took made equal."""
    shutil.rmtree(workspace.root / ".kbt", ignore_errors=True)
    recorder = workspace.build(processes=2, **options)
    for notebook in workspace.run.notebooks:
        notebook.blocks = [
            replace(block, seconds=1.0) if isinstance(block, CellRun) else block for block in notebook.blocks
        ]
    folder = workspace.root / "site"
    shutil.rmtree(folder, ignore_errors=True)
    publish(workspace.root, workspace.run, folder)
    return recorder, contents(folder)


def test_the_same_build_on_two_workers_gives_the_same_site(workspace, cluster):
    write_tree(workspace)
    _, here = site(workspace)

    recorder, there = site(workspace, cluster=cluster.scheduler_address)

    assert recorder.notes == []
    assert len(recorder.expected) == 1, "workers do not count their cells as a build's"
    assert sorted(there) == sorted(here)
    assert [name for name in here if here[name] != there[name]] == []
    assert workspace.build(processes=2).started == ["died.md:a"], "the other results serve locally"


def test_a_cell_that_kills_its_workers_has_crashed_and_others_run(workspace, cluster):
    reason = "its worker was lost each time it ran"
    workspace.cell("op/impls/x.md", WRITE + "write()", MEASURING)
    workspace.cell("op/impls/y.md", WRITE + KILL_WORKER, MEASURING)
    recorder = workspace.build(cluster=cluster.scheduler_address, processes=1)

    run = workspace.result("op/impls/y.md")
    assert (run.status, run.reason) == ("crashed", reason)
    assert workspace.result("op/impls/x.md").status == "ok"
    lost = [note for note in recorder.notes if "was lost while op/impls/y.md:a ran" in note]
    assert len(recorder.notes) == len(lost) == 3
    (record,) = workspace.records("op/impls/y.md")
    assert (record["status"], record["err"]["msg"]) == ("crashed", reason)


def test_a_session_that_loses_its_worker_restarts_on_another_worker(workspace, cluster):
    flag, seconds = workspace.root / "flag", f"6{os.getpid()}"
    tag = "write(tags={'worker': str(os.getppid())})\n"
    kill = f"import subprocess\nif process == 1 and not os.path.exists({str(flag)!r}):\n    open({str(flag)!r}, 'w')\n"
    kill += f"    subprocess.Popen(['sleep', '{seconds}'], start_new_session=True)\n    {KILL_WORKER}"
    workspace.cell("op/impls/x.md", WRITE + tag, MEASURING)
    workspace.cell("op/impls/y.md", WRITE + kill + tag, MEASURING)
    recorder = workspace.build(cluster=cluster.scheduler_address, processes=2)

    records = [*workspace.records("op/impls/x.md"), *workspace.records("op/impls/y.md")]

    assert len(records) == 4
    assert len({record["tags"]["worker"] for record in records}) == 1
    assert any(
        "was lost while op/impls/y.md:a ran; trying again on tcp://" in note for note in recorder.notes
    )
    assert wait_until(lambda: not survivors(seconds), 5)


def test_the_projects_operators_are_sent_to_the_worker(workspace, cluster):
    code = "import pathlib\nfolder = pathlib.Path(json.load(open(os.environ['KBT_CONTEXT']))['operators'])\n"
    code += "found = {p.name: p.read_text() for p in sorted(folder.rglob('*')) if p.is_file()}\nwrite(tags=found)\n"
    workspace.cell("op/impls/x.md", WRITE + code, MEASURING)
    old = workspace.write("operators/old.py", "1")
    for name, text in {"op.py": "1", "_shared/x.py": "2", "notes.txt": "3"}.items():
        workspace.write(f"operators/{name}", text)
    workspace.build(cluster=cluster.scheduler_address)
    assert workspace.records("op/impls/x.md")[0]["tags"] == {"op.py": "1", "x.py": "2", "old.py": "1"}
    old.unlink()
    workspace.write("operators/op.py", "4")
    workspace.build(cluster=cluster.scheduler_address)

    assert workspace.records("op/impls/x.md")[0]["tags"] == {"op.py": "4", "x.py": "2"}


def test_path_sources_of_a_script_are_sent_to_the_worker(workspace, cluster):
    make_wheel(workspace.root / "wheels", "gift", "WHAT = 'a cake'\n")
    header = '# /// script\n# dependencies = ["gift"]\n# [tool.uv.sources]\n'
    header += '# gift = { path = "../../../../wheels/gift-1.0-py3-none-any.whl" }\n# ///\n'
    workspace.cell("op/deep/n.md", header + "import gift; print(gift.WHAT)")
    workspace.build(environment="uv", cluster=cluster.scheduler_address)

    run = workspace.result("op/deep/n.md")

    assert (run.status, run.reason) == ("ok", "")
    assert workspace.text(run.stdout) == "a cake\n"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_cells_end_when_their_build_is_interrupted_or_killed(workspace, cluster, number):
    seconds = sleeper(workspace)
    build = start_build(workspace, cluster.scheduler_address)
    assert wait_until(lambda: survivors(seconds), 60)
    began = time.monotonic()
    build.send_signal(number)
    build.communicate(timeout=60)

    assert wait_until(lambda: not survivors(seconds), 10)
    assert time.monotonic() - began < 15
    assert build.returncode == (130 if number == signal.SIGINT else -signal.SIGKILL)
    workspace.cell("n.md", "print('fine')")
    workspace.build(cluster=cluster.scheduler_address)
    assert workspace.result("n.md").status == "ok"


def test_operators_are_measured_in_parallel_each_on_one_worker(workspace, stand_in_gpus):
    _, address = stand_in_gpus
    tag = "begin = time.time(); time.sleep(0.8)\n"
    tag += "write(tags={'worker': os.environ['CUDA_VISIBLE_DEVICES'], 'begin': str(begin), 'end': str(time.time())})"
    for operator in ("p", "q"):
        for name in ("x", "y"):
            workspace.cell(f"{operator}/impls/{name}.md", WRITE + tag, MEASURING)
    workspace.build(cluster=address, processes=2)

    tags = {
        operator: [
            one["tags"] for name in ("x", "y") for one in workspace.records(f"{operator}/impls/{name}.md")
        ]
        for operator in ("p", "q")
    }

    assert {len({tag["worker"] for tag in theirs}) for theirs in tags.values()} == {1}
    assert {tag["worker"] for theirs in tags.values() for tag in theirs} == {"0", "1"}
    spans = {key: [(float(t["begin"]), float(t["end"])) for t in theirs] for key, theirs in tags.items()}
    for theirs in spans.values():
        ordered = sorted(theirs)
        assert all(one[1] <= other[0] for one, other in itertools.pairwise(ordered))
    assert any(one[0] < other[1] and other[0] < one[1] for one in spans["p"] for other in spans["q"])


def test_variables_that_change_numbers_are_those_of_the_client(workspace, caches, tmp_path, monkeypatch):
    names = ["OMP_NUM_THREADS", "TORCHINDUCTOR_MAX_AUTOTUNE", "CUDA_LAUNCH_BLOCKING", "USE_HUB_KERNELS"]
    code = f"write(tags={{name: os.environ.get(name, 'unset') for name in {names}}})"
    workspace.cell("p/impls/x.md", WRITE + code, MEASURING)
    ours = {"OMP_NUM_THREADS": "3", "TORCHINDUCTOR_MAX_AUTOTUNE": "1"}
    theirs = {"OMP_NUM_THREADS": "5", "CUDA_LAUNCH_BLOCKING": "1", "USE_HUB_KERNELS": "0"}
    for name in names:
        monkeypatch.delenv(name, raising=False)
    with (
        started_scheduler(tmp_path) as (_, address),
        started_worker(address, **theirs, XDG_CACHE_HOME=str(caches)),
        Client(address) as client,
    ):
        client.wait_for_workers(1, timeout=60)
        for name, value in ours.items():
            monkeypatch.setenv(name, value)
        workspace.build(cluster=address)

    (record,) = workspace.records("p/impls/x.md")
    assert record["tags"] == dict.fromkeys(names, "unset") | ours


def test_a_lost_scheduler_is_one_error_and_ends_all_cells(workspace, stand_in_gpus):
    (scheduler, *workers), address = stand_in_gpus
    seconds = sleeper(workspace)
    build = start_build(workspace, address)
    assert wait_until(lambda: survivors(seconds), 60)
    children = [child for worker in workers for child in psutil.Process(worker.pid).children(recursive=True)]
    scheduler.kill()
    began = time.monotonic()
    _, error = build.communicate(timeout=60)

    assert time.monotonic() - began < 15
    assert build.returncode == 2
    message = [line for line in error.splitlines() if line.startswith("kbt:")]
    assert len(message) == 1
    assert f"cluster {address}: the scheduler is gone" in message[0]
    assert "Traceback" not in error
    assert wait_until(lambda: not survivors(seconds), 20)
    # This process builds, too: orphans become its children, and zombies when they end.
    assert wait_until(lambda: not any(map(runs, children)), 30)


def runs(process):
    try:
        return process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@pytest.mark.parametrize("address", ["nope", "tcp://127.0.0.1:9"])
def test_an_unreachable_scheduler_is_an_error_within_ten_seconds(workspace, address):
    workspace.cell("n.md", "1")
    began = time.monotonic()

    with pytest.raises(ProjectError, match=r"cluster \S+: no scheduler answers.*`dask scheduler`"):
        workspace.build(cluster=address)
    assert time.monotonic() - began < 10


def listening(process):
    """Return where a process and its children listen."""
    tree = [process, *process.children(recursive=True)]
    return [at.laddr for one in tree for at in one.net_connections() if at.status == psutil.CONN_LISTEN]


def test_the_commands_of_the_documentation_listen_on_this_machine_only():
    text = (PACKAGE_FOLDER.parent / "CONTRIBUTING.md").read_text().replace("\\\n", "")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = str(free.getsockname()[1])
    started = []
    try:
        for name, options in re.findall(r"dask (scheduler|worker) (.*?) &", text):
            options = [*options.replace("8786", port).split(), *(["--port", port] * (name == "scheduler"))]
            started.append(start(f"distributed.cli.dask_{name}", *options))
            process = psutil.Process(started[-1].pid)
            assert wait_until(lambda process=process: len(listening(process)) >= 2 + len(started) // 2, 60)
            time.sleep(0.5)  # for what it may open next
            assert {at.ip for at in listening(process)} == {"127.0.0.1"}
        assert len(started) == 2
    finally:
        for process in started[::-1]:
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)


def test_a_worker_with_other_code_of_this_package_is_an_error(workspace, tmp_path):
    workspace.cell("n.md", "1")
    copy = tmp_path / "other" / PACKAGE_FOLDER.name
    shutil.copytree(PACKAGE_FOLDER, copy)
    with (copy / "stats.py").open("a") as file:
        file.write("# Other code.\n")
    with (
        started_scheduler(tmp_path) as (_, address),
        started_worker(address, PYTHONPATH=str(copy.parent), PWD=str(tmp_path)),
        pytest.raises(ProjectError, match=r"worker tcp://.*: has other code.*here and on all workers"),
    ):
        workspace.build(cluster=address)
    assert not any((workspace.root / ".kbt/cache").glob("*/*"))


@pytest.mark.parametrize("address", ["", " "])
def test_an_empty_address_is_a_mistake(workspace, address):
    workspace.cell("n.md", "1")
    done = run_kbt(workspace.root, "build", "--cluster", address)
    assert_one_line(done, "--cluster: is empty. Expected: The address of a Dask scheduler")
    assert not (workspace.root / "site").exists()


def test_workers_with_different_devices_are_an_error(workspace, cluster):
    workspace.cell("n.md", "1")
    whole = os.sched_getaffinity(0)
    if len(whole) < 2:
        pytest.skip("needs two processors")
    os.sched_setaffinity(0, {min(whole)})
    try:
        with started_worker(cluster.scheduler_address):
            os.sched_setaffinity(0, whole)
            assert wait_until(lambda: len(cluster.scheduler_info["workers"]) == 3, 60)
            with pytest.raises(ProjectError, match=r"worker tcp://.*, 1 core.*one kind of device"):
                workspace.build(cluster=cluster.scheduler_address)
    finally:
        os.sched_setaffinity(0, whole)

    assert wait_until(lambda: len(cluster.scheduler_info["workers"]) == 2, 60)
