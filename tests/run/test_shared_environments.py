"""Which cells share an environment, by their headers and folders."""

from pathlib import Path

import pytest

from kernels_bench_tools.notebooks.header import read_header
from kernels_bench_tools.run.environment.base import UvEnvironment

HEADER = """# /// script
# requires-python = ">=3.11"
# dependencies = ["six>=1", "mine"]
#
# [tool.uv]
# exclude-newer = "2026-11-20T00:00:00Z"
#
# [tool.uv.sources]
# mine = {{ path = "{path}", editable = true }}
# ///
"""


@pytest.fixture
def share(tmp_path: Path):
    """Return the script whose environment a cell in this folder uses; its own is in ``.kbt/cells``."""

    def find(code: str, folder: str = "op/impls") -> Path:
        script = tmp_path / folder / ".kbt/cells/n__a.py"
        script.parent.mkdir(parents=True, exist_ok=True)
        return UvEnvironment().shared_script(code, script, tmp_path / ".kbt")

    return find


def header(path: str = "../../../..") -> str:
    return HEADER.format(path=path)


@pytest.mark.parametrize(
    ("path", "folder", "shared"),
    [
        ("../../../..", "other/impls", True),
        ("../../../..", "op/impls/deeper", False),  # the same words, of another folder
        ("../../../../../.", "op/impls/deeper", True),
    ],
)
def test_cells_with_equal_headers_and_sources_share_an_environment(share, path, folder, shared):
    assert (share(header() + "print(1)") == share("import os\n" + header(path), folder)) is shared


def test_the_shared_script_has_the_header_of_the_cells(share, tmp_path):
    text = share(header() + "print(1)").read_text()

    assert "print" not in text
    asked = read_header(text)
    assert asked["requires-python"] == ">=3.11"
    assert asked["dependencies"] == ["six>=1", "mine"]
    assert asked["tool"]["uv"]["exclude-newer"] == "2026-11-20T00:00:00Z"
    assert asked["tool"]["uv"]["sources"] == {"mine": {"path": str(tmp_path), "editable": True}}


@pytest.mark.parametrize(
    ("old", "new"),
    [("six>=1", "six>=1.5"), ("3.11", "3.12"), ("11-20", "11-19"), ("true", "false"), ("mine", "thine")],
)
def test_a_different_header_is_a_different_environment(share, old, new):
    assert share(header()) != share(header().replace(old, new))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("# exclude-newer", '# find-links = ["../wheels"]\n# exclude-newer'),
        ("# exclude-newer", "# constraint-dependencies = ['six<2']\n# exclude-newer"),
        ("# exclude-newer", '# index = [{ name = "x", url = "./simple" }]\n# exclude-newer'),
        ("# exclude-newer", "# something-of-tomorrow = true\n# exclude-newer"),
        ("six>=1", "mine @ ../mine.whl"),
        ("six>=1", "mine @ file:///${PROJECT_ROOT}/mine.whl"),
        ("six>=1", "mine@wheels/mine.whl"),
    ],
)
def test_a_header_that_may_contain_a_path_is_not_shared(share, old, new):
    assert share(header().replace(old, new)).name == "n__a.py"
