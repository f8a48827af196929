"""Which cells run, in which order, in parallel with which others, and how a build is interrupted."""

import os
import signal
import subprocess
import threading
import time
from collections import Counter
from datetime import datetime

import pytest
from projects import PYTHON, git
from workspace import MEASURED, MEASURING, WRITE

from kernels_bench_tools.records.device import current_device
from kernels_bench_tools.run import schedule
from kernels_bench_tools.run.locks import device_lock
from kernels_bench_tools.run.progress import Progress

SPAN = "import time\nprint(time.monotonic()); time.sleep(0.4); print(time.monotonic())\n"


def span(workspace, notebook):
    begin, end = workspace.text(workspace.result(notebook).stdout).split()
    return float(begin), float(end)


def overlap(one, other):
    return one[0] < other[1] and other[0] < one[1]


def test_the_cell_that_takes_longest_starts_first_and_a_baseline_last(workspace, monkeypatch):
    seconds = {"a.md": 1.0, "b.md": 3.0, "base.md": 9.0, "c.md": 2.0}
    for name in seconds:
        workspace.cell(name, "1", front="baseline: true" if name == "base.md" else "")
    monkeypatch.setattr(
        schedule,
        "expected_seconds",
        lambda nodes, *_: {one.name: seconds[one.name.notebook] for one in nodes},
    )

    assert workspace.build(jobs=1).started == ["b.md:a", "c.md:a", "a.md:a", "base.md:a"]


def test_a_cell_is_expected_to_take_as_long_as_before_else_as_its_kind(workspace):
    x, y, combine = "op/impls/x.md:a", "op/impls/y.md:a", "op/results/c.md:combine"
    workspace.cell("op/impls/x.md", f"import time; time.sleep(0.4)\n{WRITE}", MEASURING)
    workspace.cell("op/results/c.md", "print(1)", "id=combine needs=../impls/*.md:a")
    first = workspace.build()
    workspace.cell("op/impls/x.md", WRITE, MEASURING)
    workspace.cell("op/impls/y.md", WRITE, MEASURING)

    (seconds,) = workspace.build().expected

    assert first.expected == [{x: schedule.MEASURING_SECONDS, combine: schedule.OTHER_SECONDS}]
    assert seconds[x] == first.finished[x].seconds >= 0.4
    assert seconds[y] == schedule.MEASURING_SECONDS
    assert workspace.build().expected == [{}]


@pytest.mark.parametrize(
    ("planned", "measured"),
    [
        ({"c": 20.0, "a": 30.0}, "ca"),
        ({"c": 20.0, "a": 60.0}, "c"),
        # It took longer than expected, and so would the other one.
        ({"c": 0.001, "a": 30.0}, "c"),
        ({}, ""),
    ],
)
def test_planned_operators_are_measured_in_their_order_while_the_time_is_expected_to_last(
    workspace, planned, measured
):
    for operator in "abc":
        workspace.cell(f"{operator}/impls/x.md", f"import time; time.sleep(0.2)\n{WRITE}", MEASURING)
        workspace.cell(f"{operator}/results/c.md", "print(1)", "id=combine needs=../impls/*.md:a")

    started = workspace.build(planned=planned, seconds=50.0).started

    assert [name for name in started if "impls" in name] == [
        f"{operator}/impls/x.md:a" for operator in measured
    ]
    assert len(started) == len(measured) + 3
    assert workspace.result("b/impls/x.md").status is None


def test_a_failed_need_does_not_stop_combine(workspace):
    workspace.cell("op/impls/x.md", WRITE + "raise ValueError('no')", MEASURING)
    workspace.cell("op/impls/y.md", WRITE, MEASURING)
    code = """
import json, os
for need in json.load(open(os.environ["KBT_NEEDS"]))["cells"]:
    print(need["notebook"], need["status"], need["reason"], os.listdir(need["directory"]))
print(sorted(name for name in os.environ if name.startswith("UVNOTE_")))
"""
    workspace.cell("op/results/c.md", code, "id=combine needs=../impls/*.md:a")
    workspace.build()

    run = workspace.result("op/results/c.md", "combine")

    assert run.status == "ok"
    assert workspace.text(run.stdout).splitlines() == [
        "op/impls/x.md error ValueError: no ['op.jsonl']",
        "op/impls/y.md ok  ['op.jsonl']",
        "['UVNOTE_FILE_Y_A']",
    ]


def test_a_cell_gets_its_last_result_while_only_its_data_changes(workspace):
    code = "import json, os\nopen('x.txt', 'w').write(json.load(open(os.environ['KBT_NEEDS']))['previous'])"

    def previous(data, deps="", rerun=False):
        (workspace.root / "data.txt").write_text(data)
        workspace.cell("a.md", code, f'id=a needs=./data.txt deps="{deps}" outputs=x.txt')
        workspace.build(*(["a.md"] if rerun else []), rerun=rerun)
        file = workspace.root / workspace.result("a.md").artifacts["x.txt"]
        folders.append(str(file.parent))
        return file.read_text()

    folders: list[str] = []
    assert [previous("1"), previous("2")] == ["", folders[0]]
    assert [previous("3", "numpy"), previous("4", "numpy")] == ["", folders[2]]
    assert previous("5", "numpy", rerun=True) == ""


def test_a_last_result_that_a_cell_of_the_build_has_changed_is_not_given_to_another(workspace):
    harm = "import glob\nfor name in glob.glob({!r}): open(name, 'w').write('forged')"
    ask = "import json, os\nopen('x.txt', 'w').write(json.load(open(os.environ['KBT_NEEDS']))['previous'] or 'none')"
    for data in "12":
        (workspace.root / "data.txt").write_text(data)
        where = str(workspace.root / ".kbt/cache/*/artifacts/x.txt")
        workspace.cell("a.md", harm.format(where), "id=a needs=./data.txt")
        workspace.cell("b.md", ask, "id=a needs=./a.md:a,./data.txt outputs=x.txt")
        workspace.build(jobs=1)

    file = workspace.root / workspace.result("b.md").artifacts["x.txt"]
    assert file.read_text() == "none"


def test_uvnote_variables_name_the_results_of_needs(workspace):
    text = """
```python id=make-it
open('x.txt', 'w').write('made')
```

```python id=use needs=make-it,./other.md,./third.md:t
import os, json
print(open(os.environ["UVNOTE_INPUT_MAKE_IT"] + "/x.txt").read(), os.environ["UVNOTE_INPUTS"])
manifest = json.load(open(os.environ["UVNOTE_FILE_OTHER"]))
print({cell: os.listdir(folder) for cell, folder in manifest.items()})
print(os.listdir(os.environ["UVNOTE_FILE_THIRD_T"]))
```
"""
    workspace.write("n.md", text)
    workspace.write(
        "other.md", "```python id=o\nopen('o.txt', 'w')\n```\n```python id=p\nraise ValueError\n```\n"
    )
    workspace.cell("third.md", "open('t.txt', 'w')", "id=t")
    workspace.build()

    lines = workspace.text(workspace.result("n.md", "use").stdout).splitlines()

    assert lines == ["made UVNOTE_INPUT_MAKE_IT", "{'o': ['o.txt']}", "['t.txt']"]


def test_nothing_runs_beside_a_measurement(workspace):
    for name in ("a", "b"):
        workspace.cell(f"op/impls/{name}.md", SPAN + WRITE, MEASURING)
        workspace.cell(f"{name}.md", SPAN)
    workspace.build(jobs=2)

    measuring = [span(workspace, f"op/impls/{name}.md") for name in ("a", "b")]
    others = [span(workspace, f"{name}.md") for name in ("a", "b")]

    assert overlap(*others)
    assert not overlap(*measuring)
    assert not any(overlap(one, other) for one in measuring for other in others)


def test_only_the_targets_and_their_needs_run(workspace):
    workspace.write(
        "n.md", "```python id=a\n1\n```\n```python id=b needs=a\n1\n```\n```python id=c\n1\n```\n"
    )
    workspace.cell("m.md", "1")

    assert workspace.build("n.md:b").started == ["n.md:a", "n.md:b"]
    assert workspace.result("m.md").status is None
    assert workspace.build("n.md").started == ["n.md:c"]
    assert workspace.result("n.md", "b").cached


def test_rerun_runs_the_targets_and_not_their_needs(workspace):
    workspace.write("n.md", "```python id=a\n1\n```\n```python id=b needs=a\n1\n```\n")
    workspace.cell("m.md", "1")
    workspace.build()

    assert workspace.build("n.md:b", rerun=True).started == ["n.md:b"]
    assert workspace.build(rerun=("m.md",)).started == ["m.md:a"]
    assert len(workspace.build(rerun=True).started) == 3


def test_dependents_run_after_a_rerun_with_another_result(workspace):
    code = "import time; open('t.txt', 'w').write(str(time.monotonic_ns()))"
    use = "import os; print(open(os.environ['UVNOTE_INPUT_A'] + '/t.txt').read())"
    workspace.write("n.md", f"```python id=a\n{code}\n```\n```python id=b needs=a\n{use}\n```\n")
    workspace.build()

    assert workspace.build("n.md:a", rerun=True).started == ["n.md:a"]
    assert workspace.build().started == ["n.md:b"]
    artifact = workspace.text(workspace.result("n.md").artifacts["t.txt"])
    assert workspace.text(workspace.result("n.md", "b").stdout) == artifact + "\n"


def test_the_context_has_the_commit_and_the_dirty_flag(workspace):
    code = """from kernels_bench_tools.records.request import CellContext
origin = CellContext.load().origin
print(origin.commit, origin.dirty)"""
    workspace.cell("n.md", code)
    git(workspace.root, "init", "-q")
    git(workspace.root, "add", ".")
    git(workspace.root, "commit", "-qm", "x")
    commit = git(workspace.root, "rev-parse", "HEAD")
    workspace.build()
    assert workspace.run.project.commit == commit
    assert workspace.text(workspace.result("n.md").stdout) == f"{commit} False\n"

    git(workspace.root, "pack-refs", "--all")
    workspace.write("new.txt", "")
    workspace.build(rerun=True)

    assert workspace.text(workspace.result("n.md").stdout) == f"{commit} True\n"


def test_a_build_waits_until_the_device_is_free(workspace):
    order = []

    class Recorder(Progress):
        def note(self, text):
            order.append(text)

    with device_lock(current_device(), "", workspace.project, Recorder(), lambda: False):

        def measure():
            with device_lock(current_device(), "", workspace.project, Recorder(), lambda: False):
                order.append("measured")

        thread = threading.Thread(target=measure)
        thread.start()
        time.sleep(0.3)
        order.append("released")
    thread.join(10)

    holder = f"({workspace.root}, process {os.getpid()}, since {datetime.now().year}-"
    assert order[0].startswith(f"another build is measuring on {current_device().slug} {holder}")
    assert order[1:] == ["released", "measured"]


# Which thread a signal is given to is the kernel's choice; Python tells the main thread, but does not wake it up.
HEARD_ELSEWHERE = """
import signal, threading
from pathlib import Path
from kernels_bench_tools.notebooks.project import find_project
from kernels_bench_tools.run.build import build
from kernels_bench_tools.run.options import BuildOptions
from kernels_bench_tools.run.progress import Progress
class Heard(Progress):
    def process_started(self, *_): signal.pthread_kill(threading.get_ident(), signal.SIGINT)
build(find_project(Path.cwd()), [], BuildOptions(environment="current", processes=1), Heard())
"""


def test_a_signal_delivered_to_another_thread_ends_the_build(workspace):
    workspace.cell("op/impls/a.md", "import time; time.sleep(60)", MEASURING)
    command = [PYTHON, "-c", HEARD_ELSEWHERE]

    build = subprocess.run(
        command, cwd=workspace.root, capture_output=True, text=True, timeout=20, check=False
    )

    assert "KeyboardInterrupt" in build.stderr


def test_an_interrupted_session_is_resumed(workspace):
    marks, flag = workspace.root / ".marks", workspace.root / ".flag"
    marks.mkdir()
    run = f"""
import json, os, pathlib, time
process = json.load(open(os.environ["KBT_CONTEXT"]))["process"]
marks = pathlib.Path({str(marks)!r})
"""
    mark = "(marks / f'{name}{process}-{os.getpid()}').touch()\n"
    write = f"open('op.jsonl', 'a').write(json.dumps({MEASURED!r} | {{'process': process}}) + chr(10))\n"
    workspace.cell("op/impls/a.md", run + "name = 'a'\n" + mark + write, MEASURING)
    wait = (
        f"if process == 1 and not os.path.exists({str(flag)!r}): print('waits', flush=True); time.sleep(60)\n"
    )
    workspace.cell("op/impls/b.md", run + wait + "name = 'b'\n" + mark + write, MEASURING)
    command = [PYTHON, "-m", "kernels_bench_tools", "build", "--env", "current", "--processes", "3"]
    build = subprocess.Popen(command, cwd=workspace.root, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    while not list(marks.glob("b0*")):
        time.sleep(0.05)
    time.sleep(0.5)
    build.send_signal(signal.SIGINT)
    build.communicate(timeout=20)
    before = {path.name.partition("-")[0] for path in marks.iterdir()}
    flag.touch()

    workspace.build(processes=3)

    assert before == {"a0", "b0"}
    counts = Counter(path.name.partition("-")[0] for path in marks.iterdir())
    assert counts == dict.fromkeys(["a0", "a1", "a2", "b0", "b1", "b2"], 1)
    records = (workspace.root / workspace.result("op/impls/a.md").artifacts["op.jsonl"]).read_text()
    assert len(records.splitlines()) == 3
    assert not [
        *(workspace.root / ".kbt/cache").glob("*-process-*"),
        *(workspace.root / ".kbt/cache").glob(".draft-*"),
    ]


def test_an_interruption_while_an_environment_is_compared_accuses_no_cell(workspace, monkeypatch):
    def interrupted(_, ended, *, measures):
        if measures and (workspace.root / "ran").exists():
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0.5)
            return "lib/x.pyc was removed"
        return ""

    monkeypatch.setattr("kernels_bench_tools.run.environment.base.Prepared.change", interrupted)
    workspace.cell("op/impls/x.md", WRITE + f"open({str(workspace.root / 'ran')!r}, 'w').close()", MEASURING)
    with pytest.raises(KeyboardInterrupt):
        workspace.build()

    assert workspace.recorder.finished == {}
    monkeypatch.undo()
