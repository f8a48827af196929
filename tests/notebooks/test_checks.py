import json
import time
from itertools import chain

import pytest
from workspace import MEASURING, WRITE

from kernels_bench_tools.notebooks.survey import (
    NotebooksError,
    cell_problems,
    module_problems,
    survey_project,
)

CELL = "```python id=a\n1\n```\n"


def problems(workspace, text):
    workspace.write("n.md", text)
    return [str(problem) for problem in survey_project(workspace.project).problems()]


LAUGHS = "".join(f"a{n}: &a{n} [{f'*a{n - 1}, ' * 9}]\n" for n in range(1, 9))
MERGES = "".join(f"m{n}: &m{n}\n  <<: [{f'*m{n - 1}, ' * 9}]\n" for n in range(1, 9))


def fence(attributes, code="1"):
    return f"```python {attributes}\n{code}\n```\n"


def header(*lines):
    return "".join(f"# {line}\n" for line in ("/// script", *lines, "///"))


@pytest.mark.parametrize(
    ("text", "said"),
    [
        # What would take long to read.
        pytest.param(f"---\na0: &a0 x\n{LAUGHS}---\n", "n.md:3: the front matter has an alias", id="aliases"),
        pytest.param(
            f"---\nm0: &m0 {{a: b}}\n{MERGES}---\n", "n.md:4: the front matter has an alias", id="merges"
        ),
        ("---\na: &a [*a]\n---\n", "n.md:2: the front matter has an alias"),
        pytest.param(
            f"---\ntitle: {'[' * 3_000}\n---\n",
            "n.md:2: the front matter is more than 20 levels deep",
            id="deep",
        ),
        pytest.param(
            f"---\ntitle: {'x' * 200_000}\n---\n",
            "n.md:1: the front matter has more than 100000 characters",
            id="long",
        ),
        pytest.param(
            "# ```python id=a\n1\n# ```\n" * 1_000,
            "n.md: has more than 100 commented-out cells",
            id="commented",
        ),
        *(
            pytest.param(f"---\n{lines}\n---\n", f"n.md:2: the front matter has {what}", id=f"yaml-{name}")
            for name, lines, what in (
                ("hexadecimal", f"title: 0x{'1' * 5_000}", "a number of over 100 digits"),
                ("base-60", f"title: !!int '{'1:' * 40_000}1'", "a number of over 100 digits"),
                ("keys", f"requires: [{'a, ' * 8_000}]", "more than 1000 keys"),
            )
        ),
        *(
            pytest.param(
                fence("id=a", header(line)), f"its header is not valid TOML: {what}", id=f"toml-{name}"
            )
            for name, line, what in (
                (
                    "one-key",
                    f"{'.'.join('a' * 8_000)} = 1",
                    "a key has more than 50 parts (at line 3, column 3)",
                ),
                ("quoted", f"""[{'"a" . ' * 8_000}b]""", "a key has more than 50 parts"),
                ("keys", f"a = [{'1, ' * 8_000}]", "it has more than 1,000 values"),
                ("hexadecimal", f"requires-python = 0x{'1' * 5_000}", "a number has more than 64 bits"),
                ("deep", f"a = {'[' * 100}{']' * 100}", "it is nested too deeply"),
            )
        ),
        pytest.param("words words\n" * 100_000, "n.md: has 1,200,000 bytes", id="prose"),
        ("---\ntitle: [x\n---\n", "n.md:3: the front matter is not valid YAML"),
        ("---\n- a\n---\n", "n.md:2: the front matter is a list"),
        ("---\ntitle: x\nplatfroms: [linux]\n---\n", "Did you mean 'platforms'?"),
        ("---\ntitle: 3\n---\n", "n.md:2: title is 3"),
        ("---\nbaseline: maybe\n---\n", "n.md:2: baseline is 'maybe'"),
        ("---\nrequires: [cudda]\n---\n", "Did you mean 'cuda'?"),
        ("---\nexpect: {incorect: why}\n---\n", "n.md:2: expect has 'incorect'"),
        ("---\nexpect: {ok: why}\n---\n", "n.md:2: expect has 'ok'"),
        ("---\nexpect: {incorrect: ' '}\n---\n", "n.md:2: expect has no reason"),
        ("---\ntitle: x\n", "n.md:1: the front matter is not closed"),
        (fence("id=a outptus=x.svg"), "n.md:1: unknown attribute 'outptus'. Did you mean 'outputs'?"),
        (fence("id=a timeout=abc"), "n.md:1: timeout=abc is invalid"),
        (fence("id=a timeout=0"), "timeout=0 is invalid"),
        (fence("id = a"), "'id' is not an attribute"),
        (fence("id=a id=b"), "id= is given twice"),
        (CELL + CELL, "n.md:4: the id 'a' is already used by the cell in line 1"),
        (fence("id=a needs=b") + fence("id=bb"), "needs=b names no cell of this notebook"),
        (fence("id=a needs=./x.md:a"), "needs=./x.md:a names no notebook"),
        (fence("id=a needs=../x.md:a"), "needs=../x.md:a is outside the project"),
        (fence("id=a needs=./x.jsonl"), "needs=./x.jsonl names no file"),
        (fence("id=a needs=b") + fence("id=b needs=a"), "depend on each other in a cycle"),
        (fence("id=../../x"), "id=../../x is invalid"),
        (fence("id=.x"), "id=.x is invalid"),
        (fence("id=a outputs=/etc/x"), "outputs=/etc/x is outside the cell's folder"),
        (fence("id=a outputs=x/../../y"), "is outside the cell's folder"),
        (fence("id=a deps=x@https://u:p@h/x.whl"), "password or token"),
        (fence("id=a", header("[tool.uv]", "index-url = 'https://h/simple?token=abc'")), "password or token"),
        (fence("id=a script=../../etc/passwd"), "is outside the project"),
        (fence("id=a script=a\0b.py"), "script=a\ufffdb.py is outside the project"),
        (fence("id=a script=nothing.py"), "script=nothing.py cannot be read"),
        ("```python id=a\n1\n", "n.md:1: this fence is never closed"),
        ("```python id=a\n1\n````\n~~~\n", "n.md:4: this fence is never closed"),
        (fence("id=a deps=six", header("dependencies = []")), "both deps= and a header"),
        (fence("id=a", header("dependencies = [")), "its header is not valid TOML"),
        (fence("id=a", header(f"dependencies = {'[' * 50_000}")), "its header is not valid TOML"),
        ("# ```python id=c\n1\n# ```\n\n" + fence("id=a needs=c"), "is a commented-out cell"),
    ],
)
def test_an_error_has_the_line_and_is_found_at_once(workspace, text, said):
    started = time.monotonic()
    found = problems(workspace, text)

    assert time.monotonic() - started < 20
    assert len(found) == 1, found
    assert said in found[0]
    assert "\n" not in found[0]


def test_cells_with_the_same_script_path_are_an_error(workspace):
    workspace.cell("x__y.md", "1", "id=z")
    workspace.cell("x.md", "1", "id=y__z")

    assert "gives the same script name" in str(survey_project(workspace.project).problems()[0])


def test_nothing_runs_if_a_target_is_a_notebook_with_errors(workspace):
    workspace.cell("a.md", "open('x.txt', 'w')")
    workspace.cell("b.md", "1", "id=a timeout=x needs=./c.md")
    workspace.cell("c.md", "1", "id=a timeout=y")

    with pytest.raises(NotebooksError) as caught:
        workspace.build("b.md", "a.md")

    assert [problem.where for problem in caught.value.problems] == ["b.md:3", "c.md:3"]
    assert workspace.recorder.started == []


MISTAKES = [
    [
        "```python id=a outputs=op.jsonl\n1\n",
        "---\nbasline: [\n---\n```python id=a outputs=op.jsonl\n1\n```\n",
        "```python id=a outputs=op.jsonl\n# /// script\n# dependencies = [\n# ///\n1\n```\n",
        "```python id=a outputs=op.jsonl needs=b\n1\n```\n",
    ],
    ["```text\n"],
    ["```python id=a outputs=op.jsonl needs=../results/c.md:combine\n1\n```\n"],
]


@pytest.mark.parametrize("texts", MISTAKES, ids=["cells", "no cell", "circle"])
def test_a_notebook_with_a_mistake_costs_itself_only(workspace, texts):
    workspace.cell("op/impls/good.md", WRITE, MEASURING)
    for number, text in enumerate(texts):
        workspace.write(f"op/impls/wrong{number}.md", text)
    show = "import json, os\nneeds = json.load(open(os.environ['KBT_NEEDS']))['cells']\n"
    show += "print(*(one['status'] for one in needs))"
    workspace.cell("op/results/c.md", show, "id=combine needs=../impls/*.md:a")

    told = workspace.build()

    problems = [str(one) for one in survey_project(workspace.project).problems()]
    assert len(problems) >= len(texts)
    assert told.notes == [f"left out: {one}" for one in problems]
    assert [*chain(*workspace.run.left_out.values())] == problems
    assert {*workspace.run.left_out} <= {*workspace.run.selected}
    assert "op/impls/good.md:a" in told.started
    if texts is MISTAKES[0]:
        seen = "ok invalid invalid invalid invalid\n"
        assert workspace.text(workspace.result("op/results/c.md", "combine").stdout) == seen
        assert workspace.build().started == []


def test_check_advises_to_pin_a_date(workspace):
    dated = (
        '# /// script\n# dependencies = ["six"]\n# [tool.uv]\n# exclude-newer = "2026-01-01T00:00:00Z"\n# ///'
    )
    undated = '# /// script\n# dependencies = ["six"]\n# ///'
    workspace.cell("dated.md", dated)
    workspace.cell("undated.md", undated)
    workspace.cell("deps.md", "1", "id=a deps=six")
    workspace.cell("bare.md", "1")

    (advice,) = survey_project(workspace.project).advice()

    assert advice.startswith("deps.md:3: ")
    assert advice.endswith(" Also undated.md:3.")


CALL = "from kernels_bench_tools import run_benchmark\nrun_benchmark('softmax', abs)"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("- item\n\n  ```python id=a\n  1\n  ```\n", ":3: a python fence in a list"),
        (
            "```py id=a\n1\n```\n",
            ":1: this fence is an example, not a cell. Write ```python if it should run.",
        ),
        ("```Python id=a\n1\n```\n", ":1: this fence is an example, not a cell."),
        (
            "```python\n1\n```\n```py\n1\n```\n~~~text\nx\n~~~\n",
            ":1: a python fence without `id=` runs as a cell.",
        ),
        (f"```python id=a\n{CALL}\n```\n", ":1: the cell calls run_benchmark, but has no `outputs=`"),
        (
            "```python id=a outputs=op.jsonl\n```\n",
            ": has no cell with code, so this implementation is not measured",
        ),
    ],
)
def test_what_is_allowed_but_not_recommended_is_noted(workspace, text, said):
    workspace.write("op/impls/n.md", text)
    comment = CALL.replace("\n", "\n# ")
    fences = f"```py\n1\n```\n\n```pycon id=a\n1\n```\n\n```python id=b\n{comment}\n```\n"
    workspace.write("op/index.md", f"Only text.\n\n{fences}")

    advice = survey_project(workspace.project).advice()

    assert advice[0].startswith(f"op/impls/n.md{said}")
    assert not any("index" in line for line in advice)


@pytest.mark.parametrize(
    ("code", "said"),
    [
        ("x = 1\ndef f(:\n    pass\n", "n.md:3: the code is not valid Python: invalid syntax"),
        ("x = 1\nreturn x\n", "n.md:3: the code is not valid Python: 'return' outside function"),
        (f"x = {'-' * 100_000}1\n", "n.md:1: the code is not valid Python: it is nested too deeply"),
        (header('dependencies = "torch"'), "n.md:3: dependencies is 'torch'"),
        (header("dependencies = [", '  "torch=2.8",', "]"), "n.md:4: 'torch=2.8' is not a requirement"),
        (header('requires-python = "3.11"'), "n.md:3: requires-python is '3.11'"),
        (header('dependancies = ["numpy"]'), "Did you mean 'dependencies'?"),
        (header("[tool.uv]", 'exclude-newr = "2026-01-01"'), "n.md:4: unknown key 'exclude-newr'"),
        ("# /// script\n# dependencies = []\nimport x\n", "n.md:2: `# /// script` begins a header"),
        ("#/// scripts\n# dependencies = []\n# ///\n", "n.md:2: `#/// scripts` does not begin a header"),
        ("# dependencies = []\n# ///\n", "n.md:3: `# ///` ends a header that does not begin"),
        (header("[tool.uv]", 'exclude-newer = "soon"'), "n.md:4: exclude-newer is 'soon'"),
        (header("[tool.uv.sources]", 'six = "1"'), "n.md:4: the source of six is '1'"),
        (header("[tool.uv.sources]", 'six = { path = "no/such" }'), "n.md:4: the source of six is 'no/such'"),
        (header("[tool.uv.sources]", 'kernels-bench-tools = { path = "/no" }'), "`kbt upgrade --harness"),
    ],
)
def test_what_would_make_a_cell_fail_is_found_without_running_it(workspace, code, said):
    workspace.write("n.md", f"```python id=a\n{code}```\n")
    survey = survey_project(workspace.project)

    (problem,) = cell_problems(survey.notebooks.values())

    assert said in str(problem)
    assert survey.problems() == []


def test_a_call_for_another_operator_is_found_without_running_it(workspace):
    code = "from kernels_bench_tools import run_benchmark\n# run_benchmark('gelu', f)\nrows = run_benchmark(\n  {!r}, f)"
    for name in ("softmax", "sofmax"):
        workspace.cell(f"softmax/impls/{name}.md", code.format(name), "id=a outputs=a.jsonl")
    survey = survey_project(workspace.project)

    (problem,) = cell_problems(survey.notebooks.values())
    assert str(problem) == (
        "softmax/impls/sofmax.md:6: run_benchmark is called for 'sofmax', but the notebook is in the folder of "
        "'softmax'. Expected: run_benchmark('softmax', ...)."
    )


CELLS = [
    fence("id=config", "WIDTH = 3\nclass Sizes:\n    pass\ndef load():\n    pass"),
    fence("id=bench outputs=op.jsonl", "VALUE = 1"),
    fence("id=between needs=config", "from config import WIDTH"),
    fence("id=random", "VALUE = 1"),
    fence("id=torch", "from torch import nn\nVALUE = nn.Linear(1, 1)"),
    "# ```python id=off\nVALUE = 1\n# ```\n",
]


@pytest.mark.parametrize(
    ("needs", "code", "line", "remedy"),
    [
        ("", "import config", 1, "Write needs=config"),
        ("", "x = 1\nfrom config import WIDTH, Sizes, load", 2, "Write needs=config"),
        ("bench", "import os, config as c\nprint(c.WIDTH)", 1, "Write needs=bench,config"),
        ("", "from config import *", 1, "Write needs=config"),
        ("", "def f():\n    from config import load", 2, "Write needs=config"),
        ("", "import bench\nimport bench", 1, "Move shared code into its own cell"),
        ("config", "import config", None, ""),
        ("between", "import config", None, ""),
        ("", "try:\n    import config\nexcept ImportError:\n    pass", None, ""),
        ("", "import random\nfrom . import config\nfrom .config import WIDTH", None, ""),
        ("", "import use\nimport off\nimport config.part\nimport numpy as config", None, ""),
        ("", "import torch as t\nt.ones(1)", None, ""),  # the package
        ("", "from torch import nn", None, ""),
    ],
)
def test_an_import_of_a_cell_that_is_not_needed_is_found_without_running_it(
    workspace, needs, code, line, remedy
):
    before = "".join(CELLS)
    workspace.write("n.md", before + fence(f"id=use needs={needs}" if needs else "id=use", code))

    found = cell_problems(survey_project(workspace.project).notebooks.values())

    first = before.count("\n") + 1
    assert [problem.where for problem in found] == ([f"n.md:{first + line}"] if line else [])
    assert all(problem.remedy.startswith(remedy) for problem in found)


def test_headers_that_uv_accepts_have_no_problems(workspace):
    packages = [
        "torch==2.8.0",
        "a[b,c]>=1,<2",
        "x @ git+https://h/x.git",
        'y>1; python_version < "3.12"',
        "z (>=1.0)",
    ]
    code = header(
        f"dependencies = {json.dumps(packages)}",
        'requires-python = ">=3.11, <3.14"',
        "[tool.uv]",
        "a = 1",
        'exclude-newer = "30 days"',
        "[tool.uv.sources]",
        'x = [{ index = "a", marker = "b" }, { path = "../../n.md" }]',
        'y = { path = "../../n.md" }',
    )
    workspace.write("n.md", f"```python id=a\n{code}# // note\nprint(1)\n```\n")

    assert cell_problems(survey_project(workspace.project).notebooks.values()) == []


def test_a_mistake_in_the_module_of_an_operator_is_found(workspace):
    workspace.write("operators/op.py", "X = 1\ndef f(:\n")
    workspace.write("operators/_shared.py", "return\n")
    workspace.write("operators/good.py", "X = 1\n")

    assert [str(problem) for problem in module_problems(workspace.project)] == [
        "operators/op.py:2: the code is not valid Python: invalid syntax.",
        "operators/_shared.py:1: the code is not valid Python: 'return' outside function.",
    ]


PAGES = "status method selfcheck STATUS devices/index devices/nvidia-h200 models/index models/llama-3.1-8b"


@pytest.mark.parametrize("name", [*PAGES.split(), "op/models", "op/backward", "devices/impls/mine"])
def test_a_notebook_whose_page_kbt_writes_is_a_problem(workspace, name):
    workspace.cell("op/impls/mine.md", "1")
    workspace.cell(f"{name}.md", "1")

    (problem,) = survey_project(workspace.project).problems()
    page = "devices/index" if "impls" in name else name
    assert (problem.where, f"{page}.html" in problem.what) == (f"{name}.md", True)
    with pytest.raises(NotebooksError):
        workspace.build(f"{name}.md")


def test_other_notebooks_have_pages_of_their_own(workspace):
    for name in ("index", "op/impls/mine", "op/index", "docs2/status", "models/x/impls/mine", "op/notes"):
        workspace.cell(f"{name}.md", "1")

    assert survey_project(workspace.project).problems() == []


@pytest.mark.parametrize(
    ("text", "where", "said"),
    [
        ("\n---\ntitle: T\n---\n", "n.md:2", "this front matter is shown as text"),
        ("  \n\n---\ntitle: T\n---\n", "n.md:3", "this front matter is shown as text"),
        ("---\ntitle: A\nfamily: f\ntitle: B\n---\n", "n.md:4", "title is also in line 2"),
        ("---\nexpect:\n  oom: a\n  oom: b\n---\n", "n.md:4", "oom is also in line 3"),
        ("---\nlinks: {a: b, 'a': c}\n---\n", "n.md:2", "a is also in line 2"),
        ("```{code-cell} python\n1\n```\n", "n.md:1", "a cell of another tool"),
        ("Text\n\n```{python}\n#| echo: false\n1\n```\n", "n.md:3", "a cell of another tool"),
        ("```python {.marimo}\n1\n```\n", "n.md:1", "a cell of another tool"),
        ("```python.marimo\n1\n```\n", "n.md:1", "a cell of another tool"),
    ],
)
def test_what_is_most_likely_meant_otherwise_is_a_note(workspace, text, where, said):
    workspace.write("n.md", text)
    survey = survey_project(workspace.project)
    (advice,) = survey.advice()

    assert advice.startswith(f"{where}: {said}") or (advice.startswith(where) and said in advice)
    assert (survey.problems(), survey.notebooks["n.md"].cells) == ([], [])


@pytest.mark.parametrize(
    "text",
    [
        "---\n\nA rule, and text: more.\n\n---\n",
        "\n\n---\n\nText\n\n---\n",
        "---\nlinks:\n  a: https://a\n  b: https://b\nexpect:\n  oom: a\n---\n",
        "```{note}\nA note.\n```\n",
    ],
)
def test_ordinary_text_is_no_note(workspace, text):
    workspace.write("n.md", text)

    assert survey_project(workspace.project).advice() == []


@pytest.mark.parametrize("before", ["", "---\ntitle: T\n---\n\n", "Text\n\n```python id=first\n1\n```\n\n"])
def test_lines_of_mistakes_in_a_header_are_the_notebooks(workspace, before):
    header = "import os\n# /// script\n# dependencies = []\n# requires-python 3\n# ///"
    text = f"{before}```python id=a\n{header}\n```\n"
    (problem,) = problems(workspace, text)

    line = text[: text.index("# requires-python 3")].count("\n") + 1
    assert f"(at line {line}, column 19)" in problem
