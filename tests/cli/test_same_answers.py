"""The same question gets the same answer: pages, ``kbt choose``, ``list``, ``compare`` and ``record`` of one project."""

import json
import shutil
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from projects import commit_all, run_kbt

from kernels_bench_tools.cli.build import build_report
from kernels_bench_tools.notebooks.project import find_project
from kernels_bench_tools.records import codec
from kernels_bench_tools.records.device import cpu_device
from kernels_bench_tools.run.options import BuildOptions

CELL = """\
---
baseline: {baseline}
---

```python id=times
{times}
```

```python id=benchmark needs=times outputs=op.jsonl
from pathlib import Path

from msgspec.structs import replace
from times import MS

from kernels_bench_tools.records.codec import write_records
from kernels_bench_tools.records.device import cpu_device
from kernels_bench_tools.records.record import FirstCall, Latency, Record, Status
from kernels_bench_tools.records.request import CellContext

context = CellContext.load()
provenance = replace(context.provenance(), harness="")  # as of another harness, whose rows are ranked
records = [
    Record(
        ts=f"2026-11-2{{len(name)}}T00:00:00Z", run=context.implementation, impl=context.implementation, op="op",
        wl={{"name": name, "rows": len(name)}}, lat_ms=Latency(p50=ms, reps=20), status=Status.OK, ok=True, schema=1,
        device=cpu_device(), provenance=provenance, first_call=FirstCall(first_ms=1234.5),
    )
    for name, ms in MS.items()
]
write_records(Path("op.jsonl"), records)
```
"""
COMBINE = "```python id=combine needs=../impls/*.md:benchmark,./records/*/*.jsonl outputs=*\nfrom kernels_bench_tools import combine\n\ncombine()\n```\n"


def write(project: Path, name: str, **times: float) -> None:
    text = CELL.format(baseline=str(name == "base").lower(), times=f"MS = {times}")
    (project / f"op/impls/{name}.md").write_text(text)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A project whose committed records are of this machine, of two workloads, and no result of a build."""
    project = tmp_path_factory.mktemp("recorded")
    (project / "op/impls").mkdir(parents=True)
    (project / "pyproject.toml").write_text('[tool.kbt]\ntitle = "Answers"\n')
    write(project, "base", a=2.0, bb=2.0)
    write(project, "ours", a=1.0, bb=1.0)
    for command in (("build", "--env", "current"), ("record",)):
        done = run_kbt(project, *command)
        assert done.returncode == 0, done.stderr
    for folder in (".kbt", "site"):
        shutil.rmtree(project / folder)
    commit_all(project)
    return project


@pytest.fixture
def project(recorded: Path, tmp_path: Path) -> Path:
    return shutil.copytree(recorded, tmp_path / "project")


def build(project: Path, *options: str) -> dict[str, dict[str, float | None]]:
    """Build; return the times of this machine in the report, by implementation and workload."""
    done = run_kbt(project, "build", "--env", "current", *options)
    assert done.returncode in {0, 1}, done.stderr
    report = json.loads((project / "site/report.json").read_text())
    (view,) = (view for operator in report["operators"] for view in operator["devices"])
    assert view["device"]["slug"] == cpu_device().slug
    names = [workload["name"] for workload in view["workloads"]]
    return {
        row["implementation"]: {
            name: point["p50_ms"] for name, point in zip(names, row["points"], strict=True)
        }
        for row in view["rows"]
    }


def answer(project: Path, *command: str) -> Any:
    done = run_kbt(project, *command, "--json")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_committed_records_of_this_machine_are_published_without_measuring(project: Path) -> None:
    (project / "op/results/combined_results.md").write_text(COMBINE)
    assert build(project, "--no-measure") == {"ours": {"a": 1.0, "bb": 1.0}, "base": {"a": 2.0, "bb": 2.0}}
    page = (project / "site/op/impls/ours.html").read_text()
    assert "1,234" in page  # the first call, which only records have
    assert len((project / "site/op/results/records.jsonl").read_text().splitlines()) == 4
    # With its links: else it would be drawn again once an implementation is measured.
    assert "/impls/ours.html" in (project / "site/op/results/artifacts/combine/latency.svg").read_text()


def test_a_committed_file_is_decoded_once_in_a_build(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    decoded: Counter[str] = Counter()
    decode = codec.decode_records
    monkeypatch.setattr(
        codec,
        "decode_records",
        lambda data, where, *rest: decoded.update([where]) or decode(data, where, *rest),
    )
    options = BuildOptions(environment="current", measure=False)
    for _ in range(2):
        build_report(find_project(project), [], options)

    assert decoded == {f"op/results/records/{cpu_device().slug}/{name}.jsonl": 1 for name in ("base", "ours")}


def test_a_build_of_one_workload_changes_the_answers_about_it_only(project: Path) -> None:
    write(project, "ours", a=0.5)

    assert build(project) == {"ours": {"a": 0.5, "bb": 1.0}, "base": {"a": 2.0, "bb": 2.0}}
    choices = answer(project, "choose", "op", "--device", cpu_device().slug)["choices"]
    assert {one["workload"]: one["p50_ms"] for one in choices} == {"a": 0.5, "bb": 1.0}
    published = (project / "site/op/results/records.jsonl").read_text().splitlines()
    ours = {
        one["wl"]["name"]: one["lat_ms"]["p50"] for one in map(json.loads, published) if one["impl"] == "ours"
    }
    assert ours == {"a": 0.5, "bb": 1.0}
    run_kbt(project, "record")
    assert build(project, "--no-measure")["ours"] == {"a": 0.5, "bb": 1.0}


def test_a_row_that_crashes_now_shows_nothing_of_the_earlier_one(project: Path) -> None:
    notebook = project / "op/impls/ours.md"
    notebook.write_text(notebook.read_text().replace("from times", "import os; os.abort()\nfrom times"))

    assert build(project)["ours"] == {"a": None, "bb": None}
    assert "1,234" not in (project / "site/op/impls/ours.html").read_text()


def test_records_of_a_cell_that_imports_another_are_stale_for_all_or_for_none(project: Path) -> None:
    def stale() -> list[Any]:
        compared = [row for row in answer(project, "compare", "HEAD")["rows"] if row["change"] == "stale"]
        listed = [row for row in answer(project, "list", "--records")["records"] if row["stale"]]
        build(project, "--no-measure")
        page = (project / "site/op/impls/ours.html").read_text()
        return [bool(compared), bool(listed), "Stale" in page]

    notebook = project / "op/impls/ours.md"
    notebook.write_text(notebook.read_text() + "\nMore prose.\n")
    assert stale() == [False, False, False]
    write(project, "ours", a=1.0, bb=1.5)  # only the imported cell has changed
    assert stale() == [True, True, True]
