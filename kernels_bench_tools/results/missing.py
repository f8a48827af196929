"""Summaries of operators without one: their combine cells have not run yet, failed, or draw figures only."""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256
from pathlib import Path

import msgspec

from kernels_bench_tools.file_io import find_struct, write_struct
from kernels_bench_tools.records.build import BuildRun, NotebookRun
from kernels_bench_tools.records.committed import record_files
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.notebook import is_implementation, operator_of
from kernels_bench_tools.records.summary import Summary
from kernels_bench_tools.results.counted import counted
from kernels_bench_tools.results.summary import summarize
from kernels_bench_tools.text.names import title_from_name
from kernels_bench_tools.text.tables import grouped


class _Stored(msgspec.Struct):
    """Summaries by operator, each with the key of what it was made from."""

    keys: dict[str, str] = {}
    summaries: dict[str, Summary] = {}


def missing_summaries(
    root: Path, build: BuildRun, stored: Path | None = None, program: str = ""
) -> dict[str, Summary]:
    """Return a summary, by folder, of each operator of a project without one whose cells or committed files have records.

    Those whose files have not changed are read from the file ``stored``, which is written; ``program`` is the key of the
    code that makes them.
    """
    before = (find_struct(stored, _Stored) if stored else None) or _Stored()
    after = _Stored()
    by_operator = grouped((operator_of(notebook.path), notebook) for notebook in build.notebooks)
    by_operator.pop("", None)
    for operator, notebooks in by_operator.items():
        if not any("summary.json" in cell.artifacts for notebook in notebooks for cell in notebook.cells):
            measuring = [notebook for notebook in notebooks if is_implementation(notebook.path)]
            key = f"{program} {_key(root, operator, build.device, measuring)}"
            known = before.summaries.get(operator) if before.keys.get(operator) == key else None
            after.keys[operator] = key
            after.summaries[operator] = known or _summary(root, operator, build)
    if stored and after != before:
        write_struct(stored, after, sync=False, own=True)
    return {name: summary for name, summary in after.summaries.items() if summary.devices or summary.drawn}


def _key(root: Path, operator: str, device: Device, notebooks: Sequence[NotebookRun]) -> str:
    """Return a digest of what a summary is made from: records by size and time, since there may be many."""

    def state(path: Path) -> tuple[str, int, int]:
        now = path.lstat()  # a link may lead nowhere, and is refused where it is read
        return str(path.relative_to(root)), now.st_size, now.st_mtime_ns

    cells = [
        (
            *(notebook.path, notebook.front, cell.id, cell.status, cell.reason, cell.workloads),
            *(state(root / path) for name, path in cell.artifacts.items() if name.endswith(".jsonl")),
        )
        for notebook in notebooks
        for cell in notebook.cells
    ]
    made = [device, cells, [*map(state, record_files(root / operator))]]
    return sha256(msgspec.json.encode(made)).hexdigest()


def _summary(root: Path, operator: str, build: BuildRun) -> Summary:
    title = title_from_name(operator.rpartition("/")[2])
    return summarize(operator, title, counted(root, operator, build).sources)
