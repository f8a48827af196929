"""What records say about the modules that measured them."""

from pathlib import Path

import pytest

from kernels_bench_tools.records.build import CellContext
from kernels_bench_tools.records.record import Provenance


@pytest.fixture
def digest_of(tmp_path: Path):
    def digest_of(operator: str, **files: str) -> Provenance:
        for name, text in files.items():
            (tmp_path / f"{name}.py").write_text(text)
        return CellContext(operator=operator, operators=str(tmp_path)).provenance()

    return digest_of


def test_a_change_of_an_operators_module_or_of_what_it_shares_changes_its_digest(digest_of):
    first = digest_of("mine", mine="A = 1\n", other="B = 1\n").operator_digest

    assert digest_of("mine", mine="A = 1  # a comment\n", other="B = 2\n").operator_digest == first
    assert digest_of("folder/mine", mine="A = 2\n").operator_digest not in {"", first}
    assert digest_of("mine", mine="A = 1\n", _shared="C = 1\n").operator_digest not in {"", first}


def test_an_operator_of_this_package_has_a_digest_and_one_of_a_cell_has_none(digest_of):
    own = digest_of("layer_norm")

    assert own.operator_digest
    assert own.harness_digest
    assert digest_of("not_there").operator_digest == ""
    assert CellContext().provenance().harness_digest == ""
