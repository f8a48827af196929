from __future__ import annotations

import subprocess
import sys


def test_the_time_since_the_start_of_the_process() -> None:
    program = (
        "import time; time.sleep(0.3)\n"
        "from kernels_bench_tools.measure.timing.quantities import since_process_start_ms as since\n"
        "first = since(); time.sleep(0.2); print(first, since())"
    )

    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    first, second = map(float, done.stdout.split())

    assert 300 <= first < 60_000
    assert second - first >= 190
