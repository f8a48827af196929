"""The table of ``kbt run``: an implementation beside the baseline, on each workload."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import FEWEST_PROCESSES, Verdict
from kernels_bench_tools.results.metrics import speedup_with_interval
from kernels_bench_tools.results.rows import Comparison
from kernels_bench_tools.text import MISSING, interval, milliseconds, plural, table

_VERDICT_WIDTH = len("1 process: no verdict")
"""Characters of a narrow column of verdicts."""


def comparison_table(rows: Sequence[Comparison], baseline: str, width: int) -> str:
    """Return a table with a line for each workload, with as many columns as ``width`` characters have room for."""
    most = max((row.processes for row in rows if row.p50_ms is not None), default=1)
    host = {"submit\nms": [row.host_submit_ms for row in rows], "e2e\nms": [row.e2e_ms for row in rows]}
    for more in (2, 1, 0):  # columns: without the baseline's times, then without intervals
        columns = {"workload": [row.workload or "every workload" for row in rows]}
        if more:
            columns["median ms\n[95 %]"] = [
                f"{milliseconds(row.p50_ms)} {interval(row.ci_low_ms, row.ci_high_ms, row.p50_ms)}".rstrip()
                for row in rows
            ]
        else:
            columns["median\nms"] = [milliseconds(row.p50_ms) for row in rows]
        if more == 2:
            title = textwrap.fill(f"{baseline or 'baseline'} ms", 12)
            columns[title] = [milliseconds(row.baseline_ms) for row in rows]
        if more:
            columns["speed-up\n[95 %]"] = [
                speedup_with_interval(row.speedup, row.speedup_low, row.speedup_high) for row in rows
            ]
        else:
            columns["speed-up"] = [speedup_with_interval(row.speedup, None, None) for row in rows]
        columns |= {title: [*map(milliseconds, times)] for title, times in host.items()}
        # The host's times are not measured on a CPU, and nothing where all failed.
        columns = {title: texts for title, texts in columns.items() if {*texts} != {MISSING}}
        lines = [[*columns], *map(list, zip(*columns.values(), strict=True))]
        if max(map(len, table(lines).splitlines())) + 2 + _VERDICT_WIDTH <= width:
            break
    verdicts = ["verdict", *(_verdict(row, most) for row in rows)]
    lines = [[*line, verdict] for line, verdict in zip(lines, verdicts, strict=True)]
    return table(lines, right=range(1, len(columns)), width=width)


def _verdict(row: Comparison, most: int) -> str:
    text = row.verdict.label if row.status is Status.OK else f"{row.status.label}: {row.reason}"
    if row.status is Status.OK and row.verdict is Verdict.FEW_PROCESSES:
        few = row.processes < FEWEST_PROCESSES
        text = f"{plural(row.processes, 'process', 'es') if few else 'baseline in too few processes'}: {text}"
    elif row.status is Status.OK and row.baseline_status not in {Status.OK, Status.ABSENT}:
        text = f"{text}; baseline: {row.baseline_status.label}"
    notes = [flag.label for flag in row.flags if flag.label not in text]
    if row.limitation:
        notes.append(row.limitation)
    if row.p50_ms is not None and row.processes < most:
        notes.append(f"{row.processes} of {most} processes")
    return f"{text} ({', '.join(notes)})" if notes else text
