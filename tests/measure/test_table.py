from __future__ import annotations

import pytest

from kernels_bench_tools.measure.table import format_ms


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0019846, "0.001985"), (0.1984, "0.1984"), (12.3456, "12.35"), (1234.4, "1234"), (56789.0, "56789")],
)
def test_times_have_four_significant_digits(value: float, text: str) -> None:
    assert format_ms(value) == text
