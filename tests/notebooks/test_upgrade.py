"""``kbt upgrade`` changes in headers the date, or where this package comes from, and nothing else in the files."""

import pytest

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.notebooks.harness import parse_harness
from kernels_bench_tools.notebooks.header import read_header
from kernels_bench_tools.notebooks.survey import survey_project
from kernels_bench_tools.notebooks.upgrade import (
    apply_changes,
    find_changes,
    find_harness_changes,
    harness_advice,
    write_setting,
)

OLD, NEW = "2026-01-02T00:00:00Z", "2026-11-20T00:00:00Z"
HEADER = (
    f"# /// script\n# dependencies = ['numpy']\n#\n# [tool.uv]\n# exclude-newer = \"{OLD}\" # pinned\n# ///\n"
)


def upgrade(workspace, *targets):
    changes, _ = find_changes(workspace.project, targets, NEW)
    apply_changes(changes)
    return [change.said for change in changes]


def test_only_the_date_changes_byte_for_byte(workspace):
    path = workspace.cell("n.md", HEADER + f"exclude = '{OLD}'", prose=f'exclude-newer = "{OLD}"  \n\n\x0c')
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n") + b"tail\r\n\r\n  ")
    path.chmod(0o640)
    before = path.read_bytes()

    assert upgrade(workspace) == [f"n.md:5: {OLD} -> {NEW}"]
    head, old, tail = before.partition(b'# exclude-newer = "' + OLD.encode())
    assert old
    assert path.read_bytes() == head + b'# exclude-newer = "' + NEW.encode() + tail
    assert path.stat().st_mode & 0o777 == 0o640
    assert upgrade(workspace) == []


def test_only_cells_of_the_selected_notebooks_change(workspace):
    cell = "```python id={}\n" + HEADER + "1\n```\n\n"
    workspace.write(
        "a.md",
        cell.format("one") + "<!-- " + cell.format("off").replace("\n```", "\n``` -->") + cell.format("two"),
    )
    other = workspace.cell("b.md", HEADER)
    before = other.read_bytes()

    assert [said.partition(": ")[0] for said in upgrade(workspace, "a.md")] == ["a.md:1"]
    assert other.read_bytes() == before


PLAIN = """# /// script
# requires-python = ">=3.11"
# dependencies = [
#     'kernels_bench_tools[hub]',  # this package
#     "torch==2.13.0",
# ]
#
# [tool.uv]
# exclude-newer = "2026-11-20T00:00:00Z"
# ///
import torch  # kernels-bench-tools
"""
OF_PATH = '#\n# [tool.uv.sources]\n# kernels-bench-tools = { path = "../../../..", editable = true }\n# ///'
SETTINGS = "[tool.other]\nx = 1\n\n[tool.kbt]  # ours\ntitle = 'Test'\n\n[tool.last]\ny = 2\n"


def set_harness(workspace, value=""):
    if value:
        write_setting(workspace.project, parse_harness(value, workspace.root))
    changes = find_harness_changes(workspace.project)
    apply_changes(changes)
    return [change.said for change in changes]


def test_the_harness_changes_in_headers_only_and_back_byte_for_byte(workspace, monkeypatch):
    monkeypatch.chdir(workspace.root)
    settings = workspace.write("pyproject.toml", SETTINGS)
    path = workspace.cell("op/impls/n.md", PLAIN, prose='"kernels-bench-tools" in prose\x0c')
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
    original = path.read_bytes()
    text = original.decode()

    assert set_harness(workspace) == ["op/impls/n.md:3"]  # the name was not written as pip writes it
    first = path.read_bytes()
    assert first.decode() == text.replace("kernels_bench_tools[hub]", "kernels-bench-tools[hub]")
    assert set_harness(workspace) == []
    assert set_harness(workspace, ".") == ["op/impls/n.md:3"]
    assert path.read_bytes() == first.replace(
        b"# ///\r\nimport", OF_PATH.replace("\n", "\r\n").encode() + b"\r\nimport"
    )
    assert settings.read_text() == SETTINGS.replace("# ours\n", '# ours\nharness = { path = "." }\n')

    for value, dependency, source in [
        ("kernels-bench-tools==0.1.0", "kernels-bench-tools[hub]==0.1.0", {}),
        ("git+https://h/a/b.git@v1", "kernels-bench-tools[hub]", {"git": "https://h/a/b.git", "rev": "v1"}),
        ("https://h/x-1.whl", "kernels-bench-tools[hub]", {"url": "https://h/x-1.whl"}),
    ]:
        set_harness(workspace, value)
        header = read_header(path.read_bytes().decode("utf-8-sig").replace("\r\n", "\n"))
        assert header["dependencies"][0] == dependency
        assert header["tool"]["uv"].get("sources", {}) == ({"kernels-bench-tools": source} if source else {})
    set_harness(workspace, "kernels-bench-tools")
    assert path.read_bytes() == first
    assert settings.read_text() == SETTINGS.replace("# ours\n", '# ours\nharness = "kernels-bench-tools"\n')


def test_other_sources_of_a_header_stay(workspace):
    other = '# [tool.uv.sources]\n# mine = { path = "x" }  # mine\n'
    path = workspace.cell(
        "n.md",
        PLAIN.replace("kernels_bench_tools[hub]", "kernels-bench-tools").replace(
            "# ///\nimport", f"{other}# ///\nimport"
        ),
    )
    before = path.read_bytes()
    workspace.write("pyproject.toml", "[tool.kbt]\nharness = { git = 'https://h/a', rev = 'v1' }\n")
    set_harness(workspace)

    entry = '# kernels-bench-tools = { git = "https://h/a", rev = "v1" }\n'
    assert path.read_text() == before.decode().replace(other, other.replace("]\n", f"]\n{entry}"))
    workspace.write("pyproject.toml", "[tool.kbt]\n")
    set_harness(workspace)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("change", "lines"),
    [
        (upgrade, "# [tool]\n# uv = { exclude-newer = '2026-01-02' }\n"),
        (upgrade, "# [tool.uv]\n# exclude-newer = 2026-01-02\n"),
        (set_harness, "# [tool.uv]\n# sources = { kernels-bench-tools = { path = 'x' } }\n"),
        (set_harness, "# [tool.uv]\n# sources.kernels-bench-tools.path = 'x'\n"),
    ],
)
def test_what_has_no_line_of_its_own_is_an_error(workspace, change, lines):
    path = workspace.cell("n.md", f"# /// script\n# dependencies = ['kernels-bench-tools']\n{lines}# ///\n")
    before = path.read_bytes()

    with pytest.raises(KbtError, match=r"n\.md:3: the header of cell 'a' cannot be changed"):
        change(workspace)
    assert path.read_bytes() == before


def test_notebooks_with_another_harness_are_named_once(workspace):
    header = (
        '# /// script\n# dependencies = ["kernels-bench-tools==0.1.0", "kernels-bench-tools-more"]\n# ///\n'
    )
    cells = "".join(f"```python id={name}\n{header}```\n\n" for name in "ab")
    workspace.write("n.md", cells)
    workspace.cell("m.md", header.replace("==0.1.0", ""))

    (line,) = harness_advice(workspace.project, survey_project(workspace.project))
    assert line.startswith("n.md:1: cell 'a' does not take this package from \"kernels-bench-tools\"")


@pytest.mark.parametrize(
    "url",
    [
        *("https://TOKEN@h/a.git", "git+https://me:TOKEN@h/a.git@v1", "ssh://me:TOKEN@h/a"),
        *("https://h/TOKEN/simple/a.whl", "https://h/a.whl?token=TOKEN", "https://h/basic/TOKEN/a.git"),
    ],
)
def test_an_address_with_a_credential_is_refused_and_not_repeated(workspace, url):
    workspace.write("pyproject.toml", f"[tool.kbt]\nharness = {{ git = '{url}' }}\n")
    for refused in (lambda: parse_harness(url, workspace.root), lambda: workspace.project):
        with pytest.raises(KbtError, match="token") as caught:
            refused()
        assert "TOKEN" not in str(caught.value)
    assert parse_harness("ssh://git@h/a.git@v1", workspace.root).source["rev"] == "v1"
