"""Processes that measured the same workload, merged into one record: its median, interval and worst outcome."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import inf, sqrt
from statistics import median

import msgspec

from kernels_bench_tools.estimate import Estimate
from kernels_bench_tools.records.merging import commonest, merge_fields
from kernels_bench_tools.records.outcome import one_line, reason_of
from kernels_bench_tools.records.record import Failure, Flag, Latency, Quantities, Record, Status, Timer
from kernels_bench_tools.stats import CONFIDENCE, HALF_TICK_MS, hierarchical_median, median_interval, widened
from kernels_bench_tools.text.tables import grouped

_TICKING = frozenset({Timer.CUPTI, Timer.EVENTS})


def by_workload(records: Iterable[Record]) -> tuple[dict[str, list[Record]], Record | None]:
    """Return each workload's latest record of each process, and the latest record without a workload.

    A failure without a workload is also a record of each workload that its process did not measure and others did. Of a
    workload with records of several runs, those returned have the number of the others.
    """
    by_name = grouped((record.workload, record) for record in records)
    failures = by_name.pop("", [])
    processes: dict[str, list[Record]] = {}
    for name, measured in by_name.items():
        latest = {record.process: record for record in sorted(measured, key=_time)}
        for failure in {failure.process: failure for failure in failures}.values():
            if failure.process not in latest and failure.ts >= measured[0].ts:
                latest[failure.process] = msgspec.structs.replace(failure, wl=measured[0].wl)
        earlier = run_count(measured) - 1
        processes[name] = [
            record
            if record.earlier_runs == earlier
            else msgspec.structs.replace(record, earlier_runs=earlier)
            for record in (latest[process] for process in sorted(latest))
        ]
    return processes, max(reversed(failures), key=_time, default=None)


def _time(record: Record) -> str:
    return record.ts


def run_count(records: Iterable[Record]) -> int:
    """Return how many runs measured a workload, given its records: as many as the process with the most has."""
    runs: dict[int, dict[str, int]] = {}
    for record in records:
        of_process = runs.setdefault(record.process, {})
        of_process[record.run] = max(1 + record.earlier_runs, of_process.get(record.run, 0))
    return max((sum(of_process.values()) for of_process in runs.values()), default=0)


def interval(latency: Latency) -> tuple[float, float] | None:
    """Return the interval of the median in ms: the recorded one, else one of the samples, else None."""
    if latency.ci_low is not None and latency.ci_high is not None:
        return latency.ci_low, latency.ci_high
    return median_interval(latency.raw_times)


def estimate(records: Sequence[Record]) -> Estimate | None:
    """Return the median in ms of all processes and its interval; None unless every process ran."""
    latencies = [record.lat_ms for record in records if record.lat_ms and record.lat_ms.p50 > 0]
    if not records or len(latencies) < len(records):
        return None
    if len(latencies) > 1:
        time = hierarchical_median([samples(latency) for latency in latencies])
    else:
        time = Estimate(latencies[0].p50, *(interval(latencies[0]) or (0.0, inf)))
    return widened(time, resolution(latencies) / time.value)


def resolution(latencies: Iterable[Latency]) -> float:
    """Return half a tick of the device's clock in ms: all samples of a short kernel may show the same tick."""
    return HALF_TICK_MS if any(latency.timer in _TICKING for latency in latencies) else 0.0


def samples(latency: Latency) -> Sequence[float]:
    """Return samples with the recorded median; if some were left out, the others' spread gives the same interval."""
    times = latency.raw_times
    if not times or min(times) <= 0:
        return [latency.p50]
    middle, power = median(times), min(1.0, sqrt(len(times) / latency.reps))
    scaled = [(time / middle) ** power for time in times]
    centre = latency.p50 / median(scaled)
    return [each * centre for each in scaled]


def merge(records: Sequence[Record]) -> Record:
    """Return one record for all processes: medians of figures, the worst outcome, other fields of the first that ran.

    Correct results of a busy machine are ``disturbed``: the times are not those of the implementation.
    """
    merged = records[0] if len(records) == 1 else _merged(records)
    busy = next((record for record in records if is_disturbed(record)), None)
    if busy is None or merged.outcome is not Status.OK:
        return merged
    why = busy.tags.get("timer_note", "other programs used the machine")
    failure = Failure(type="Disturbed", msg=f"{why}. Measure again when the machine is idle, with --rerun")
    return msgspec.structs.replace(merged, status=Status.DISTURBED, ok=False, err=failure)


def is_disturbed(record: Record) -> bool:
    """Return whether other processes kept its threads from running, so that its time is not compared."""
    return Flag.DISTURBED in record.flags


def _merged(records: Sequence[Record]) -> Record:
    worst = max(records, key=lambda record: record.outcome.severity)
    ran = [record for record in records if record.outcome.ran]
    rooflines = [record.roofline for record in ran if record.roofline is not None]
    ceiling = commonest(roofline.ceiling for roofline in rooflines)
    # The middle one of those bounded by the most frequent peak.
    alike = sorted((it for it in rooflines if it.ceiling == ceiling), key=lambda it: it.fraction)
    return merge_fields(
        sorted(records, key=lambda record: not record.outcome.ran),
        status=worst.outcome,
        ok=worst.ok,
        err=_failure(worst, records),
        lat_ms=_latency(ran) if worst.outcome.ran else None,
        corr=worst.corr,
        quantities=_quantities(records),
        roofline=alike[len(alike) // 2] if alike else None,
    )


def _failure(worst: Record, records: Sequence[Record]) -> Failure | None:
    """Return why the worst one failed, and in which processes where not in all."""
    if worst.outcome is Status.OK:
        return None
    alike = [record.process + 1 for record in records if record.outcome is worst.outcome]
    kind = worst.err.type if worst.err else worst.outcome.value
    # Only the first process runs the edge cases.
    if len(alike) == len(records) or (worst.outcome.ran and alike == [1]):
        return worst.err or Failure(type=kind, msg=reason_of(worst))
    which = f"process{'es' * (len(alike) > 1)} {' and '.join(map(str, alike))}"
    return Failure(type=kind, msg=f"{reason_of(worst)} ({which} of {len(records)})")


def _latency(ran: Sequence[Record]) -> Latency:
    latencies = [record.lat_ms for record in ran if record.lat_ms is not None]
    time = estimate(ran)
    low, high = time.ends if time else (None, None)
    return merge_fields(
        latencies,
        p50=time.value if time else median(latency.p50 for latency in latencies),
        ci_low=low,
        ci_high=high,
        confidence=CONFIDENCE if low else None,
    )


def _quantities(records: Sequence[Record]) -> Quantities | None:
    """Return the median of the processes' medians with Student's interval; for one process what it recorded."""
    known = [record.quantities for record in records if record.quantities is not None]
    merged = {}
    for name in Quantities.__struct_fields__:
        timings = [timing for quantities in known if (timing := getattr(quantities, name)) is not None]
        if len(timings) > 1:
            medians = [timing.p50 for timing in timings]
            # A clock that did not advance leaves no interval.
            time = hierarchical_median([[each] for each in medians]) if min(medians) > 0 else None
            low, high = time.ends if time else (None, None)
            merged[name] = merge_fields(timings, p50=median(medians), ci_low=low, ci_high=high)
        elif timings:
            merged[name] = timings[0]
    return Quantities(**merged) if known else None


def limitation_of(records: Iterable[Record]) -> str:
    """Return in one line which edge cases an implementation refused in any process; empty for none."""
    checks = [record.corr for record in records if isinstance(record.corr.get("refused"), list)]
    cases = dict.fromkeys(str(case) for check in checks for case in check["refused"])
    if not cases:
        return ""
    why = next((str(check["refusal"]) for check in checks if check.get("refusal")), "")
    # Earlier records have this package's own exception there.
    why = why.removeprefix("CallError: ").removesuffix(": ")
    return one_line(f"refuses {', '.join(cases)}" + (f" ({why})" if why else ""))
