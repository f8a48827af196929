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


def test_an_implementation_is_listed_run_published_and_recorded_in_its_own_folder(models: Path) -> None:
    def kbt(*arguments: str) -> str:
        done = run_kbt(models, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    once = ("--env", "current", "--processes", "1")
    kbt("new", "implementation", f"{OPERATOR}/compiled")
    kbt("run", f"{OPERATOR}/compiled", *once)
    shutil.copytree(models / OPERATOR / "impls", models / "tiny-1.0/impls")
    listed = json.loads(kbt("list", "--json"))["implementations"]
    kbt("build", OPERATOR, "tiny-1.0", *once)
    recorded = kbt("record")

    assert [each["operator"] for each in listed] == [OPERATOR, OPERATOR, "softmax", "tiny-1.0", "tiny-1.0"]
    assert (models / "site" / OPERATOR / "index.html").is_file()
    assert (models / "site" / OPERATOR / "impls/compiled.html").is_file()
    for folder in (OPERATOR, "tiny-1.0"):
        path = f"{folder}/results/records/{DEVICE['slug']}/eager.jsonl"
        assert f"{path}: 0 of 1 workloads measured\n" in recorded
        assert (models / path).is_file()
