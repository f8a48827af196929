"""The id of an operator may have folders, such as ``models/llama-3.1-8b``."""

import json
import shutil
from pathlib import Path

from projects import run_kbt
from written_records import write_implementation

from kernels_bench_tools.records.device import current_device

OPERATOR = "models/tiny-1.0"


def test_an_implementation_is_listed_run_published_and_recorded_in_its_own_folder(bare: Path) -> None:
    def kbt(*arguments: str) -> str:
        done = run_kbt(bare, *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    once = ("--env", "current", "--processes", "1")
    write_implementation(bare, "eager", "baseline: true", OPERATOR)
    (bare / OPERATOR / "index.md").write_text("# Tiny\n")
    kbt("new", "implementation", f"{OPERATOR}/compiled")
    kbt("run", f"{OPERATOR}/compiled", *once)
    shutil.copytree(bare / OPERATOR / "impls", bare / "tiny-1.0/impls")
    listed = json.loads(kbt("list", "--json"))["implementations"]
    kbt("build", OPERATOR, "tiny-1.0", *once)
    recorded = kbt("record")

    assert [each["operator"] for each in listed] == [OPERATOR, OPERATOR, "softmax", "tiny-1.0", "tiny-1.0"]
    assert (bare / "site" / OPERATOR / "index.html").is_file()
    assert (bare / "site" / OPERATOR / "impls/compiled.html").is_file()
    for folder in (OPERATOR, "tiny-1.0"):
        path = f"{folder}/results/records/{current_device().slug}/eager.jsonl"
        assert f"{path}: 2 of 2 workloads measured" in recorded
        assert (bare / path).is_file()
