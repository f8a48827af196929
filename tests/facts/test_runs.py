"""What a build leaves: facts that several layers read alike."""

from __future__ import annotations

import pytest

from kernels_bench_tools.runs import code_digest

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
    ],
)
def test_header_and_blanks_are_not_part_of_a_cell_s_code(same):
    assert code_digest(same) == code_digest(CODE)


@pytest.mark.parametrize("other", [CODE.replace("x)", "y)"), CODE.replace("    return", "  return"), ""])
def test_other_code_has_another_digest(other):
    assert code_digest(other) != code_digest(CODE)
