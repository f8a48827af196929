"""Which cells share an environment, told from their headers and from where they lie."""

from pathlib import Path

import pytest

from kernels_bench_tools.notebooks.header import read_header
from kernels_bench_tools.run.environment.shared import shared_script

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
    """What stands for a cell of the notebook in this folder, as a path; its own script is in ``.kbt/cells``."""

    def find(code: str, folder: str = "op/impls") -> Path:
        script = tmp_path / folder / ".kbt/cells/n__a.py"
        script.parent.mkdir(parents=True, exist_ok=True)
        return shared_script(code, script, tmp_path, tmp_path / ".kbt/environments")

    return find


def header(path: str = "../../../..") -> str:
    return HEADER.format(path=path)


def test_cells_with_equal_headers_share_whatever_else_they_hold(share):
    assert share(header() + "print(1)") == share("import os\n" + header(), "other/impls")


def test_the_shared_script_asks_for_what_the_cells_ask_for(share, tmp_path):
    text = share(header() + "print(1)").read_text()

    assert "print" not in text
    asked = read_header(text)
    assert asked["requires-python"] == ">=3.11"
    assert asked["dependencies"] == ["six>=1", "mine"]
    assert asked["tool"]["uv"]["exclude-newer"] == "2026-11-20T00:00:00Z"
    assert asked["tool"]["uv"]["sources"] == {"mine": {"path": str(tmp_path), "editable": True}}


def test_one_relative_path_from_two_depths_is_two_sources(share):
    assert share(header()) != share(header(), "op/impls/deeper")


def test_two_relative_paths_to_one_folder_are_one_source(share):
    assert share(header()) == share(header("../../../../../."), "op/impls/deeper")


@pytest.mark.parametrize(
    ("old", "new"),
    [("six>=1", "six>=1.5"), ("3.11", "3.12"), ("11-20", "11-19"), ("true", "false"), ("mine", "thine")],
)
def test_another_header_is_another_environment(share, old, new):
    assert share(header()) != share(header().replace(old, new))


@pytest.mark.parametrize(
    "line",
    [
        'find-links = ["../wheels"]',
        'constraint-dependencies = ["six<2"]',
        'index = [{ name = "x", url = "./simple" }]',
        "something-of-tomorrow = true",
    ],
)
def test_a_setting_that_may_name_a_file_is_not_shared(share, line):
    code = header().replace("# exclude-newer", f"# {line}\n# exclude-newer")

    assert share(code).name == "n__a.py"


@pytest.mark.parametrize(
    "dependency", ["mine @ ../mine.whl", "mine @ file:///${PROJECT_ROOT}/mine.whl", "mine@wheels/mine.whl"]
)
def test_a_dependency_by_a_path_is_not_shared(share, dependency):
    assert share(header().replace("six>=1", dependency)).name == "n__a.py"


@pytest.mark.parametrize("name", ["uv.toml", "pyproject.toml", ".python-version"])
def test_a_folder_with_settings_of_its_own_shares_with_nobody(share, tmp_path, name):
    (tmp_path / "op").mkdir()
    (tmp_path / "op" / name).write_text("")

    assert share(header()).name == "n__a.py"
    assert share(header(), "other/impls").name != "n__a.py"


def test_settings_at_the_root_hold_for_all(share, tmp_path):
    (tmp_path / "pyproject.toml").write_text("")

    assert share(header()).parent.name == "environments"


def test_the_shared_script_is_left_alone_while_it_is_right(share):
    path = share(header())
    before = path.stat().st_mtime_ns
    assert share(header()).stat().st_mtime_ns == before

    path.write_text("# somebody's edit\n")

    assert share(header()) == path
    assert read_header(path.read_text()) is not None
