"""Which committed rows a new measurement replaces."""

import pytest
from made_records import record

from kernels_bench_tools.cli.record import merge_rows
from kernels_bench_tools.records.record import Provenance, Record, Status


def rows(text: str, run: str = "r", earlier: int = 0) -> list[Record]:
    """Return rows of words such as ``a0`` (workload a, process 0), ``a0!`` (failed) and ``a0'`` (of other code)."""
    made = []
    for word in text.split():
        given = {"run": run, "op": "op", "wl": {"name": word[0]}, "process": int(word[1])}
        given |= {"provenance": Provenance(code_digest=word[2:]), "earlier_runs": earlier}
        failed = {"status": Status.OOM, "reason": "m"}
        made.append(record("mine", **given, **(failed if "!" in word else {"p50": 1.0})))
    return made


def words(records: list[Record]) -> str:
    return " ".join(f"{row.workload}{row.process}{row.provenance.code_digest}" for row in records)


@pytest.mark.parametrize(
    ("before", "now", "kept", "taken"),
    [
        ("", "a0 b0!", "", "a0 b0!"),
        ("a0 b0", "a0", "b0", "a0"),
        ("a0 b0", "c0", "a0 b0", "c0"),
        # A failure is recorded only for a workload that was never measured.
        ("a0", "a0!", "a0", ""),
        ("a0!", "a0!", "", "a0!"),
        ("a0!", "a0", "", "a0"),
        # Rows of more processes are kept, unless the code has changed.
        ("a0 a1", "a0", "a0 a1", ""),
        ("a0 a1 b0", "a0 b0", "a0 a1", "b0"),
        ("a0 a1", "a0'", "", "a0'"),
        ("a0 a1", "a0 a1 a2", "", "a0 a1 a2"),
    ],
)
def test_rows_that_are_measured_again_are_replaced(before: str, now: str, kept: str, taken: str) -> None:
    merged = merge_rows(rows(before), rows(now, "again"), force=False)
    forced = merge_rows(rows(before), rows(now, "again"), force=True)

    assert (words(merged.kept), words(merged.taken)) == (kept, taken)
    assert (words(forced.kept), words(forced.taken)) == ("", now)


@pytest.mark.parametrize(("run", "earlier"), [("r", 1), ("again", 2)])
def test_new_rows_count_the_runs_that_they_replace(run: str, earlier: int) -> None:
    before = rows("a0 a1", earlier=1)

    taken = merge_rows(before, rows("a0 a1", run), force=False).taken

    assert [row.earlier_runs for row in taken] == [earlier, earlier]
