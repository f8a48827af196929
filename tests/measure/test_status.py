import pytest

from kernels_bench_tools.measure.trial import decide
from kernels_bench_tools.records.record import REJECTING, Flag, Status


@pytest.mark.parametrize(
    ("wrong", "above", "flags", "status"),
    [
        ("off", "too fast", [Flag.STREAM_ESCAPE], Status.INCORRECT),
        ("", "too fast", [Flag.STREAM_ESCAPE], Status.EXCEEDS_PHYSICS),
        ("", "", [], Status.OK),
        *(("", "", [flag], Status.REJECTED if flag in REJECTING else Status.OK) for flag in Flag),
    ],
)
def test_wrong_comes_before_impossible_before_rejected(
    wrong: str, above: str, flags: list[Flag], status: Status
) -> None:
    assert decide(wrong, above, flags, {})[0] is status


def test_a_rejection_names_its_flags_and_their_reasons() -> None:
    flags = [Flag.HOST_BOUND, Flag.STREAM_ESCAPE, Flag.FALLBACK]

    _, failure = decide("", "", flags, {Flag.STREAM_ESCAPE: "3 activities outside"})

    assert failure.msg == "stream_escape: 3 activities outside; fallback"
