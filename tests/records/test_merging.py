"""How a status ranks, and how a field merges over processes, is declared where each is defined."""

import msgspec
import pytest

from kernels_bench_tools.records.merging import First, declared_merges
from kernels_bench_tools.records.record import Latency, Record, Status, Timing


@pytest.mark.parametrize("kind", [Record, Latency, Timing])
def test_every_field_of_a_record_declares_how_it_merges(kind: type[msgspec.Struct]) -> None:
    assert declared_merges(kind).keys() == {*kind.__struct_fields__}


def test_a_field_that_does_not_declare_it_is_an_error() -> None:
    class Forgotten(msgspec.Struct):
        known: First[int]
        new: int = 0

    with pytest.raises(TypeError, match=r"Forgotten\.new"):
        declared_merges(Forgotten)


def test_every_status_has_a_severity_of_its_own() -> None:
    assert sorted(status.severity for status in Status) == [*range(len(Status))]
