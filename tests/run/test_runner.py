"""The status, logs and outputs of a cell."""

import contextlib
import os
from pathlib import Path

import msgspec
import pytest
from projects import survivors, wait_until
from workspace import MEASURING, WRITE

from kernels_bench_tools.records.codec import read_records
from kernels_bench_tools.records.record import Environment, Failure, Record, Status
from kernels_bench_tools.records.request import CONTEXT_VARIABLE

ROOT_HOME = "/" + "root"


def measure(workspace, code, attributes=MEASURING, **options):
    workspace.cell("op/impls/x.md", code, attributes, front=options.pop("front", "family: f"))
    workspace.build(**options)
    return workspace.result("op/impls/x.md")


@pytest.mark.parametrize(("then", "status"), [("", "ok"), ("time.sleep(60)", "timeout")])
def test_processes_that_a_cell_leaves_behind_are_killed(workspace, then, status):
    seconds = f"4{os.getpid()}.{len(then)}"
    code = f"""import subprocess, time
subprocess.Popen(['sleep', '{seconds}'])
subprocess.Popen(['sleep', '{seconds}'], start_new_session=True)
subprocess.Popen(['env', '-i', 'sleep', '{seconds}'], process_group=0)
subprocess.Popen(['sh', '-c', 'trap "" TERM; (setsid sleep {seconds} &); sleep {seconds}'])
print('begun')
{then}"""
    run = workspace.run_cell(code, "id=a timeout=2")

    assert (run.status, workspace.text(run.stdout)) == (status, "begun\n")
    assert wait_until(lambda: not survivors(seconds), 1)


CHAIN = """
import os, time
end = time.time() + 60
if os.fork() == 0:
    while time.time() < end:
        if os.fork():
            os._exit(0)
        os.setsid()
time.sleep(0.2)
"""


def test_no_chain_of_processes_in_new_sessions_outlives_its_cell(workspace):
    run = workspace.run_cell(f"{CHAIN}\nopen('context', 'w').write(os.environ[{CONTEXT_VARIABLE!r}])")

    context, left = workspace.text(run.artifacts["context"]).encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            left += [path] if context in path.read_bytes() else []
    assert (run.status, left) == ("ok", [])


def test_logs_contain_no_local_paths(workspace):
    run = workspace.run_cell("import os\nprint(os.getcwd(), os.environ['HOME'], __file__)\nraise ValueError")

    assert workspace.text(run.stdout) == ". ~ .kbt/cells/n__a.py\n"
    assert 'File ".kbt/cells/n__a.py", line 3' in workspace.text(run.stderr)


def test_logs_and_records_contain_no_home_folders(workspace, monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "caches"))
    paths = [
        "/home/alice/.cache/uv/a.py",
        f"{ROOT_HOME}/b.py",
        "/Users/bob/c.py",
        f"{tmp_path}/caches/uv/d.py",
    ]
    failure = Failure(type="E", msg=" ".join(paths))
    record = Record(ts="2026-01-01", run="r", impl="n", env=Environment(), err=failure, status=Status.ERROR)
    line = msgspec.json.encode(record).decode()
    code = f"open('op.jsonl', 'w').write({line!r} + chr(10))\nprint(*{paths!r})"
    workspace.write("n.md", f"```python id=a outputs=op.jsonl\n{code}\n```\n")
    workspace.build()

    run = workspace.result("n.md")

    for file in (run.stdout, run.artifacts["op.jsonl"]):
        assert "~/.cache/uv/a.py ~/b.py ~/c.py ~/.cache/uv/d.py" in workspace.text(file)


def test_a_missing_output_makes_the_cell_invalid(workspace):
    run = workspace.run_cell("open('a.svg', 'w')", "id=a outputs=a.svg,b.svg")

    assert (run.status, run.reason) == ("invalid", "did not write b.svg")
    assert list(run.artifacts) == ["a.svg"]


def test_records_of_a_failed_cell_are_kept_and_the_failure_is_added(workspace):
    write = "open('op.jsonl', 'a').write"
    invalid = ("invalid", "Invalid", "op.jsonl:2 is not a record")
    ways = [
        ("raise ValueError('no')", "error", "ValueError", "ValueError: no"),
        ("import os; os.kill(os.getpid(), 11)", "crashed", "SIGSEGV", "killed by SIGSEGV"),
        ("import time; time.sleep(60)", "timeout", "Timeout", "timed out after 1 s"),
        (f"{write}('garbage\\n')", *invalid),
        (f"{write}('{{\"ts\": 1\\n')", *invalid),
        (f"{write}(10 * chr(0))", *invalid),
        # What it printed last is a row, and no reason.
        ("print('w  1 ms  ok'); import sys; sys.exit(3)", "error", "exit code 3", "exit code 3"),
    ]
    for number, (code, *_) in enumerate(ways):
        timeout = 1 if "sleep" in code else 60
        workspace.cell(f"op/impls/x{number}.md", WRITE + code, f"{MEASURING} timeout={timeout}", "family: f")
    workspace.build()

    for number, (_, status, kind, reason) in enumerate(ways):
        name = f"op/impls/x{number}.md"
        run = workspace.result(name)
        records = read_records(workspace.root / run.artifacts["op.jsonl"])
        assert run.status == status, run.reason
        assert run.reason.startswith(reason)
        assert [record.workload for record in records] == ["w", ""]
        last = records[-1]
        assert (last.status, last.err.type, last.op, last.impl) == (status, kind, "op", f"x{number}")
        origin = last.provenance
        assert (last.run, last.tags, origin.notebook, origin.cell) == ("r", {"family": "f"}, name, "a")
        assert last.device.kind == "cpu"


def test_a_measuring_cell_without_records_gets_a_record_of_the_failure(workspace):
    ways = [
        ("1", MEASURING, "wrote no op.jsonl"),
        ("open('op.jsonl', 'w')", MEASURING, "op.jsonl contains no records"),
        ("1", "id=a outputs=*.jsonl", "wrote no *.jsonl"),
        (
            "open('o.jsonl', 'w')",
            MEASURING,
            "wrote no op.jsonl; it wrote o.jsonl, which outputs= does not name",
        ),
        ("open('op.jsonl', 'wb').write(b'\\xff\\n')", MEASURING, "op.jsonl:1 is not a record"),
    ]
    for number, (code, attributes, _) in enumerate(ways):
        workspace.cell(f"op/impls/x{number}.md", code, attributes)
    workspace.build()

    for number, (*_, reason) in enumerate(ways):
        run = workspace.result(f"op/impls/x{number}.md")
        (record,) = read_records(workspace.root / run.artifacts["op.jsonl"])
        assert run.status == record.status == "invalid"
        assert run.reason.startswith(reason)


def test_a_cell_for_a_missing_device_is_unsupported_and_not_started(workspace, monkeypatch):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    run = measure(workspace, WRITE, front="requires: [cuda]")

    (record,) = read_records(workspace.root / run.artifacts["op.jsonl"])

    assert run.status == record.status == "unsupported"
    assert run.reason.startswith("needs a CUDA device; this machine has ")
    assert run.exit_code is None
    assert workspace.recorder.started == workspace.recorder.environments == []


def test_a_cell_gets_its_context_and_needs(workspace):
    code = """
from kernels_bench_tools.records.request import CellContext, Needs
import json
context = CellContext.load()
print([context.operator, context.implementation, context.request.workloads, context.family])
print([context.origin.notebook, context.origin.cell, context.origin.environment])
print(Needs.load().device.kind)
"""
    run = measure(workspace, code + WRITE, workloads="smoke")

    lines = workspace.text(run.stdout).splitlines()

    assert lines == ["['op', 'x', 'smoke', 'f']", "['op/impls/x.md', 'a', 'current']", "cpu"]
