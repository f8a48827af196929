"""The id of an operator may have folders, such as ``models/llama-3.1-8b``."""

import json
import shutil
from pathlib import Path

import msgspec
import pytest
from projects import run_kbt

from kernels_bench_tools.records.device import current_device

OPERATOR = "models/tiny-1.0"
RECORD = {"ts": "t", "run": "r", "impl": "eager", "wl": {"name": "w"}, "status": "unsupported", "schema": 1}
DEVICE = msgspec.structs.asdict(current_device())


@pytest.fixture
def models(bare: Path) -> Path:
    """A project with an operator in ``models/tiny-1.0``, whose only cell writes a record."""
    folder = bare / OPERATOR
    (folder / "impls").mkdir(parents=True)
    line = json.dumps({**RECORD, "op": "tiny-1.0", "device": DEVICE})
    code = f"open('tiny.jsonl', 'w').write({line!r} + chr(10))"
    cell = f"```python id=benchmark outputs=tiny.jsonl\n{code}\n```\n"
    (folder / "impls" / "eager.md").write_text(f"---\ntitle: Eager\nbaseline: true\n---\n\n{cell}")
    (folder / "index.md").write_text("# Tiny\n")
    return bare


def test_list_shows_the_folders_in_the_id(models: Path) -> None:
    listed = json.loads(run_kbt(models, "list", "--json").stdout)["implementations"]

    assert [(one["operator"], one["implementation"]) for one in listed] == [
        (OPERATOR, "eager"),
        ("softmax", "plain"),
    ]


def test_a_new_implementation_is_run_recorded_and_published(models: Path) -> None:
    made = run_kbt(models, "new", "implementation", f"{OPERATOR}/compiled")
    run = run_kbt(models, "run", f"{OPERATOR}/compiled", "--env", "current", "--processes", "1")
    built = run_kbt(models, "build", OPERATOR, "--env", "current", "--processes", "1")
    recorded = run_kbt(models, "record")

    assert made.returncode == run.returncode == built.returncode == recorded.returncode == 0, (
        made.stderr + run.stderr + built.stderr + recorded.stderr
    )
    assert (models / OPERATOR / "impls" / "compiled.md").is_file()
    assert (models / "site" / OPERATOR / "index.html").is_file()
    assert (models / "site" / OPERATOR / "impls" / "compiled.html").is_file()
    assert (models / OPERATOR / "results" / "records" / DEVICE["slug"] / "eager.jsonl").is_file()


def test_records_go_to_the_folder_of_their_notebook(models: Path) -> None:
    shutil.copytree(models / OPERATOR, models / "tiny-1.0")
    run_kbt(models, "build", OPERATOR, "tiny-1.0", "--env", "current", "--processes", "1")
    recorded = run_kbt(models, "record")

    assert recorded.returncode == 0, recorded.stderr
    for folder in (OPERATOR, "tiny-1.0"):
        assert (
            f"{folder}/results/records/{DEVICE['slug']}/eager.jsonl: 0 of 1 workloads measured\n"
            in recorded.stdout
        )
