"""Records: what one implementation did on one workload on one device.

The wire format is JSON Lines, compatible with huggingface/kernels-benchmarks: its files load (with
``schema`` 0), and ours have every key that its readers look for. Times are milliseconds, sizes bytes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Any

import msgspec

from kernels_bench_tools.devices import Device
from kernels_bench_tools.errors import RecordError

SCHEMA = 1
"""Version of the record format that this package writes; it reads this one and everything older."""


class Status(StrEnum):
    """How it ended. Only the first two have a latency, only the first may be ranked."""

    OK = "ok"
    """Ran, and agreed with the reference."""
    INCORRECT = "incorrect"
    """Ran, and did not agree with the reference."""
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

    @property
    def ran(self) -> bool:
        """Whether the implementation ran to its end, so that a latency exists."""
        return self in {Status.OK, Status.INCORRECT}


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


class Environment(msgspec.Struct, kw_only=True):
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


class Provenance(msgspec.Struct, kw_only=True):
    """Where a record comes from and how to make it again."""

    notebook: str = ""
    """Path within the project, with ``/``."""
    notebook_digest: str = ""
    """SHA-256 of the notebook's text."""
    cell: str = ""
    commit: str = ""
    dirty: bool | None = None
    """Whether the checkout had uncommitted changes; None where there was no checkout."""
    environment: str = ""
    """``"uv"`` or ``"current"``."""
    packages: dict[str, str] = msgspec.field(default_factory=dict)
    """Every distribution that was installed, with its version."""
    harness: str = ""
    """Version of kernels-bench-tools."""
    seed: int | None = None


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
    """The workload: ``name``, ``dtype`` and one key for each of the operator's axes."""
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


_DECODER = msgspec.json.Decoder(Record)
_ENCODER = msgspec.json.Encoder()


def encode_record(record: Record) -> bytes:
    """Return the record as one line of JSON, line feed included."""
    return _ENCODER.encode(record) + b"\n"


def write_records(path: Path, records: Iterable[Record]) -> None:
    """Write the records to ``path``, replacing what was there."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"".join(encode_record(record) for record in records))


def append_record(path: Path, record: Record) -> None:
    """Add one record to ``path`` at once, so that a process killed later has not lost it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(encode_record(record))


def read_records(path: Path, where: str = "") -> list[Record]:
    """Return the records of a JSONL file.

    A last line without its line feed was cut off with its writer, and is left out if it cannot be read.

    Args:
        path: The file.
        where: How messages name it; its path if empty.

    Raises:
        RecordError: The file cannot be opened, or a whole line of it is not a record.
    """
    where = where or str(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise RecordError(where, f"cannot be read ({error.strerror})", "A JSONL file of records") from error
    return list(_decode_lines(data, where))


def _decode_lines(data: bytes, where: str) -> Iterator[Record]:
    lines = data.split(b"\n")
    for number, line in enumerate(lines, start=1):
        if not line.strip():
            continue
        try:
            yield _DECODER.decode(line)
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            if number == len(lines):
                return
            raise RecordError(
                f"{where}:{number}",
                f"is not a record: {error}",
                "Each line is one JSON object as docs/record.schema.json describes",
                "Remove the line or measure again with `kbt run`",
            ) from error
