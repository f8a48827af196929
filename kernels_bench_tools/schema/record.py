"""Records: what one implementation did on one workload on one device.

The wire format is JSON Lines, compatible with huggingface/kernels-benchmarks: its files load (with
``schema`` 0), and ours have every key that its readers look for. Times are milliseconds, sizes bytes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

import msgspec

from kernels_bench_tools.schema.device import Device

SCHEMA = 1
"""Version of the record format that this package writes; it reads this one and everything older."""


class Status(StrEnum):
    """How it ended. Those that ran have a latency; only the first may be ranked."""

    OK = "ok"
    """Ran, and agreed with the reference."""
    INCORRECT = "incorrect"
    """Ran, and did not agree with the reference."""
    EXCEEDS_PHYSICS = "exceeds_physics"
    """Ran, and claims to be faster than the device can move its bytes or do its arithmetic."""
    REJECTED = "rejected"
    """Ran, and its time cannot be trusted: the record's flags say why."""
    ERROR = "error"
    """Raised an exception, or its process exited with a code other than 0."""
    OOM = "oom"
    """Ran out of memory."""
    TIMEOUT = "timeout"
    """Did not end within its cell's time."""
    CRASHED = "crashed"
    """Its process was ended by a signal, such as a segmentation fault."""
    UNSUPPORTED = "unsupported"
    """Cannot run here: no such device, package, build or network."""
    INVALID = "invalid"
    """Its process ended well and left nothing that can be read as records."""
    ABSENT = "absent"
    """Nobody has tried it on this device. Only summaries say so."""

    @property
    def ran(self) -> bool:
        """Whether the implementation ran to its end, so that a latency exists."""
        return self in {Status.OK, Status.INCORRECT, Status.EXCEEDS_PHYSICS, Status.REJECTED}


class Timer(StrEnum):
    """What took the time."""

    CUPTI = "cupti"
    """Durations of the kernels as the device counted them, summed per call."""
    EVENTS = "events"
    """A pair of device events around the call."""
    MONOTONIC = "monotonic"
    """The host's monotonic clock around the call."""
    UNKNOWN = "unknown"


class CacheState(StrEnum):
    """What the last-level cache held when a timed call began."""

    READ_FLUSH = "read_flush"
    """Cold and clean: a buffer larger than the cache was read before each call."""
    ROTATED = "rotated"
    """Cold: the calls went round input sets that together exceed the cache."""
    HOT = "hot"
    UNKNOWN = "unknown"


class Flag(StrEnum):
    """What a reader of a record should know. Those in ``REJECTING`` cost it its rank."""

    STREAM_ESCAPE = "stream_escape"
    """Work ran on the device outside of the call that launched it."""
    THREAD_INJECTION = "thread_injection"
    """The call started a thread or a process that outlived it."""
    LAZY_OUTPUT = "lazy_output"
    """The output is not a plain tensor with memory of its own on the device."""
    TIMER_TAMPER = "timer_tamper"
    """Functions that the harness measures with were replaced."""
    STALE_OUTPUT = "stale_output"
    """The output did not follow inputs that changed in place, or a timed call's output was wrong."""
    INPUT_MUTATED = "input_mutated"
    """A call changed its inputs."""
    ALIASED_OUTPUT = "aliased_output"
    """The output shares memory with an input, or with an earlier output."""
    PRECISION = "precision"
    """The error exceeds twice that of torch's own operator in the same type."""
    NONDETERMINISTIC = "nondeterministic"
    """Two calls with the same inputs gave different bits."""
    FALLBACK = "fallback"
    """None of the kernels that the implementation declares was launched."""
    HOST_BOUND = "host_bound"
    """Submitting a call takes longer than the device needs for it."""
    NEAR_FLOOR = "near_floor"
    """The time is less than five times that of a kernel that does nothing."""
    TIMER_DISAGREEMENT = "timer_disagreement"
    """Events take longer than the kernels by more than an event pair costs."""
    PROFILER_SLOWED = "profiler_slowed"
    """The kernels run slower while the profiler watches: the time is by events, without it."""
    DRIFT = "drift"
    """The samples' last third differs from the first by more than 1 %."""
    BIMODAL = "bimodal"
    """The samples fall into two groups."""
    THROTTLED = "throttled"
    """The device slowed its clocks down for power or heat."""
    NEIGHBOUR = "neighbour"
    """Another process used the device."""
    SENTINEL = "sentinel"
    """Reference kernels ran at another speed than in the other processes, also when tried again."""


REJECTING = frozenset(
    {
        Flag.STREAM_ESCAPE,
        Flag.THREAD_INJECTION,
        Flag.LAZY_OUTPUT,
        Flag.TIMER_TAMPER,
        Flag.STALE_OUTPUT,
        Flag.INPUT_MUTATED,
        Flag.ALIASED_OUTPUT,
        Flag.FALLBACK,
    }
)
"""Flags with which a record is ``rejected``: its time is not that of the work it claims."""


class Regime(StrEnum):
    """What bounds a workload on a device."""

    LAUNCH = "launch"
    """Less than five times a kernel that does nothing: bandwidth says nothing here."""
    L2 = "l2"
    """Its bytes fit into half of the last-level cache."""
    TRANSITION = "transition"
    """Between the cache and memory."""
    HBM = "hbm"
    """More than four times the last-level cache: memory bandwidth."""
    COMPUTE = "compute"
    """More arithmetic per byte than the measured ridge."""


class Latency(msgspec.Struct, kw_only=True):
    """Times of one call in milliseconds, every sample kept in the order it was taken."""

    p10: float
    p50: float
    """The median: the figure that the report shows."""
    p90: float
    mean: float
    iqr: float
    raw_times: list[float] = msgspec.field(default_factory=list)
    reps: int
    warmup: int = 0
    has_warnings: bool = False
    """Whether the interquartile range exceeds a tenth of the median (kernels-benchmarks' flag)."""
    ci_low: float | None = None
    """Lower end of the interval of the median; None for files that have none."""
    ci_high: float | None = None
    confidence: float | None = None
    """Coverage of the interval, such as 0.95."""
    timer: Timer = Timer.UNKNOWN
    cache: CacheState = CacheState.UNKNOWN
    input_sets: int = 1
    """Number of input sets that the calls went round."""
    stop_reason: str = ""
    """Why sampling ended: ``"converged"``, ``"max_samples"`` or ``"max_seconds"``."""
    tail_ratio: float | None = None
    """99th percentile over the median."""
    tick_ms: float | None = None
    """Resolution of the clock where it shows in the samples: the median is then the grouped one."""
    drift: float | None = None
    """Median of the last third of the samples over that of the first, minus 1."""


class Timing(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A secondary quantity in milliseconds, without its samples."""

    p50: float
    ci_low: float | None = None
    ci_high: float | None = None
    reps: int = 0


class Quantities(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The times that are not the headline; never mixed with it or one another."""

    device_hot: Timing | None = None
    """Device time of a call among others of the same inputs: the caches hold what fits."""
    host_submit: Timing | None = None
    """Host time to issue one call, without waiting for the device."""
    e2e: Timing | None = None
    """Idle device, call, wait: what one call costs whoever waits for it."""


class FirstCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What happens once per process, in milliseconds."""

    import_ms: float | None = None
    """From the start of the process to the harness: importing packages."""
    load_ms: float | None = None
    """Loading the implementation: the function given as ``load=``, a download for example."""
    first_ms: float | None = None
    """The first call, compilation and autotuning included."""
    second_ms: float | None = None
    """The second call, waited for."""


class Clocks(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The device while it was measured, sampled from outside of the process."""

    sm_mhz: int = 0
    """Median clock of the multiprocessors while busy."""
    sm_mhz_min: int = 0
    memory_mhz: int = 0
    in_band_mhz: int = 0
    """Clock by a kernel that spins for a known number of cycles, in the measured stream."""
    power_w: float = 0.0
    """Highest sample."""
    temperature_c: int = 0
    throttle: list[str] = msgspec.field(default_factory=list)
    """Reasons that the device gave for slowing down, other than idling."""
    other_processes: int = 0
    samples: int = 0


class Roofline(msgspec.Struct, kw_only=True):
    """How near a row is to what the device can do, by a ceiling measured in the same process."""

    ceiling: str
    """``"read"``, ``"write"``, ``"copy"``, ``"triad"``, ``"mix"`` or ``"matmul_<dtype>"``."""
    value: float
    """GB/s, or TFLOP/s for a matmul ceiling."""
    fraction: float
    """Achieved rate over the ceiling's."""


class Kernel(msgspec.Struct, kw_only=True):
    """A kernel that one call launched."""

    name: str
    count: int
    """Launches per call."""
    ms: float
    """Median over calls of the summed duration of these launches."""


class Work(msgspec.Struct, kw_only=True):
    """What one call has to do at the least, counted from its tensors."""

    bytes_read: int
    bytes_written: int
    flops: int

    @property
    def bytes_moved(self) -> int:
        """Bytes read and written together."""
        return self.bytes_read + self.bytes_written


class Failure(msgspec.Struct, kw_only=True):
    """Why there is no latency, or no rank."""

    type: str
    msg: str


class Environment(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The software and hardware that a record was measured with; empty strings where unknown."""

    torch: str = ""
    cuda: str = ""
    """CUDA version that torch was built for."""
    gpu: str = ""
    sm: str = ""
    """Compute capability, such as ``"9.0"``."""
    py: str = ""
    plat: str = ""
    driver: str = ""
    triton: str = ""
    kernels: str = ""
    cpu: str = ""
    threads: int = 0
    """Threads that torch may use for one operation on the CPU."""
    sm_clock_mhz: int = 0
    """Clock of the multiprocessors just after the measurement; 0 where unknown."""
    memory_clock_mhz: int = 0
    l2_bytes: int = 0


class HubKernel(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A kernel that was loaded from the hub, its cache or a folder, and what is known of its build."""

    repo: str
    """``organization/name``, or the folder."""
    requested: str = ""
    """The reference as the notebook has it, such as ``kernels-community/activation@1``."""
    origin: str = ""
    """``override``, ``lock``, ``cache`` or ``hub``."""
    commit: str = ""
    variant: str = ""
    """Name of the build, such as ``torch-cuda``."""
    version: int | None = None
    """Major version, as the build's metadata says."""
    digest: str = ""
    """SHA-256 over the build's files."""
    signature: str = ""
    """``verified``, ``unsigned`` or ``not checked``."""
    dirty: bool | None = None
    """Whether it was built from uncommitted changes, as its metadata says."""
    trusted: str = ""
    """Why its publisher was trusted: ``publisher``, ``allow-list``, ``local`` or ``not checked``."""
    notes: list[str] = msgspec.field(default_factory=list)
    """What a reader should know, such as newer versions that have no build here."""


class Provenance(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Where a record comes from and how to make it again."""

    notebook: str = ""
    """Path within the project, with ``/``."""
    notebook_digest: str = ""
    """SHA-256 of the notebook's text."""
    cell: str = ""
    code_digest: str = ""
    """SHA-256 of the cell's code without comments: what ``code_digest`` of ``runs`` returns."""
    commit: str = ""
    dirty: bool | None = None
    """Whether the checkout had uncommitted changes; None where there was no checkout."""
    environment: str = ""
    """``"uv"`` or ``"current"``."""
    packages: dict[str, str] = msgspec.field(default_factory=dict)
    """The distributions that the process had imported, with their versions."""
    harness: str = ""
    """Version of kernels-bench-tools."""
    seed: int | None = None
    hub: list[HubKernel] = msgspec.field(default_factory=list)
    """Hub kernels that the process had loaded."""


class Record(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """One implementation on one workload on one device.

    A latency exists exactly when the implementation ran (``ok`` or ``incorrect``). A record whose
    workload is empty speaks for all workloads that its file has no record of.
    """

    ts: str
    """When it was written, UTC, ISO 8601."""
    run: str
    """The same for all records of one process."""
    impl: str
    """Implementation id: the stem of its notebook's file."""
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    wl: dict[str, Any] = msgspec.field(default_factory=dict)
    """The workload: ``name``, ``dtype``, its ``set``, ``group`` and ``mode`` if it has one, and one key for each of the
    operator's axes."""
    env: Environment = msgspec.field(default_factory=Environment)
    lat_ms: Latency | None = None
    """Device time of one call with cold caches."""
    compile_ms: float | None = None
    """The first call, compilation and autotuning included."""
    peak_bytes: int | None = None
    """Memory that one call allocates beyond its inputs, at its peak."""
    ok: bool = False
    absmax: float | None = None
    """Largest absolute difference from the reference."""
    corr: dict[str, Any] = msgspec.field(default_factory=dict)
    """How correctness was judged: reference, errors, tolerances, cases."""
    err: Failure | None = None
    schema: int = 0
    op: str = ""
    status: Status | None = None
    device: Device | None = None
    work: Work | None = None
    kernels: list[Kernel] = msgspec.field(default_factory=list)
    process: int = 0
    """Which of the fresh processes that measured the same workload, from 0."""
    quantities: Quantities | None = None
    first_call: FirstCall | None = None
    clocks: Clocks | None = None
    flags: list[Flag] = msgspec.field(default_factory=list)
    regime: Regime | None = None
    roofline: Roofline | None = None
    sentinels: dict[str, list[float]] = msgspec.field(default_factory=dict)
    """Reference kernel to its milliseconds before and after this process's workloads."""
    ceilings: dict[str, float] = msgspec.field(default_factory=dict)
    """What the device reached in this process, GB/s or TFLOP/s (``matmul_<dtype>``); on the process's first
    record only."""
    trust: str = ""
    """What the integrity checks covered, and what they cannot see."""
    span_ms: float | None = None
    """Median from the first kernel's start to the last one's end; ``lat_ms`` sums their durations."""
    provenance: Provenance = msgspec.field(default_factory=Provenance)

    def __post_init__(self) -> None:
        """Derive the status of files without one; refuse a record that contradicts itself."""
        if self.schema > SCHEMA:
            raise ValueError(f"record schema {self.schema} is newer than {SCHEMA}, which this version reads")
        if self.status is None:
            self.status = _status_without_one(self)
        if self.status.ran != (self.lat_ms is not None):
            raise ValueError(f"status {self.status.value!r} and lat_ms contradict each other")
        if self.ok != (self.status is Status.OK):
            raise ValueError(f"status {self.status.value!r} and ok={self.ok} contradict each other")

    @property
    def workload(self) -> str:
        """Name of the workload; empty for a record that speaks for all of them."""
        return str(self.wl.get("name", ""))

    @property
    def outcome(self) -> Status:
        """The status, which every record has once it is made."""
        assert self.status is not None
        return self.status


def _status_without_one(record: Record) -> Status:
    if record.err is not None or record.lat_ms is None:
        return Status.ERROR
    return Status.OK if record.ok else Status.INCORRECT
