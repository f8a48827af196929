import pytest

from kernels_bench_tools.measure.trial import decide
from kernels_bench_tools.records.record import REJECTING, Flag, Status


def test_incorrect_comes_before_above_the_roofline_before_rejected() -> None:
    rejecting = [Flag.STREAM_ESCAPE]

    assert decide("off", "too fast", rejecting, {})[0] is Status.INCORRECT
    assert decide("", "too fast", rejecting, {})[0] is Status.EXCEEDS_PHYSICS
    assert decide("", "", rejecting, {})[0] is Status.REJECTED
    assert decide("", "", [], {}) == (Status.OK, None)


@pytest.mark.parametrize("flag", Flag)
def test_only_rejecting_flags_change_the_status(flag: Flag) -> None:
    expected = Status.REJECTED if flag in REJECTING else Status.OK

    assert decide("", "", [flag], {})[0] is expected


def test_a_rejection_names_its_flags_and_their_reasons() -> None:
    flags = [Flag.HOST_BOUND, Flag.STREAM_ESCAPE, Flag.FALLBACK]

    _, failure = decide("", "", flags, {Flag.STREAM_ESCAPE: "3 activities outside of their call: gemm"})

    assert failure.msg == "stream_escape: 3 activities outside of their call: gemm; fallback"
