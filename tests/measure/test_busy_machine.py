"""A busy machine: what other processes do to a CPU's times is measured again, or flagged."""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from subprocess import PIPE, Popen

import pytest
import torch

from kernels_bench_tools.measure.timing.cpu import CoreWaits
from kernels_bench_tools.measure.timing.measure import TimingResult, measure
from kernels_bench_tools.records.record import Flag


@contextmanager
def busy_processes(seconds: float = 120.0) -> Iterator[None]:
    """Keep every core busy twice, for so many seconds or until the block ends."""
    program = f"import time\nend = time.monotonic() + {seconds}\nprint(flush=True)\nwhile time.monotonic() < end: pass"
    with ExitStack() as stack:
        for _ in range(2 * len(os.sched_getaffinity(0))):
            process = stack.enter_context(Popen([sys.executable, "-c", program], stdout=PIPE))
            stack.callback(process.kill)
            process.stdout.readline()  # Python's start takes longer than a sample if other tests run
        yield


def idle_share() -> float:
    """Return the share of the cores' time that nothing used, over half a second of rest."""

    def times() -> tuple[int, int]:
        found = [int(number) for number in Path("/proc/stat").read_text().partition("\n")[0].split()[1:9]]
        return found[3] + found[4], sum(found)

    idle, total = times()
    time.sleep(0.5)
    now_idle, now_total = times()
    return (now_idle - idle) / max(now_total - total, 1)


def time_a_matmul() -> TimingResult:
    x = torch.randn(768, 768)  # 30 calls of a smaller one fit into a time slice, and their median is right
    return measure(torch.matmul, [(x, x)], "cpu")


def test_a_row_of_a_busy_machine_is_flagged_with_the_reason() -> None:
    start = time.monotonic()
    with busy_processes():
        found = time_a_matmul()

    assert Flag.DISTURBED in found.flags
    assert "of the time for a core" in found.note
    assert time.monotonic() - start < 30


def test_a_disturbed_row_is_measured_again_and_not_flagged_if_the_machine_is_quiet_then() -> None:
    if idle_share() < 0.9:
        pytest.skip("other processes use this machine")
    with busy_processes(seconds=1.0):
        found = time_a_matmul()
    if Flag.DISTURBED in found.flags and idle_share() < 0.9:
        pytest.skip("other processes use this machine")

    assert Flag.DISTURBED not in found.flags


def test_a_thread_that_waits_for_another_one_does_not_wait_for_a_core() -> None:
    def waited() -> bool:
        waits = CoreWaits(os.getpid())
        time.sleep(0.2)
        return waits.read(1).disturbed

    assert not all(waited() for _ in range(10))  # other processes may have the core when it wakes up
