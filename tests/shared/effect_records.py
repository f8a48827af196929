"""Records of ``kbt effect``, as its cells write them."""

from typing import Any

from devices import H200

from kernels_bench_tools.records.record import Effect, Latency, Record, Status


def effect_record(
    number: int = 0,
    baseline_ms: float = 4.0,
    candidate_ms: float = 2.0,
    *,
    noise: float = 0.0,
    impl: str = "mine",
    peak_bytes: int | None = None,
    **fields: Any,
) -> Record:
    """Return the record of a process; ``fields`` are those of ``Effect``."""
    about = {"model": "llama-3.2-1b", "phase": "decode-1", "level": 4, "module": "eager", "calls": 1}
    about |= {"replaced": 5, "called": 5} | fields
    again = latency(baseline_ms * (1 + noise), spread=0.0002)
    effect = Effect(baseline=latency(baseline_ms), again=again, **about)
    return Record(
        schema=1,
        ts="2026-11-20T10:00:00Z",
        run=f"r{number}",
        op="rms_norm",
        impl=impl,
        device=H200,
        wl={"name": "{model}_{phase}_L{level}_{module}".format(**about)},
        status=Status.OK,
        ok=True,
        lat_ms=latency(candidate_ms, number),
        process=number,
        peak_bytes=peak_bytes,
        effect=effect,
    )


def latency(ms: float, process: int = 0, spread: float = 0.0001) -> Latency:
    """Return samples around a median, which differ between processes."""
    samples = [ms * (1 + spread * number + 1e-9 * process) for number in range(-5, 6)]
    return Latency(p10=ms, p50=ms, p90=ms, mean=ms, iqr=0.0, reps=len(samples), raw_times=samples)
