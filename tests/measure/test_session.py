from __future__ import annotations

from kernels_bench_tools.measure.device.clocks import idle_sampler
from kernels_bench_tools.measure.integrity.guard import Guard
from kernels_bench_tools.measure.session import Session, open_session
from kernels_bench_tools.schema.record import Regime, Work

GIGABYTE = 10**9


def a_session(**ceilings: float) -> Session:
    return Session(device="cpu", clocks=idle_sampler(), guard=Guard("cpu"), ceilings=ceilings)


def copying(size: int) -> Work:
    return Work(bytes_read=size, bytes_written=size, flops=0)


def test_a_time_that_no_memory_can_reach_exceeds_physics() -> None:
    found = a_session(copy=10.0).judge(copying(100 * GIGABYTE), 1.0, "float32")

    assert "GB/s" in found.exceeds


def test_a_ceiling_that_was_measured_too_low_is_measured_again_before_a_time_is_called_impossible() -> None:
    session = a_session(copy=1e-6)

    # 1 GB in 10 s, which the slowest of memories can do.
    found = session.judge(copying(GIGABYTE // 2), 10_000.0, "float32")

    assert found.exceeds == ""
    assert session.ceilings["copy"] > 0.1


def test_nothing_exceeds_ceilings_that_were_not_measured() -> None:
    assert a_session().judge(copying(100 * GIGABYTE), 1.0, "float32").exceeds == ""


def test_a_time_near_that_of_an_empty_kernel_is_the_launch_s() -> None:
    session = a_session(copy=10.0)
    session.sentinels = {"null": [0.002]}

    assert session.judge(copying(1000), 0.006, "float32").regime is Regime.LAUNCH


def test_a_cpu_has_ceilings_if_asked_and_no_sentinels() -> None:
    with open_session("cpu", ceilings=True) as session:
        session.close()

        assert session.ceilings["copy"] > 0
        assert session.sentinels == {}
        assert session.clocks.samples() == []
