"""Records: the measurement of one implementation on one workload on one device.

The format is compatible with huggingface/kernels-benchmarks: its files load (with ``schema`` 0), and records of
this package have every key that its readers need. Times are milliseconds, sizes bytes.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Any, Self, TypeAlias

import msgspec

from kernels_bench_tools.records.device import Device, cuda_device, names_a_gpu
from kernels_bench_tools.records.merging import (
    AnyOf,
    Commonest,
    Computed,
    Farthest,
    First,
    FirstKnown,
    Joined,
    Largest,
    LastListed,
    Median,
    Sum,
    Union,
)
from kernels_bench_tools.text.names import slugify

SCHEMA = 1
"""Version of the record format that this package writes; it reads this version and all older ones."""
TICK_MS = 32e-6
"""NVIDIA GPUs count time in ticks of 32 ns; the clocks of other devices are finer than their samples."""

Milliseconds: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
"""A time. The bounds of this and the next types are checked where records are read, not where they are made."""
Rate: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
"""GB/s or TFLOP/s, or a ratio of two of them."""
Joules: TypeAlias = Annotated[float, msgspec.Meta(ge=0, le=1e9)]
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
Integer: TypeAlias = Annotated[int, msgspec.Meta(ge=-(2**62), le=2**62)]
"""Longer ones could not be divided."""
Axis: TypeAlias = str | float | bool | Integer | list[Any] | dict[str, Any] | None
"""A value in the description of a workload."""


class Labelled(StrEnum):
    """Values of a field, some with words for tables, and with what they mean."""

    label: str
    """A few words, for tags, reasons, tables and charts; the value if there are no others."""
    meaning: str

    def __new__(cls, value: str, label: str = "", meaning: str = "") -> Self:
        """Return the member that is ``value`` in records."""
        member = str.__new__(cls, value)
        member._value_, member.label, member.meaning = value, label or value, meaning
        return member

    @property
    def place(self) -> int:
        """Its number in the order of the enumeration, from 0."""
        return list(type(self)).index(self)


class Status(Labelled):
    """How a measurement ended; only ``ok`` can be ranked."""

    severity: int
    """Of several processes that measured one workload, the status with the highest counts."""
    ran: bool
    """Whether the implementation ran to its end, so that a latency exists."""

    def __new__(cls, value: str, severity: int, ran: bool, label: str = "", meaning: str = "") -> Self:
        """Return the member that is ``value`` in records."""
        member = str.__new__(cls, value)
        member._value_, member.label, member.meaning = value, label or value, meaning
        member.severity, member.ran = severity, ran
        return member

    OK = "ok", 0, True, "", "ran, and agrees with the reference"
    DISTURBED = "disturbed", 1, True, "", "correct, but disturbed by other programs: its time is not compared"
    """In summaries only, never in a record."""
    # Worse than unsupported: one that refuses some values is shown as incorrect.
    INCORRECT = "incorrect", 6, True, "", "ran, but failed the correctness check"
    EXCEEDS_PHYSICS = "exceeds_physics", 5, True, "above the roofline", "faster than the measured peaks allow"
    REJECTED = "rejected", 4, True, "", "ran, but failed an integrity check: its time may not cover its work"
    ERROR = "error", 10, False, "", "raised an exception, or its process exited with a nonzero code"
    OOM = "oom", 9, False, "out of memory", "needs more memory than is available"
    TIMEOUT = "timeout", 8, False, "", "exceeded the time limit of its cell"
    CRASHED = "crashed", 11, False, "", "its process was terminated by a signal, such as SIGSEGV"
    UNSUPPORTED = "unsupported", 3, False, "", "cannot run on this device, or a package or build is missing"
    INVALID = "invalid", 7, False, "invalid output", "no readable output, or its inputs changed meanwhile"
    ABSENT = "absent", 2, False, "not measured", "not measured on this device"
    """In summaries only, never in a record."""

    @property
    def passed(self) -> bool:
        """Whether it is correct, and its time is shown; that of a busy machine is not compared."""
        return self in {Status.OK, Status.DISTURBED}

    @property
    def failed(self) -> bool:
        """Whether something is wrong: it is not correct, and not merely unsupported or not measured."""
        return not self.passed and self not in {Status.UNSUPPORTED, Status.ABSENT}


class Timer(Labelled):
    CUPTI = "cupti", "CUPTI", "kernel durations recorded by the device, summed per call"
    EVENTS = "events", "", "a pair of device events around the call"
    MONOTONIC = "monotonic", "host clock", "the host's monotonic clock around the call"
    UNKNOWN = "unknown"


class CacheState(Labelled):
    """State of the last-level cache at the start of a timed call."""

    READ_FLUSH = "read_flush", "cold, flushed", "a buffer larger than the cache was read before each call"
    ROTATED = "rotated", "cold, rotated inputs", "successive calls use inputs that together exceed the cache"
    HOT = "hot"
    UNKNOWN = "unknown"


class Judged(Labelled):
    """Where outputs were compared, times checked, and the record written; the most trusted first."""

    SEPARATELY = "separately", "", "Checked by the judge, a process that runs no code of the notebook."
    IN_PROCESS = "in process", "", "Checked in the implementation's process, which could alter the checks."
    NOT = "not", "", "Self-reported: the notebook wrote these records itself; they were not checked."


class Flag(Labelled):
    """An observation about a measurement, with its texts. A flag of ``REJECTING`` excludes it from ranking."""

    STREAM_ESCAPE = "stream_escape", "work outside the call", "work for the call ran outside the timed region"
    THREAD_INJECTION = "thread_injection", "thread left running", "a thread or process outlived the call"
    LAZY_OUTPUT = "lazy_output", "lazy output", "the output is not a plain tensor with its own device memory"
    TIMER_TAMPER = (
        *("timer_tamper", "timing contradicted"),
        "calls took longer by the judge's clock than reported, or functions of the harness were replaced",
    )
    UNSEALED = (
        "unsealed",
        "not sealed",
        "its calls could not be timed by the judge's clock, as they wait for the device",
    )
    STALE_OUTPUT = "stale_output", "stale output", "the output of a timed call is wrong for its inputs"
    INPUT_MUTATED = "input_mutated", "inputs changed", "a call changed its inputs without `in_place=True`"
    ALIASED_OUTPUT = "aliased_output", "output aliased", "shares memory with an input or an earlier output"
    PRECISION = "precision", "less precise than torch", "its error exceeds twice torch's in the same dtype"
    ZEROS_PASS = "zeros_pass", "zeros pass", "outputs of zeros would be correct, too; no speed-up and no rank"
    CONSTANT_OUTPUT = "constant_output", "constant output", "the output does not depend on the inputs"
    NO_NEGATIVE = "no_negative", "no negative inputs", "no input is negative, as those of `torch.rand`"
    NONDETERMINISTIC = "nondeterministic", "not deterministic", "two identical calls returned different bits"
    IN_PLACE = "in_place", "in place", "it overwrites its inputs; the time does not include making fresh ones"
    PREPARED = "prepared", "parameters prepared", "weights or tables were converted once, which is not timed"
    APPROXIMATE = "approximate", "", "it declares a lower precision, which sets its tolerance; ranked last"
    FALLBACK = "fallback", "fallback to other kernels", "none of its declared kernels was launched"
    HOST_BOUND = "host_bound", "host-bound", "submitting a call takes longer than the device needs for it"
    NEAR_FLOOR = "near_floor", "near launch overhead", "takes less than five times as long as an empty kernel"
    TIMER_DISAGREEMENT = (
        "timer_disagreement",
        "timers disagree",
        "CUDA events exceed CUPTI's time by more than their own cost",
    )
    PROFILER_SLOWED = "profiler_slowed", "timed without profiler", "slowed by the profiler, timed by events"
    OUTLIERS = "outliers", "", "the mean is over 10 % above the median: some calls took much longer"
    """Found in summaries, from all samples; not in records."""
    DRIFT = "drift", "", "medians of the first and last third of the samples differ by more than 1 %"
    BIMODAL = "bimodal", "", "the samples form two groups"
    THROTTLED = "throttled", "", "the device lowered its clocks because of power or heat"
    DISTURBED = ("disturbed", "", "threads waited for cores, or some calls took much longer; no rank")
    NEIGHBOUR = "neighbour", "shared device", "another process used the device"
    SENTINEL = (
        "sentinel",
        "device speed differs",
        "sentinel kernels deviated from the session's times, also when repeated",
    )


REJECTING = frozenset(
    {Flag.STREAM_ESCAPE, Flag.THREAD_INJECTION, Flag.LAZY_OUTPUT, Flag.TIMER_TAMPER}
    | {Flag.STALE_OUTPUT, Flag.INPUT_MUTATED, Flag.ALIASED_OUTPUT, Flag.FALLBACK, Flag.UNSEALED}
)
"""Flags with which a record is ``rejected``: its time is not that of the work it claims."""


NOT_COMPARED = frozenset({Flag.DISTURBED, Flag.ZEROS_PASS})
"""Flags with which the time of a correct result is compared with no other."""


class Regime(Labelled):
    """What limits the speed of a workload on a device."""

    LAUNCH = "launch", "launch-bound", "takes less than five times as long as an empty kernel"
    L2 = "l2", "in cache", "its data fit into half of the last-level cache"
    TRANSITION = "transition", "cache and memory", "between in cache and memory-bound"
    HBM = "hbm", "memory-bound", "its data exceed four times the last-level cache"
    COMPUTE = "compute", "compute-bound", "its arithmetic takes longer than its memory traffic"


class Latency(msgspec.Struct, kw_only=True):
    """Times of one call in milliseconds, with all samples in the order they were taken."""

    p10: Median[Milliseconds | None] = None
    p50: Computed[Milliseconds]
    """The median, which the report shows."""
    p90: Median[Milliseconds | None] = None
    mean: Median[Milliseconds | None] = None
    iqr: Median[Milliseconds | None] = None
    raw_times: Joined[list[Milliseconds]] = msgspec.field(default_factory=list)
    reps: Sum[Annotated[int, msgspec.Meta(ge=1)]]
    warmup: First[Count] = 0
    has_warnings: AnyOf[bool] = False
    """Whether the interquartile range exceeds a tenth of the median (kernels-benchmarks' flag)."""
    ci_low: Computed[Milliseconds | None] = None
    ci_high: Computed[Milliseconds | None] = None
    confidence: Computed[float | None] = None
    timer: First[Timer] = Timer.UNKNOWN
    cache: First[CacheState] = CacheState.UNKNOWN
    input_sets: First[int] = 1
    stop_reason: First[str] = ""
    """Why sampling ended: ``"converged"``, ``"max_samples"`` or ``"max_seconds"``."""
    tail_ratio: Largest[float | None] = None
    """99th percentile over the median."""
    tick_ms: First[Milliseconds | None] = None
    """Resolution of the clock, if it is visible in the samples; ``p50`` is then the grouped median."""
    drift: Farthest[float | None] = None
    """Median of the last third of the samples over that of the first, minus 1."""


class Timing(msgspec.Struct, kw_only=True, omit_defaults=True):
    """A secondary quantity in milliseconds, without its samples."""

    p50: Computed[Milliseconds]
    ci_low: Computed[Milliseconds | None] = None
    ci_high: Computed[Milliseconds | None] = None
    reps: Sum[Count] = 0
    joules: Median[Joules | None] = None
    """Energy of the device for one call; only of ``sustained``, and on GPUs that count it."""


class Quantities(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Times other than the main one, which is ``lat_ms``."""

    device_hot: Timing | None = None
    """Device time of a call repeated with the same inputs, so that caches are warm."""
    host_submit: Timing | None = None
    """Host time to issue one call, without waiting for the device."""
    e2e: Timing | None = None
    """Wall time of a call and the wait for its result, on an idle device."""
    back_to_back: Timing | None = None
    """Device time of a call among others that are queued without a gap, by the clock of another process; in older records."""
    sealed: Timing | None = None
    """Device time of a call by the judge's clock: its inputs were made right before it, its outputs digested right after it."""
    sustained: Timing | None = None
    """Time of a call among others that run without a pause, with rotated inputs, once it no longer changes. If asked for."""


class FirstCall(msgspec.Struct, kw_only=True, omit_defaults=True):
    """One-time costs of a process, in milliseconds."""

    import_ms: Milliseconds | None = None
    """From the start of the process to ``run_benchmark``: importing packages."""
    load_ms: Milliseconds | None = None
    """The function given as ``load=``, such as a download."""
    first_ms: Milliseconds | None = None
    """The first call, including compilation and autotuning."""
    second_ms: Milliseconds | None = None
    """The second call, including the wait for its result."""


class Clocks(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Clocks and power of the device during the measurement, sampled by another process."""

    sm_mhz: int = 0
    """Median clock of the multiprocessors while busy."""
    sm_mhz_min: int = 0
    memory_mhz: int = 0
    in_band_mhz: int = 0
    """Clock measured with a kernel that spins for a known number of cycles, in the measured stream."""
    power_w: float = 0.0
    """Maximum of the samples."""
    temperature_c: int = 0
    throttle: list[str] = msgspec.field(default_factory=list)
    """Throttling reasons that the device reported, other than idling."""
    other_processes: int = 0
    samples: int = 0


class Roofline(msgspec.Struct, kw_only=True):
    """The achieved rate as a fraction of a peak rate measured in the same process."""

    ceiling: str
    """Kind of measured peak: ``"read"``, ``"write"``, ``"copy"``, ``"triad"``, ``"mix"`` or ``"matmul_<dtype>"``."""
    value: Rate
    """The measured peak in GB/s, or TFLOP/s for a matmul."""
    fraction: Rate
    """Achieved rate divided by ``value``."""


class Kernel(msgspec.Struct, kw_only=True):
    name: str
    count: Count
    ms: Milliseconds
    """Total duration of its launches in a call; median over calls."""


class Work(msgspec.Struct, kw_only=True, frozen=True):
    """Minimum memory traffic and arithmetic of one call, computed from its tensors."""

    bytes_read: Count
    bytes_written: Count
    flops: Count

    @property
    def bytes_moved(self) -> int:
        return self.bytes_read + self.bytes_written


class Failure(msgspec.Struct, kw_only=True):
    type: str
    msg: str


class Environment(msgspec.Struct, kw_only=True, omit_defaults=True):
    """Software and hardware of a measurement; unknown fields are empty."""

    torch: str = ""
    cuda: str = ""
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
    """Median clock of the multiprocessors; 0 if unknown."""
    memory_clock_mhz: int = 0
    l2_bytes: int = 0


class HubKernel(msgspec.Struct, kw_only=True, omit_defaults=True):
    repo: str
    """``organization/name``, or the folder."""
    requested: str = ""
    """The reference in the notebook, such as ``kernels-community/activation@1``."""
    origin: str = ""
    """``override``, ``lock``, ``source build``, ``cache`` or ``hub``."""
    commit: str = ""
    variant: str = ""
    """Name of the build, such as ``torch-cuda``."""
    version: int | None = None
    """Major version in the build's metadata."""
    digest: str = ""
    signature: str = ""
    """``verified``, ``unsigned`` or ``not checked``."""
    dirty: bool | None = None
    """Whether it was built from uncommitted changes, according to its metadata."""
    trusted: str = ""
    """Why it was trusted: ``publisher``, ``allow-list``, ``local`` or ``not checked``."""
    notes: list[str] = msgspec.field(default_factory=list)
    """Remarks for the report, such as newer versions without a build for this machine."""


class Provenance(msgspec.Struct, kw_only=True, omit_defaults=True):
    notebook: str = ""
    """Path within the project, with ``/``."""
    notebook_digest: str = ""
    cell: str = ""
    code_digest: str = ""
    """SHA-256 of the cell's code without comments, see :func:`kernels_bench_tools.records.code.code_digest`."""
    commit: str = ""
    dirty: bool | None = None
    """Whether the checkout had uncommitted changes; None without a checkout."""
    environment: str = ""
    """``"uv"`` or ``"current"``."""
    packages: dict[str, str] = msgspec.field(default_factory=dict)
    """Distributions that the process imported, with their versions."""
    harness: str = ""
    """Version of kernels-bench-tools."""
    harness_digest: str = ""
    """Of the modules that measure; empty in old records."""
    operator_digest: str = ""
    """Of the operator's module without comments; empty in old records, and of an operator that the cell defines."""
    seed: int | None = None
    hub: list[HubKernel] = msgspec.field(default_factory=list)


class Part(msgspec.Struct, kw_only=True, omit_defaults=True):
    """The calls of one kernel in a forward pass of a model, without the implementation."""

    module: str
    """The class and, if there are several, what distinguishes its inputs; empty for what is outside of all kernels."""
    calls: Count
    ms: Milliseconds
    """Of all calls, inside of the model."""
    alone_ms: Milliseconds | None = None
    """Of as many calls alone."""


LISTED = 10
"""Paths of instances that were not called which a record lists."""


class Effect(msgspec.Struct, kw_only=True, omit_defaults=True):
    """What one implementation changes in a model; ``lat_ms`` of its record is the time with it."""

    model: str
    phase: Annotated[
        str, msgspec.Meta(pattern=r"^((prefill|decode)-[1-9]|train-([2-9]|[1-9][0-9]))[0-9]{0,5}$")
    ]
    """Such as ``decode-32``; ``train-2048`` is a forward and a backward pass."""
    layers: Count = 0
    """Layers that were measured, if not all of the model."""
    others: list[str] = msgspec.field(default_factory=list)
    """Other implementations that replaced kernels at the same time, as ``operator/implementation``."""
    other_digests: list[str] = msgspec.field(default_factory=list)
    """Digests of their code, like ``code_digest`` of the provenance."""
    level: Annotated[int, msgspec.Meta(ge=1, le=4)]
    """1 for single kernels, 2 for blocks, 3 for decoder layers, 4 for the whole model."""
    module: str
    """The class that was called; for a whole model how it was timed: ``device``, ``eager`` or ``CUDA graph``."""
    calls: Annotated[int, msgspec.Meta(ge=1)]
    """Per forward pass."""
    baseline: Latency
    """The time without the implementation."""
    again: Latency | None = None
    """A second sample of the same, taken at the same time: how much two equal programs differ."""
    predicted_ms: Milliseconds | None = None
    """The time with it, computed from the calls and times of single kernels."""
    replaced: Count = 0
    """Instances in the model whose ``forward`` was replaced: all of the classes that call the operator."""
    called: Count = 0
    """Of these, the instances that the forward pass called."""
    missing: list[str] = msgspec.field(default_factory=list)
    """Paths of the first that it did not call."""
    kept: dict[str, int] = msgspec.field(default_factory=dict)
    """Instances that transformers could replace by a kernel and has none for, in this mode on this device, by the kernel's name."""
    launches: Count | None = None
    """Kernels per forward pass, with the implementation."""
    baseline_launches: Count | None = None
    baseline_peak_bytes: Count | None = None
    """``peak_bytes`` of the record, without the implementation."""
    host_ms: Milliseconds | None = None
    """Host time to issue a call of a single kernel, with the implementation."""
    baseline_host_ms: Milliseconds | None = None
    parts: list[Part] = msgspec.field(default_factory=list)
    """For one row of a whole model: its kernels, the longest first."""

    @property
    def workload(self) -> str:
        return f"{self.model}_{self.phase}_L{self.level}_{self.module}"


class Record(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """The measurement of one implementation on one workload on one device.

    ``lat_ms`` is set if and only if the status is one that ran. A record without a workload applies to all workloads
    without a record of their own.
    """

    ts: First[str]
    """Time of writing, UTC, ISO 8601."""
    run: First[str]
    """Id of the process; the same for all its records."""
    impl: First[str]
    """Implementation id: the stem of its notebook's file."""
    tags: First[dict[str, str]] = msgspec.field(default_factory=dict)
    wl: First[dict[str, Axis]] = msgspec.field(default_factory=dict)
    """The workload: ``name``, ``dtype``, optional ``set``, ``group`` and ``mode``, and a key for each axis."""
    env: First[Environment] = msgspec.field(default_factory=Environment)
    lat_ms: Computed[Latency | None] = None
    """Device time of one call, with cold caches."""
    compile_ms: Median[Milliseconds | None] = None
    """Duration of the first call, including compilation and autotuning."""
    peak_bytes: Largest[Count | None] = None
    """Peak memory that one call allocates in addition to its inputs."""
    ok: Computed[bool] = False
    absmax: Largest[float | None] = None
    """Largest absolute difference from the reference."""
    corr: Computed[dict[str, Any]] = msgspec.field(default_factory=dict)
    """The correctness check: reference, errors, tolerances, cases."""
    err: Computed[Failure | None] = None
    schema: First[int] = 0
    op: First[str] = ""
    status: Computed[Status | None] = None
    # The fields above are in every written record, those below only if they are not empty.
    device: First[Device | None] = None
    work: First[Work | None] = None
    kernels: First[list[Kernel]] = msgspec.field(default_factory=list)
    process: First[Count] = 0
    """Number of the process, from 0, among those that measured the same workload."""
    earlier_runs: First[Count] = 0
    """Number of earlier runs of this workload that this one replaced."""
    quantities: Computed[Quantities | None] = None
    first_call: First[FirstCall | None] = None
    clocks: First[Clocks | None] = None
    flags: Union[list[Flag]] = msgspec.field(default_factory=list)
    regime: Commonest[Regime | None] = None
    roofline: Computed[Roofline | None] = None
    sentinels: First[dict[str, list[Milliseconds]]] = msgspec.field(default_factory=dict)
    """Reference kernel to its milliseconds before and after the workloads of this process."""
    ceilings: First[dict[str, Rate]] = msgspec.field(default_factory=dict)
    """Peak rates measured in this process, GB/s or TFLOP/s (``matmul_<dtype>``); in files on its first record only."""
    judged: LastListed[Judged] = Judged.IN_PROCESS
    trust: FirstKnown[str] = ""
    """Which integrity checks were done, and what they cannot detect."""
    span_ms: Median[Milliseconds | None] = None
    """Median time from the start of the first kernel to the end of the last; ``lat_ms`` sums their durations."""
    provenance: First[Provenance] = msgspec.field(default_factory=Provenance)
    effect: First[Effect | None] = None
    """Set by ``kbt effect`` only."""

    def __post_init__(self) -> None:
        """Set the status of old files without one, and check that the fields are consistent."""
        if self.schema > SCHEMA:
            raise ValueError(f"record schema {self.schema} is newer than {SCHEMA}, which this version reads")
        if self.status is None:
            failed = self.err is not None or self.lat_ms is None
            self.status = Status.ERROR if failed else Status.OK if self.ok else Status.INCORRECT
        if self.schema == 0:  # of another project
            self.judged = Judged.NOT
        if self.status.ran != (self.lat_ms is not None):
            raise ValueError(f"status {self.status.value!r} and lat_ms contradict each other")
        if self.ok != (self.status is Status.OK):
            raise ValueError(f"status {self.status.value!r} and ok={self.ok} contradict each other")

    @property
    def workload(self) -> str:
        return str(self.wl.get("name", ""))

    @property
    def outcome(self) -> Status:
        """The status, which is never None after construction."""
        assert self.status is not None
        return self.status


def device_of(record: Record) -> Device:
    if record.device is not None:
        return record.device
    gpu = record.env.gpu.strip()
    if names_a_gpu(gpu) and str(record.wl.get("device", "cuda")).partition(":")[0] != "cpu":
        return cuda_device(gpu, record.env.driver)
    name = record.env.cpu or "CPU"
    return Device(kind="cpu", name=name, slug=slugify(name))
