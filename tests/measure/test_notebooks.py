import os
import subprocess
import sys
from pathlib import Path

import pytest
from implementations import ROOT, code_of
from projects import copy_project

from kernels_bench_tools.notebooks.header import path_sources, read_header, uv_settings
from kernels_bench_tools.records.codec import read_records

NAMES = sorted(path.stem for path in (ROOT / "layer_norm" / "impls").glob("*.md"))


@pytest.mark.parametrize("name", NAMES)
def test_every_cell_pins_its_environment(name: str) -> None:
    header = read_header(code_of("layer_norm", name))

    assert uv_settings(header)["exclude-newer"] == "2026-11-20T00:00:00Z"
    # Counted from the folder that holds the script, two levels below the notebook's.
    script_folder = ROOT / "layer_norm" / "impls" / ".kbt" / "cells"
    (path,) = path_sources(header).values()
    assert Path(os.path.normpath(script_folder / path)) == ROOT


@pytest.mark.network
def test_stock_uvnote_builds_the_baseline(tmp_path: Path) -> None:
    project = copy_project(tmp_path / "project")
    environment = dict(os.environ)
    if "PIP_FIND_LINKS" in environment:
        environment.setdefault("UV_FIND_LINKS", environment["PIP_FIND_LINKS"])
    # uvnote gives each cell an empty home folder, and with it an empty cache.
    cache = subprocess.run(["uv", "cache", "dir"], capture_output=True, text=True, check=True)
    environment.setdefault("UV_CACHE_DIR", cache.stdout.strip())

    process = subprocess.run(
        [str(Path(sys.executable).with_name("uvnote")), "build", "layer_norm/impls/torch_layer_norm.md"],
        cwd=project,
        env=environment,
        capture_output=True,
        text=True,
        timeout=280,
    )

    assert process.returncode == 0, process.stderr
    assert (project / "site" / "torch_layer_norm.html").exists()
    records = read_records(project / "site" / "artifacts" / "benchmark" / "layer_norm.jsonl")
    assert [record.impl for record in records] == ["torch_layer_norm"] * 3
    assert all(record.outcome.ran for record in records)
