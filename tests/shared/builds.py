"""Builds, their notebooks and the times in their records, as short as a test needs them."""

from typing import Any

from devices import H200

from kernels_bench_tools.measure.timing.sampling import Call, summarize
from kernels_bench_tools.records.build import BuildRun, CellRun, NotebookRun, ProjectInfo, Prose
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.notebook import FrontMatter
from kernels_bench_tools.records.record import CacheState, Latency, Timer


def latency(ms: float = 1.0, **fields: Any) -> Latency:
    """Return times of calls that all took as long."""
    given = {"iqr": 0.0, "raw_times": [ms], "reps": 1} | fields
    return Latency(p10=ms, p50=ms, p90=ms, mean=ms, **given)


def measured_latency(*times: float) -> Latency:
    """Return what is kept of a GPU's calls that took these milliseconds."""
    options = {"timer": Timer.CUPTI, "cache": CacheState.READ_FLUSH, "stop_reason": "converged"}
    return summarize([Call(ms) for ms in times], input_sets=3, warmup=1, **options)


def notebook_run(path: str, *blocks: Prose | CellRun, **front: Any) -> NotebookRun:
    """Return a notebook with these blocks; ``front`` are fields of its front matter."""
    return NotebookRun(path=path, digest="", front=FrontMatter(**front), blocks=[*blocks])


def build_of(*notebooks: NotebookRun, device: Device = H200, repository: str = "") -> BuildRun:
    """Return a build that has run these notebooks."""
    project = ProjectInfo(title="Kernels", repository=repository)
    return BuildRun(project=project, device=device, environment="uv", notebooks=[*notebooks])
