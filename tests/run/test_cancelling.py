"""A cell that is outdated while it runs is ended, and stays as it was last."""

import time

LATENCY = {"p10": 1.0, "p50": 1.0, "p90": 1.0, "mean": 1.0, "iqr": 0.0, "reps": 1}
RECORD = {"ts": "t", "run": "r", "impl": "x", "wl": {"name": "w"}, "status": "ok", "ok": True, "schema": 1}
WRITE = f"import json; open('op.jsonl', 'w').write(json.dumps({RECORD | {'lat_ms': LATENCY}!r}) + chr(10))"
MEASURING = "id=a outputs=op.jsonl"
X, Y = "op/impls/x.md", "op/impls/y.md"


def begun(workspace, name):
    """Return a test of whether the cell of a notebook has begun, which such a cell says by a file."""
    return lambda asked: asked.notebook == name and (workspace.root / f".{name.replace('/', '_')}").exists()


def hang(workspace, name, before=""):
    mark = workspace.root / f".{name.replace('/', '_')}"
    return f"{before}\nimport time\nopen({str(mark)!r}, 'w')\ntime.sleep(60)"


def test_an_outdated_cell_keeps_its_last_result_with_all_that_need_it_and_the_rest_goes_on(workspace):
    workspace.cell("a.md", "print('old')")
    workspace.cell("b.md", "print('old')", "id=a needs=./a.md:a")
    workspace.build()
    workspace.cell("a.md", hang(workspace, "a.md"))
    workspace.cell("c.md", "print('fine')")
    began = time.monotonic()
    told = workspace.build(outdated=begun(workspace, "a.md"))

    assert time.monotonic() - began < 30
    assert sorted(told.started) == ["a.md:a", "c.md:a"]
    assert [workspace.text(workspace.result(name).stdout) for name in ("a.md", "b.md", "c.md")] == [
        "old\n",
        "old\n",
        "fine\n",
    ]
    assert told.notes == ["a.md:a: cancelled, since it is outdated"]
    assert not list((workspace.root / ".kbt/cache").glob(".draft-*"))


def test_an_outdated_measurement_leaves_the_others_of_its_session_theirs(workspace):
    workspace.cell(X, hang(workspace, X, WRITE), MEASURING)
    workspace.cell(Y, WRITE, MEASURING)
    workspace.build(processes=2, outdated=begun(workspace, X))

    assert workspace.result(X).status is None
    assert workspace.result(Y).status == "ok"
    assert len(workspace.records(Y)) == 2
