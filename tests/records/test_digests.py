"""What records say about the code that they are of."""

from pathlib import Path

import pytest

from kernels_bench_tools.records.code import code_digest, has_other_code
from kernels_bench_tools.records.record import Provenance
from kernels_bench_tools.records.request import CellContext


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


def test_a_record_that_does_not_know_its_code_has_no_other_code() -> None:
    assert has_other_code(Provenance(cell="a", code_digest=code_digest("x = 1")), {"a": "x = 2"})
    assert not has_other_code(Provenance(cell="a"), {"a": "x = 2"})


HEADER = '# /// script\n# dependencies = ["torch"]\n# ///\n'
CODE = "import torch\n\n\ndef f(x):\n    return x\n"


@pytest.mark.parametrize(
    "same",
    [
        HEADER + CODE,
        HEADER.replace("torch", "triton") + CODE,
        "\n" + CODE + "\n\n",
        CODE.replace("torch\n", "torch   \n"),
        CODE.replace("\n", "\r\n"),
        CODE.replace("import", "# Why.\nimport"),
        CODE.replace("return x", "return x  # that is all"),
        CODE.replace("    return", "\n        # Further in than the code.\n    return"),
        CODE.replace("\n\n\n", "\n"),
    ],
)
def test_header_comments_and_blanks_do_not_change_the_code_digest(same):
    assert code_digest(same) == code_digest(CODE)


@pytest.mark.parametrize("other", [CODE.replace("x)", "y)"), CODE.replace("    return", "  return"), ""])
def test_changed_code_has_another_digest(other):
    assert code_digest(other) != code_digest(CODE)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ('x = "# a"', 'x = "# b"'),
        ('x = """\na\n# b\n"""', 'x = """\na\n# c\n"""'),
        ('x = """\na\n\nb\n"""', 'x = """\na\nb\n"""'),
        ('x = f"{y}# a"', 'x = f"{y}# b"'),
    ],
)
def test_comments_and_empty_lines_in_strings_are_code(one, other):
    assert code_digest(one) != code_digest(other)


def test_code_that_does_not_parse_has_a_digest():
    assert code_digest("x = (") != code_digest("x = [")
