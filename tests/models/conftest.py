"""What measurements of models in tests have in common."""

from pathlib import Path

import pytest

from kernels_bench_tools.models import phase


@pytest.fixture
def few_samples(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Measure as little as possible, in a folder of the test's own."""
    for name in ("SECONDS", "MODEL_SECONDS"):
        monkeypatch.setattr(phase, name, 0.0)
    monkeypatch.chdir(tmp_path)
