"""``kbt upgrade`` changes the date in headers, and nothing else in the files."""

from datetime import UTC, datetime

import pytest

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.notebooks.upgrade import apply_changes, find_changes, parse_moment

NOW = datetime(2026, 11, 20, 16, 0, tzinfo=UTC)
OLD, NEW = "2026-01-02T00:00:00Z", "2026-11-20T00:00:00Z"
HEADER = (
    f"# /// script\n# dependencies = ['numpy']\n#\n# [tool.uv]\n# exclude-newer = \"{OLD}\" # pinned\n# ///\n"
)


def upgrade(workspace, *targets):
    changes, _ = find_changes(workspace.project, targets, NEW)
    apply_changes(changes)
    return [(change.where, change.before, change.after) for change in changes]


def test_only_the_date_changes_byte_for_byte(workspace):
    path = workspace.cell("n.md", HEADER + f"exclude = '{OLD}'", prose=f'exclude-newer = "{OLD}"  \n\n\x0c')
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n") + b"tail\r\n\r\n  ")
    path.chmod(0o640)
    before = path.read_bytes()

    assert upgrade(workspace) == [("n.md:10", OLD, NEW)]
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

    assert [where for where, _, _ in upgrade(workspace, "a.md")] == ["a.md:6", "a.md:26"]
    assert other.read_bytes() == before


def test_a_script_shared_by_notebooks_changes_once(workspace):
    script = workspace.write("code/s.py", HEADER + "print(1)\n")
    for name in ("a.md", "b.md"):
        workspace.write(name, "```python id=a script=code/s.py\n```\n")

    assert upgrade(workspace) == [("code/s.py:5", OLD, NEW)]
    assert script.read_text() == HEADER.replace(OLD, NEW) + "print(1)\n"


def test_the_changed_cell_runs_in_the_next_build_and_the_plan_shows_why(workspace):
    from kernels_bench_tools.run.build import BuildOptions
    from kernels_bench_tools.run.plan import plan_build

    workspace.cell("n.md", HEADER)
    workspace.build()
    upgrade(workspace)

    [plan] = plan_build(workspace.project, [], BuildOptions(environment="current"))
    assert plan.changed == ["header"]
    assert workspace.build().started == ["n.md:a"]


def test_cells_without_a_date_are_counted_and_not_changed(workspace):
    path = workspace.cell("n.md", "# /// script\n# dependencies = ['numpy']\n# ///\n")
    workspace.cell("m.md", "print(1)")
    workspace.cell("l.md", "print(1)", "id=a deps=numpy")
    before = path.read_bytes()

    assert upgrade(workspace) == []
    assert find_changes(workspace.project, [], NEW) == ([], 2)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    "line",
    ["# [tool]\n# uv = { exclude-newer = '2026-01-02' }\n", "# [tool.uv]\n# exclude-newer = 2026-01-02\n"],
)
def test_a_date_without_a_line_of_its_own_is_an_error(workspace, line):
    path = workspace.cell("n.md", f"# /// script\n# dependencies = []\n{line}# ///\n")
    before = path.read_bytes()

    with pytest.raises(KbtError, match=r"n\.md:3: the exclude-newer of cell 'a' cannot be changed"):
        upgrade(workspace)
    assert path.read_bytes() == before


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("2026-11-20", "2026-11-20T00:00:00Z"),
        ("2026-11-20T12:30:00Z", "2026-11-20T12:30:00Z"),
        ("2026-11-20T12:30:00+02:00", "2026-11-20T10:30:00Z"),
    ],
)
def test_dates_have_one_format(text, expected):
    assert parse_moment(text, NOW) == expected


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("2026-11-21", "in the future"),
        ("2026-11-20T16:00:01Z", "in the future"),
        ("yesterday", "is not a date"),
        ("2026-02-30", "is not a date"),
        ("", "is not a date"),
        ("2026-11-20T12:30:00", "has no time zone"),
    ],
)
def test_a_future_or_invalid_date_is_rejected(text, what):
    with pytest.raises(KbtError, match=what):
        parse_moment(text, NOW)
