"""``kbt plan``, ``kbt clean`` and ``kbt upgrade`` as users run them."""

import json
from pathlib import Path

import pytest
from projects import commit_all, run_kbt

CURRENT = ("--env", "current")
CELL = "softmax/impls/plain.md:benchmark"
NEEDING = "---\ntitle: All\n---\n\n```python id=combine needs=../impls/*.md:benchmark\nprint('all')\n```\n"


@pytest.fixture
def small(bare: Path) -> Path:
    """A project of two notebooks, built and committed."""
    notebook = bare / "softmax" / "impls" / "plain.md"
    notebook.write_text(notebook.read_text().replace("outputs=softmax.jsonl", ""))
    (bare / "softmax" / "results").mkdir()
    (bare / "softmax" / "results" / "all.md").write_text(NEEDING)
    (bare / ".gitignore").write_text(".kbt/\nsite/\n")
    commit_all(bare)
    done = run_kbt(bare, "build", *CURRENT)
    assert done.returncode == 0, done.stderr
    return bare


def edit(project: Path) -> None:
    notebook = project / "softmax" / "impls" / "plain.md"
    notebook.write_text(notebook.read_text().replace("'hi'", "'hello'"))


def test_plan_lists_cells_that_would_run_with_the_reason(small: Path) -> None:
    assert run_kbt(small, "plan", *CURRENT).stdout == "2 unchanged\n"
    edit(small)
    told = run_kbt(small, "plan", *CURRENT).stdout.splitlines()
    data = json.loads(run_kbt(small, "plan", *CURRENT, "--json").stdout)

    assert told[2:] == ["1 would run, 1 may run"]
    assert data["counts"] == {"unchanged": 0, "run": 1, "may run": 1, "unsupported": 0, "broken": 0}
    changed = {"verdict": "run", "reason": "", "changed": ["code"], "upstream": []}
    assert data["cells"][0] == {"cell": CELL, **changed}


def test_plan_since_a_revision_is_a_job_matrix(small: Path) -> None:
    assert json.loads(run_kbt(small, "plan", "--since", "HEAD", "--json").stdout) == []
    edit(small)
    first, second = json.loads(run_kbt(small, "plan", "--since", "HEAD", "--json").stdout)

    assert first == {
        "notebook": "softmax/impls/plain.md",
        "operator": "softmax",
        "cells": ["benchmark"],
        "measures": False,
        "requires": [],
        "changed": {"benchmark": ["code"]},
    }
    assert second["notebook"] == "softmax/results/all.md"


def test_upgrade_changes_dates_unless_dry_run(bare: Path) -> None:
    header = (
        '# /// script\n# dependencies = []\n# [tool.uv]\n# exclude-newer = "2026-01-01T00:00:00Z"\n# ///\n'
    )
    notebook = bare / "softmax" / "impls" / "plain.md"
    notebook.write_text(f"```python id=a\n{header}```\n")
    line = "softmax/impls/plain.md:1: 2026-01-01T00:00:00Z -> 2026-02-03T00:00:00Z\n"

    assert run_kbt(bare, "upgrade", "--to", "2026-02-03", "--dry-run").stdout.startswith(line)
    assert header in notebook.read_text()
    assert run_kbt(bare, "upgrade", "softmax/plain", "--to", "2026-02-03").stdout.startswith(line)
    assert header.replace("2026-01-01", "2026-02-03") in notebook.read_text()
