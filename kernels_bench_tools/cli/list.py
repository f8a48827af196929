"""``kbt list``: operators and implementations, what the committed records cover, and the kernels of models."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import msgspec

from kernels_bench_tools.cli.options import Json, Paths
from kernels_bench_tools.cli.output import (
    count_processes,
    note,
    note_problem,
    note_unused,
    print_heading,
    print_json,
    print_wrapped,
    terminal_width,
)
from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.notebooks.document import Notebook, survey_notebook
from kernels_bench_tools.notebooks.project import find_project_of, operators
from kernels_bench_tools.records.code import has_other_code
from kernels_bench_tools.records.committed import record_files
from kernels_bench_tools.records.model import HUB_DEVICES, ModelTasks, read_model_tasks
from kernels_bench_tools.records.record import Record, Status
from kernels_bench_tools.records.request import FORWARD
from kernels_bench_tools.results.views import view_of
from kernels_bench_tools.text.names import title_from_name
from kernels_bench_tools.text.tables import grouped, table
from kernels_bench_tools.text.words import abbreviated, did_you_mean, plural

NOT_MEASURED, STALE = "not measured", "stale"


def list_notebooks(
    paths: Paths = None,
    records: bool = False,
    device: str = "",
    model: str = "",
    phase: str = "",
    json: Json = False,
) -> None:
    """List operators, implementations and committed records, or the kernels of a model.

    Args:
        records: List committed records by device, mode and workload set, with those that are stale (the code changed since)
            or not measured.
        device (SLUG): With --records: only this device.
        model (NAME): List the kernels that a model such as llama-3.1-8b calls, with shapes and counts.
        phase (NAME): With --model: only this forward pass, such as decode-1, with its blocks and layers.
    """
    note_unused({"--phase": bool(phase) and not model}, "without --model")
    if model:
        note_unused({"PATH": bool(paths), "--records": records, "--device": bool(device)}, "with --model")
        _print_model(read_model_tasks(model), phase, json)
        return
    project = find_project_of(paths or ())
    note_unused({"--device": device and not records}, "without --records")
    wanted = set(project.find_notebooks(paths or []))
    chosen = [path for known in operators(project).values() for path in known if path in wanted]
    notebooks = [survey_notebook(project, path) for path in chosen]
    for problem in (problem for notebook in notebooks for problem in notebook.problems):
        note(str(problem))
    if records:
        rows = list(find_coverage(project.root, notebooks))
        known = sorted({row["device"] for row in rows})
        if device and device not in known:
            hint = did_you_mean(device, known, f"Devices with records: {', '.join(known)}" if known else "")
            raise ProjectError(f"--device {device}", "has no records here", "The slug of a device", hint)
        _print_coverage([row for row in rows if device in {"", row["device"]}], json)
        return
    listed = [
        {
            "operator": each.operator,
            "implementation": each.implementation,
            "title": each.front.title or title_from_name(each.implementation),
            "family": each.front.family,
            "baseline": each.front.baseline,
            "requires": each.front.requires,
            "recorded": [
                path.parent.name for path in record_files(each.path.parents[1], each.implementation)
            ],
            "notebook": each.name,
        }
        for each in notebooks
    ]
    others = sorted(project.relative(path) for path in wanted.difference(chosen))
    if json:
        print_json({"implementations": listed, "notebooks": others})
    else:
        _print_list(listed, others)


def find_coverage(root: Path, notebooks: Iterable[Notebook]) -> Iterator[dict[str, Any]]:
    """Yield the committed records of each implementation on a device, in a mode, for a workload set.

    What is recorded of another implementation of the operator only is yielded with no rows. Records that apply to all
    workloads have no set; ``stale`` is whether the code changed since, ``others`` how many workloads cannot be ranked.
    """
    from kernels_bench_tools.results.counted import counted
    from kernels_bench_tools.results.processes import by_workload, merge  # and numpy

    def selection(record: Record) -> tuple[str, str, str]:
        """Return what is measured together: a device's slug, a mode and a workload set."""
        view = view_of(record.wl)
        return record.device.slug if record.device else "", view.mode or FORWARD, view.set

    for operator, own in grouped((notebook.operator, notebook) for notebook in notebooks).items():
        committed = counted(root, operator)
        for problem in committed.problems:
            note_problem(problem)
        recorded = grouped(
            ((source.implementation, selection(record)), record)
            for source in committed.sources
            for record in source.records
        )
        selections = sorted({selected for _, selected in recorded})
        for notebook in own:
            name = notebook.implementation
            complete = {device for stem, (device, _, each) in recorded if stem == name and not each}
            for device, mode, workload_set in selections:
                records = recorded.get((name, (device, mode, workload_set)), [])
                if not records and (not workload_set or device in complete):
                    continue
                processes, whole = by_workload(records)
                merged = [merge(each) for each in processes.values()] or ([whole] if whole else [])
                origins = {
                    each.provenance.code_digest: each.provenance for each in records if each.outcome.ran
                }
                yield {
                    "operator": operator,
                    "implementation": name,
                    "device": device,
                    "mode": mode,
                    "set": workload_set,
                    "rows": len(records),
                    "workloads": len(processes),
                    "measured": sum(entry.outcome.passed for entry in merged),
                    "processes": count_processes(records),
                    "date": min((each.ts for each in records), default="")[:10],
                    "stale": any(has_other_code(origin, notebook.digests) for origin in origins.values()),
                    "others": Counter(entry.outcome for entry in merged if entry.outcome is not Status.OK),
                }


def _print_coverage(rows: list[dict[str, Any]], json: bool) -> None:
    if json:
        print_json({"records": rows})
        return
    for device, covered in sorted(grouped((row["device"], row) for row in rows).items()):
        print_heading(device)
        lines = [["implementation", "set", "measured", "processes", "since", "remark"]]
        operator = ""
        for row in covered:
            if row["operator"] != operator:
                operator = row["operator"]
                lines.append([operator, *[""] * (len(lines[0]) - 1)])
            remarks = [] if row["rows"] else [NOT_MEASURED]
            remarks += [STALE] * row["stale"]
            remarks += [
                f"{count} " * (row["workloads"] > 0) + status.label for status, count in row["others"].items()
            ]
            lines.append(
                [
                    f"  {row['implementation']}",
                    (row["set"] or "all") + ("" if row["mode"] == FORWARD else f" {row['mode']}"),
                    f"{row['measured']} of {row['workloads']}" if row["workloads"] else "-",
                    str(row["processes"] or "-"),
                    row["date"] or "-",
                    ", ".join(remarks),
                ]
            )
        _print_table(lines, whole={0, 1})
        print()
    stale, missing = sum(row["stale"] for row in rows), sum(not row["rows"] for row in rows)
    print(f"{plural(len(rows), 'workload set')}, {stale} {STALE}, {missing} {NOT_MEASURED}")


def _print_model(tasks: ModelTasks, phase: str, json: bool) -> None:
    if phase:
        tasks.phases = [tasks.phase(phase)]
    if json:
        print_json(msgspec.to_builtins(tasks))
        return
    for shown in tasks.phases:
        size = f"{plural(shown.sequences, 'sequence')}, {plural(shown.tokens, 'new token')} each"
        print_heading(f"{shown.name}: {size}, context {shown.context}")
        lines = [["level", "module and where", "calls", "inputs"]]
        for task in shown.tasks:
            if phase or task.level == 1:
                where = [path.replace("model.layers.*.", "*.") or "the model" for path in task.paths]
                name = "\n  ".join([task.module, *where])
                lines.append([str(task.level), name, str(task.calls), "\n".join(task.inputs)])
        _print_table(lines, right={0, 2})
        print()
    if tasks.kernels and not phase:
        print_heading("Hub kernels that use_kernels=True loads, by device")
        lines = [["layer or function", *HUB_DEVICES]]
        for name, devices in tasks.kernels.items():
            lines.append([name, *(", ".join(devices.get(device, ["none"])) for device in HUB_DEVICES)])
        _print_table(lines, whole={0})
        print()
    print(f"{tasks.model}, {tasks.parameters:,} parameters; configuration: {tasks.source}")


def _print_list(listed: list[dict[str, Any]], others: list[str]) -> None:
    """Print a line for each implementation, whose name is whole whatever the width, below its operator."""
    by_operator = grouped((entry["operator"], entry) for entry in listed)
    for operator, entries in by_operator.items():
        print_heading(operator)
        lines = []
        for entry in entries:
            facts = ["baseline"] * entry["baseline"] + [entry["family"]] * bool(entry["family"])
            facts += [f"needs {' or '.join(entry['requires'])}"] * bool(entry["requires"])
            facts += [f"records of {abbreviated(entry['recorded'])}"] * bool(entry["recorded"])
            lines.append([f"  {entry['implementation']}", "; ".join(facts)])
        _print_table(lines, whole={0})
    print(f"\n{plural(len(by_operator), 'operator')}, {plural(len(listed), 'implementation')}")
    if others:
        print_wrapped(f"other notebooks: {', '.join(others)}")


def _print_table(
    lines: Sequence[Sequence[str]], right: Collection[int] = (), whole: Collection[int] = ()
) -> None:
    """Print a table, in which a terminal's lines are wrapped, but not those of a pipe, so that names are whole there."""
    print(table(lines, right, terminal_width() if sys.stdout.isatty() else 0, whole))
