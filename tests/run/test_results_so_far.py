"""What a long build publishes while it runs, and when."""

import json
import os
import signal
import time
from dataclasses import replace

import pytest
from workspace import MEASURING, RECORD, WRITE_MEASURED

from kernels_bench_tools.records.device import current_device
from kernels_bench_tools.run import schedule
from kernels_bench_tools.run.build import build
from kernels_bench_tools.run.environment.base import find_environment
from kernels_bench_tools.run.executor import LocalExecutor
from kernels_bench_tools.run.options import BuildOptions

SUMMARIZE = """
import json, os
needs = json.load(open(os.environ["KBT_NEEDS"]))
seen = [os.path.basename(one["notebook"]) + ":" + one["status"] for one in needs["cells"]]
seen += [os.path.basename(path) for path in needs["files"]]
open("seen.txt", "w").write(" ".join(seen))
"""
OPTIONS = BuildOptions(environment="current", processes=1, jobs=1)


@pytest.fixture
def operators(workspace, monkeypatch):
    """Two operators with committed records, of which one has an implementation that cannot run here."""
    monkeypatch.setattr(schedule, "LONG_SECONDS", 0)
    monkeypatch.setattr(schedule, "SHOW_SECONDS", 0)
    monkeypatch.setattr(schedule, "SHOW_SHARE", 1e9)
    for operator, name in ("a", "x"), ("b", "y"):
        workspace.cell(f"{operator}/impls/{name}.md", WRITE_MEASURED, MEASURING)
        workspace.write(f"{operator}/results/records/h200/{name}.jsonl", json.dumps(RECORD) + "\n")
        needs = "needs=../impls/*.md:a,./records/*/*.jsonl outputs=seen.txt"
        workspace.cell(f"{operator}/results/c.md", SUMMARIZE, f"id=combine {needs}")
    workspace.cell("a/impls/other.md", WRITE_MEASURED, MEASURING, "requires: [mps]")
    return workspace


def build_shown(workspace, shown, show=lambda: None, options=OPTIONS):
    """Build, and add to ``shown`` what was published while it ran: what was summarized, and how much was measured."""

    def record(run):
        workspace.run = run
        seen = {}
        for operator in "ab":
            artifacts = workspace.result(f"{operator}/results/c.md", "combine").artifacts
            seen[operator] = workspace.text(artifacts["seen.txt"]) if artifacts else ""
        shown.append((seen, run.measured))
        show()

    workspace.run = build(workspace.project, [], options, workspace.recorder, record)
    return shown


def test_committed_records_are_summarized_before_anything_is_measured_then_each_operator(operators):
    first, second = build_shown(operators, [])

    assert first == ({"a": "other.md:unsupported x.md:absent x.jsonl", "b": "y.md:absent y.jsonl"}, (0, 2))
    assert second == ({"a": "other.md:unsupported x.md:ok x.jsonl", "b": "y.md:absent y.jsonl"}, (1, 2))


def test_nothing_is_summarized_twice_or_shown_of_a_short_build(operators, monkeypatch):
    build_shown(operators, [])
    operators.cell("a/impls/x.md", f"{WRITE_MEASURED}changed = 1", MEASURING)

    first = build_shown(operators, [])[0]

    assert first == ({"a": "other.md:unsupported x.md:ok x.jsonl", "b": "y.md:ok y.jsonl"}, (2, 2))
    monkeypatch.setattr(schedule, "LONG_SECONDS", 1000)
    operators.cell("a/impls/x.md", f"{WRITE_MEASURED}changed = 2", MEASURING)
    assert build_shown(operators, []) == []


def test_without_measuring_cells_see_committed_records_and_what_was_measured_before(operators):
    assert operators.build(measure=False).started == ["a/results/c.md:combine", "b/results/c.md:combine"]
    assert operators.run.measured == (0, 2)
    assert operators.run.selected == [
        "a/impls/other.md:a",
        "a/results/c.md:combine",
        "b/results/c.md:combine",
    ]
    assert operators.build(measure=False).started == []
    operators.build("b")
    operators.cell("b/impls/y.md", f"{WRITE_MEASURED}changed = 1", MEASURING)
    operators.build(measure=False)

    assert operators.text(operators.result("a/results/c.md", "combine").artifacts["seen.txt"]).startswith(
        "other.md:unsupported x.md:absent"
    )
    seen = operators.text(operators.result("b/results/c.md", "combine").artifacts["seen.txt"])
    assert seen == "y.md:ok y.jsonl"
    assert operators.recorder.started == []


@pytest.mark.parametrize("sessions", [0, 1])
def test_nothing_is_shown_while_a_processor_is_measured(operators, sessions):
    now = []

    class Watched(LocalExecutor):
        def measure(self, session):
            now.append("measured")
            super().measure(session)
            time.sleep(0.3)
            now.append("was measured")

    def make(project, environment, progress):
        executor = Watched(project, current_device(), find_environment(environment), 2, progress)
        executor.sessions = sessions
        return executor

    def show():
        now.append("shown")
        time.sleep(0.3)
        now.append("was shown")

    shown = build_shown(operators, [], show, replace(OPTIONS, executor=make))

    assert shown
    assert all(second == f"was {first}" for first, second in zip(now[::2], now[1::2], strict=True)), now


def test_an_interrupted_build_ends_when_what_it_publishes_is_complete(operators):
    shown = []

    def stop():
        time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.5)
        shown.append("complete")

    with pytest.raises(KeyboardInterrupt):
        build_shown(operators, shown, stop)

    assert shown[1:] == ["complete"]


def test_results_that_cannot_be_shown_before_the_end_are_measured_all_the_same(operators):
    def fail():
        raise ValueError("a template is broken")

    shown = build_shown(operators, [], fail)

    assert len(shown) == 2
    assert operators.result("b/results/c.md", "combine").artifacts
    note = "the report cannot be published yet: ValueError: a template is broken"
    assert operators.recorder.notes.count(note) == 2
