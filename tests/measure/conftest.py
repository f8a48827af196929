from pathlib import Path

import pytest

from kernels_bench_tools.measure.timing.sampling import SamplingLimits


@pytest.fixture
def few_input_sets(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let timed calls rotate through twelve sets of inputs, not through as many as exceed the caches, up to 256."""
    monkeypatch.setattr("kernels_bench_tools.measure.timing.caches.MAX_INPUT_SETS", 12)


@pytest.fixture
def few_samples(monkeypatch: pytest.MonkeyPatch, small_buffers: None) -> None:
    """Let a trial time few calls on the CPU, once."""
    limits = SamplingLimits(warmup_seconds=0.02, sample_seconds=0.05)
    monkeypatch.setattr("kernels_bench_tools.measure.timing.measure.CPU_LIMITS", limits)
    monkeypatch.setattr("kernels_bench_tools.measure.timing.measure.CPU_ATTEMPTS", 1)


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Measure peaks of the CPU with buffers of 4 instead of 256 MiB."""
    monkeypatch.setattr("kernels_bench_tools.measure.device.peaks._CPU_BUFFER_BYTES", (2**22, 2**22))


@pytest.fixture(autouse=True)
def _in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("KBT_CONTEXT", raising=False)
