"""Candidates for problems: each problem is an operator with one workload, whose reference was timed beside the candidate."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import numpy as np

from kernels_bench_tools.records.problem import REFERENCE
from kernels_bench_tools.records.record import Environment, Record, Status
from kernels_bench_tools.results.rows import Comparison, compare_records

FASTER_THAN = (0.0, 1.0, 2.0)
"""The p of each ``fast_p`` that is shown; p = 0 is the share of correct ones."""


class ProblemRow(NamedTuple):
    problem: str
    candidate: str
    result: Comparison


class Score(msgspec.Struct, kw_only=True):
    candidate: str
    problems: int
    correct: int
    timed: int
    """Correct ones with a speed-up: none has one if its time or that of the reference was disturbed."""
    fast: dict[str, float]
    """``fast_p``: the share of all problems that are correct with a speed-up above p; those without one do not count."""


def problem_row(problem: str, candidate: str, records: Sequence[Record]) -> ProblemRow:
    """Return how a candidate compares with the reference; its own failure if the reference has none."""
    theirs = [record for record in records if record.impl == REFERENCE]
    ours = [record for record in records if record.impl != REFERENCE]
    return ProblemRow(problem, candidate, compare_records(ours or theirs, theirs)[0])


def scores(rows: Iterable[ProblemRow]) -> list[Score]:
    by_candidate: dict[str, list[Comparison]] = {}
    for row in rows:
        by_candidate.setdefault(row.candidate, []).append(row.result)
    return [_score(candidate, results) for candidate, results in by_candidate.items()]


def _score(candidate: str, results: Sequence[Comparison]) -> Score:
    correct = [result for result in results if result.status.passed]
    speedups = [
        result.speedup for result in correct if result.status is Status.OK and result.speedup is not None
    ]
    fast = {f"fast_{p:g}": sum(value > p for value in speedups) / len(results) for p in FASTER_THAN if p}
    return Score(
        candidate=candidate,
        problems=len(results),
        correct=len(correct),
        timed=len(speedups),
        fast={"fast_0": len(correct) / len(results), **fast},
    )


def hf_payload(records: Mapping[str, Sequence[Record]], script: str) -> dict[str, Any]:
    """Return what ``kernels benchmark`` writes, from the records of each workload; the reference's time is one field more."""
    every = [record for found in records.values() for record in found]
    results = []
    for workload, found in sorted(records.items()):
        ours, theirs = (
            [one for one in found if (one.impl == REFERENCE) is of_reference and one.lat_ms]
            for of_reference in (False, True)
        )
        if not ours:
            continue
        timing = _timing(ours)
        if theirs:
            timing["ref_mean_ms"] = _timing(theirs)["mean_ms"]
        verified = all(record.outcome.passed for record in ours)
        results.append({"workload": workload, "timingResults": timing, "verified": verified})
    environment = next((record.env for record in every if record.env.torch), Environment())
    commits = [kernel.commit for record in every for kernel in record.provenance.hub if kernel.commit]
    return {
        "results": results,
        "machineInfo": {
            "gpu": environment.gpu or "N/A",
            "backend": f"CUDA {environment.cuda}" if environment.gpu else "CPU",
            "pytorchVersion": environment.torch,
            "os": environment.plat,
            "cpu": environment.cpu,
        },
        "kernelCommitSha": next(iter(commits), "local"),
        "benchmarkScriptPath": f"benchmarks/{script}",
    }


def _timing(records: Sequence[Record]) -> dict[str, float]:
    times = np.array([ms for record in records if record.lat_ms for ms in record.lat_ms.raw_times])
    low, high = np.percentile(times, [25, 75])
    outside = (times < low - 1.5 * (high - low)) | (times > high + 1.5 * (high - low))
    values = {
        "mean_ms": times.mean(),
        "std_ms": times.std(),
        "min_ms": times.min(),
        "max_ms": times.max(),
        "q1_ms": low,
        "q3_ms": high,
        "iqr_ms": high - low,
    }
    rounded = {name: float(f"{value:.5g}") for name, value in values.items()}
    return {**rounded, "outliers": int(outside.sum()), "iterations": len(times)}
