"""What other harnesses say of results: scores of KernelBench, the payload of `kernels benchmark`, traces of flashinfer-bench."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from itertools import chain
from statistics import fmean, pstdev
from typing import Any

from kernels_bench_tools.records.problem import NOT_KNOWN, REFERENCE, ProblemRequest, Trace
from kernels_bench_tools.records.record import Environment, Record, Status
from kernels_bench_tools.records.summary import Verdict
from kernels_bench_tools.results.summary import ComparedPoint, compare_records
from kernels_bench_tools.stats import quantiles
from kernels_bench_tools.text.tables import grouped

FASTER_THAN = (0.0, 1.0, 2.0)
"""The p of each ``fast_p`` that is shown; p = 0 is the share of correct ones."""
_TRACE_STATUS = {
    Status.OK: "PASSED",
    Status.INCORRECT: "INCORRECT_NUMERICAL",
    Status.TIMEOUT: "TIMEOUT",
    Status.UNSUPPORTED: "COMPILE_ERROR",
}


def _sides(records: Iterable[Record]) -> tuple[list[Record], list[Record]]:
    """Return the records of the candidate, and those of the reference."""
    sides = grouped((record.impl == REFERENCE, record) for record in records)
    return sides.get(False, []), sides.get(True, [])


def compare_problem(records: Sequence[Record]) -> ComparedPoint:
    """Return how a candidate compares with the reference; its own failure if the reference has none."""
    ours, theirs = _sides(records)
    return compare_records(ours or theirs, theirs)[0]


def scores(results: Iterable[tuple[str, ComparedPoint]]) -> list[dict[str, Any]]:
    """Return of each candidate how many results are correct, and ``fast_p``, the share of all that are and above p.

    Correct ones whose time, or that of the reference, was disturbed have no speed-up: they are not ``timed``. ``faster`` is the
    share of all that are faster by verdict; None if no result has one.
    """
    by_candidate = []
    for candidate, points in grouped(results).items():
        correct = [point for point in points if point.status.passed]
        speedups = [it.speedup for it in correct if it.status is Status.OK and it.speedup is not None]
        fast = {f"fast_{p:g}": sum(value > p for value in speedups) / len(points) for p in FASTER_THAN if p}
        fast = {"fast_0": len(correct) / len(points), **fast}
        counts = {"problems": len(points), "correct": len(correct), "timed": len(speedups)}
        verdicts = [point.verdict for point in correct if point.speedup is not None]
        known = set(verdicts) - {Verdict.NONE, Verdict.FEW_PROCESSES}
        faster = verdicts.count(Verdict.FASTER) / len(points) if known else None
        by_candidate.append({"candidate": candidate, **counts, "fast": fast, "faster": faster})
    return by_candidate


def sampled(results: Iterable[tuple[str, str, ComparedPoint]]) -> list[dict[str, Any]]:
    """Return of each run, given with the problem of each sample: pass@k, and ``fast_p`` of the best sample of each problem.

    pass@k is the mean over problems of how likely one of k samples is correct: HumanEval's estimate, of n samples of which c are.
    """
    found = []
    for run, samples in grouped((run, (problem, point)) for run, problem, point in results).items():
        problems = list(grouped(samples).values())
        most = min(map(len, problems))
        share = {
            k: fmean(
                1 - math.comb(sum(not it.status.passed for it in one), k) / math.comb(len(one), k)
                for one in problems
            )
            for k in (1, 5, 10, 100, most)
            if k <= most
        }
        best = [
            (run, max(one, key=lambda it: (it.status.passed, it.status is Status.OK, it.speedup or 0.0)))
            for one in problems
        ]
        (score,) = scores(best)
        found.append({"run": run, "problems": len(problems), "pass": share, "best": score["fast"]})
    return found


def hf_payload(records: Mapping[str, Sequence[Record]], script: str) -> dict[str, Any]:
    """Return what ``kernels benchmark`` writes, from the records of each workload; the reference's time is one field more."""
    every = [*chain.from_iterable(records.values())]
    results = []
    for workload, of_workload in sorted(records.items()):
        ours, theirs = _sides(record for record in of_workload if record.lat_ms)
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
    times = [ms for record in records if record.lat_ms for ms in record.lat_ms.raw_times]
    low, high = quantiles(times, (0.25, 0.75))
    reach = 1.5 * (high - low)
    values = {"mean": fmean(times), "std": pstdev(times), "min": min(times), "max": max(times)}
    values |= {"q1": low, "q3": high, "iqr": high - low}
    rounded = {f"{name}_ms": float(f"{value:.5g}") for name, value in values.items()}
    outliers = sum(not low - reach <= time <= high + reach for time in times)
    return {**rounded, "outliers": outliers, "iterations": len(times)}


def trace_of(request: ProblemRequest, records: Sequence[Record]) -> Trace | None:
    """Return the result as flashinfer-bench writes it; None if it is correct without a speed-up, or the reference failed."""
    row, (ours, _) = compare_problem(records), _sides(records)
    untimed = row.status.passed and row.speedup is None
    if not request.workload or not ours or row.baseline_ms is None or untimed:
        return None
    last, status = ours[-1], _TRACE_STATUS.get(row.status, "RUNTIME_ERROR")
    errors = [record.absmax for record in ours if record.absmax is not None]
    if row.status is Status.INCORRECT and not errors:
        status = "INCORRECT_SHAPE"
    libraries = {"torch": last.env.torch, "triton": last.env.triton, "cuda": last.env.cuda}
    evaluation: dict[str, Any] = {
        "status": status,
        "environment": {
            "hardware": last.env.gpu or last.env.cpu or "CPU",
            "libs": {name: version for name, version in libraries.items() if version},
        },
        "timestamp": next((record.ts for record in reversed(records) if record.ts), ""),
        "log": f"{row.status.value}: {row.reason}" if row.reason else "",
    }
    if status in {"PASSED", "INCORRECT_NUMERICAL"}:
        absolute = max(errors, default=math.nan)
        evaluation["correctness"] = {
            "max_relative_error": NOT_KNOWN,
            "max_absolute_error": absolute if math.isfinite(absolute) else NOT_KNOWN,
            "extra": {
                name: last.corr[name] for name in ("error_over_allowed", "matched") if name in last.corr
            },
        }
    if status == "PASSED":
        times = {"latency_ms": row.p50_ms, "reference_latency_ms": row.baseline_ms}
        evaluation["performance"] = {**times, "speedup_factor": row.speedup}
    definition = request.name.rpartition("/")[0]
    return Trace(definition=definition, workload=request.workload, solution=last.impl, evaluation=evaluation)
