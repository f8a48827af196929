import hashlib
from operator import attrgetter
from pathlib import Path

import pytest
from uvnote.parser import parse_frontmatter, parse_markdown

from kernels_bench_tools.notebooks.cell import is_reference
from kernels_bench_tools.notebooks.document import read_notebook, survey_notebook
from kernels_bench_tools.notebooks.project import find_project

REPOSITORY = Path(__file__).parents[2]


LOOKALIKE = ("op/impls/tоrch.md", "оp/impls/torch.md", "op/impls/torch.md", "notes/é.md")


def read(workspace, text):
    return read_notebook(workspace.project, workspace.write("n.md", text))


def test_every_shipped_notebook_reads_as_uvnote_reads_it():
    project = find_project(REPOSITORY)
    cell_fields = ("id", "code", "deps", "outputs", "needs", "collapse_code", "collapse_output")
    front_fields = ("title", "author", "theme", "custom_css", "collapse_code")
    for path in project.notebook_paths():
        notebook = read_notebook(project, path)
        config, cells = parse_markdown(path.read_text(encoding="utf-8"))

        expected = [attrgetter(*cell_fields)(cell) for cell in cells]
        assert [attrgetter(*cell_fields)(cell) for cell in notebook.cells] == expected, path
        assert attrgetter(*front_fields)(notebook.front) == attrgetter(*front_fields)(config), path


def test_every_attribute_is_read(workspace):
    info = "id=x deps=numpy,six outputs=a.csv,b.svg needs=y,../o.md:z,./d/*.jsonl collapsed=true timeout=60"
    workspace.write("o.md", "")
    cell = read(workspace, f"\n```python {info}\npass\n```\n").cells[0]

    assert (cell.id, cell.code, cell.file_line) == ("x", "pass", 2)
    assert (cell.deps, cell.outputs, cell.timeout) == (["numpy", "six"], ["a.csv", "b.svg"], 60)
    assert [is_reference(need) for need in cell.needs] == [False, True, True]
    assert cell.collapse_code
    assert cell.collapse_output


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("~~~python id=a\n1\n~~~\n", ["1"]),
        ("````python id=a\n```\n````\n", ["```"]),
        ("``` python id=a\n1\n```\n", ["1"]),
        ("````markdown\n```python id=a\n1\n```\n````\n", []),
        ("```python3 id=a\n1\n```\n", []),
        ("```pythonx\n1\n```\n", []),
        ("- item\n\n  ```python id=a\n  1\n  ```\n", []),
        ("> ```python id=a\n> 1\n> ```\n", []),
        ("```python id=a\n```\n", []),
        ("```python id=a\ns = '''\n    ```\n'''\n```\n", ["s = '''\n    ```\n'''"]),
    ],
)
def test_fences_are_those_of_commonmark(workspace, text, code):
    assert [cell.code for cell in read(workspace, text).cells] == code


@pytest.mark.parametrize("newline", ["\r\n", "\n"])
def test_only_line_feeds_are_line_endings(workspace, newline):
    code = "x = '\u2028\x0c\x85'"
    text = f"\ufeff---\ntitle: T\n---\n\n```python id=a\n{code}\ny = 1\n```\nEnd\n"
    path = workspace.write("n.md", "")
    path.write_bytes(text.replace("\n", newline).encode())

    notebook = read_notebook(workspace.project, path)

    assert notebook.front.title == "T"
    assert notebook.cells[0].code == f"{code}\ny = 1"
    assert notebook.cells[0].file_line == 5
    assert notebook.digest == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize(
    "block",
    [
        "title: 'T: t'\nauthor: A",
        "title:\ntheme: light",
        "title: >\n  two\n  lines\ncollapse_code: true",
        "custom_css: |\n  a { b: c }\ncollapse_code: no",
    ],
)
def test_front_matter_is_read_as_uvnote_reads_it(workspace, block):
    front = read(workspace, f"---\n{block}\n---\n").front
    config, _ = parse_frontmatter(f"---\n{block}\n---\n")

    assert (front.title, front.author, front.theme) == (config.title or "", config.author, config.theme)
    assert (front.custom_css, front.collapse_code) == (config.custom_css, config.collapse_code)


@pytest.mark.parametrize(
    "text",
    [
        "<!-- ```python id=a -->\nraise\n<!-- ``` -->\n\n```python id=b\n1\n```\n",
        "<!-- ```python id=a -->\nraise\n```\n\n```python id=b\n1\n```\n",
        "# ```python id=a\nraise\n# ```\n\n```python id=b\n1\n```\n",
    ],
)
def test_commented_cells_are_read_as_commented(workspace, text):
    assert [(cell.id, cell.code, cell.commented) for cell in read(workspace, text).cells] == [
        ("a", "raise", True),
        ("b", "1", False),
    ]


def test_a_commented_cell_inside_an_example_is_text(workspace):
    assert read(workspace, "````\n# ```python id=a\n1\n# ```\n````\n").cells == []


@pytest.mark.parametrize("body", ["", "# see the file\n"])
def test_a_script_replaces_the_body(workspace, body):
    workspace.write("scripts/x.py", "print('from file')\n")
    cell = read(workspace, f"```python id=a script=scripts/x.py\n{body}```\n").cells[0]

    assert cell.code == "print('from file')"


def test_a_file_that_is_not_utf8_is_an_error(workspace):
    path = workspace.write("n.md", "")
    path.write_bytes(b"a\nb \xff\n")

    assert "n.md:2: is not UTF-8" in str(survey_notebook(workspace.project, path).problems[0])


def test_a_letter_in_the_path_of_an_implementation_that_looks_like_another_is_an_error(workspace):
    named = {
        name: survey_notebook(workspace.project, workspace.write(name, "")).problems for name in LOOKALIKE
    }

    (problem,) = named.pop(LOOKALIKE[0])
    assert "has the character 'о' (CYRILLIC SMALL LETTER O), which may look like another one. " in str(
        problem
    )
    assert "Expected: A path of ASCII characters. Rename the file or the folder." in str(problem)
    assert [problems != [] for problems in named.values()] == [True, False, False]


def test_platforms_are_read_as_uvnote_does(workspace):
    assert read(workspace, "---\nplatforms: Linux\n---\n").front.platforms == ["linux"]
    assert read(workspace, "---\nplatform: [Darwin]\n---\n").front.platforms == ["darwin"]
    assert read(workspace, "---\nplatforms: []\n---\n").front.platforms == []
    assert read(workspace, "---\ntitle: x\n---\n").front.platforms is None
