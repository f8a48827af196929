"""What a build leaves: facts that several layers read alike."""

import pytest

from kernels_bench_tools.records.build import code_digest

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
