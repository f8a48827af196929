"""Any text is read as a notebook, or rejected with an error in one line, without a traceback.

``KBT_FUZZ_EXAMPLES=10000 pytest tests/notebooks/test_fuzz.py`` tries more notebooks.
"""

import os
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.notebooks.document import read_notebook
from kernels_bench_tools.notebooks.project import Project
from kernels_bench_tools.notebooks.survey import survey_project
from kernels_bench_tools.text import words

EXAMPLES = int(os.environ.get("KBT_FUZZ_EXAMPLES", "300"))

# Known to confuse parsers: other line endings, marks, halves of characters, NULs.
STRANGE = st.sampled_from([*"\u2028\u2029\x85\x0c\x0b\x00\r\ufeff\u200b\u202e\t𝒳", "\r\n", "\x1b[31m"])
WORDS = st.one_of(
    STRANGE, st.text(max_size=12), st.integers().map(str), st.sampled_from(["a", "x.md", "..", "*", "é"])
)
NAMES = st.sampled_from(
    words("id deps outputs needs depends timeout script collapsed collapse-code outptus =")
)
VALUES = st.one_of(
    WORDS,
    st.sampled_from(
        words("""
    a,b,,a ./x.md:a ./*.md:b ../../../x.md x.jsonl **/*.jsonl [ [] 0 -1 ٣ /etc/passwd ../x.py . n.md a\\b true
    """)
    ),
    st.sampled_from(["9" * 5000, "x" * 300]),
)
ATTRIBUTES = st.lists(st.tuples(NAMES, VALUES).map("=".join), max_size=5).map(" ".join)
KEYS = st.sampled_from(
    words("title requires platforms links baseline family theme widgets titel custom_css null 1")
)
PLAIN_YAML = """\
[cuda]|{a: b}|[[[[|&a [*a]|&a {b: *a}|!!python/object/apply:os.system [id]|2026-11-20|~|'|<<: *x|{[1]: 2}|{? {a: 1} : 2}|1e999
.nan|0x|2026-99-99|12:30:99|!!binary ///|!!timestamp x"""
YAML = st.one_of(
    WORDS, st.sampled_from([*PLAIN_YAML.replace("\n", "|").split("|"), "|\n  text", "[" * 3000, "9" * 5000])
)
FRONT = st.lists(st.tuples(KEYS, YAML).map(": ".join), max_size=5).map(
    lambda lines: "\n".join(["---", *lines, "---", ""])
)
HEADER = st.sampled_from(
    [
        "# /// script\n# dependencies = []\n# ///",
        "# /// script\n# dependencies = [\n# ///",
        "# /// script\n# ///",
        "# /// script\n# dependencies = 3\n# [tool]\n# uv = 3\n# ///",
        "# /// script\n# [tool.uv.sources]\n# x = { path = '../../../../../../..' }\n# ///",
        "# /// script\n# [tool.uv.sources]\n# x = { path = '\\u0000' }\n# ///",
        '# /// script\n# [tool.uv.sources]\n# x = { path = "\\u0000" }\n# ///',
        "# /// script\n# a = 1\n# ///\n# /// script\n# ///",
        "# /// script\n# a = " + "[" * 3000 + "\n# ///",
        "get_kernel('a/b')",
        "get_kernel(",
        "get_kernel('a/b', version=" + "(" * 300 + ")",
        "x = " + "-" * 20_000 + "1\nget_kernel('a')",
        "import kernels_bench_tools",
    ]
)
CODE = st.lists(
    st.one_of(HEADER, WORDS, st.sampled_from(["```", "~~~", "    ```", "'''\n```\n'''"])), max_size=4
).map("\n".join)
OPENING = st.sampled_from(
    [
        "```python",
        "````python",
        "~~~python",
        "``` python",
        "```python3",
        "   ```python",
        "> ```python",
        "- ```python",
        "<!-- ```python",
        "# ```python",
        "### ```python",
        "\t```python",
        "```{python}",
    ]
)
CLOSING = st.sampled_from(["```", "````", "~~~", "``` -->", "# ```", "<!-- ``` -->", "", "> ```"])
CELL = st.tuples(OPENING, ATTRIBUTES, CODE, CLOSING).map(
    lambda parts: f"{parts[0]} {parts[1]}\n{parts[2]}\n{parts[3]}"
)
PROSE = st.one_of(
    st.text(max_size=40),
    STRANGE,
    st.sampled_from(
        ["![artifact:x.svg]", "<script>", "[" * 500, "> " * 300, "x" * 200_000, "* " * 500, "\n" * 500, "$$"]
    ),
)
NOTEBOOK = st.tuples(st.one_of(FRONT, PROSE), st.lists(st.one_of(CELL, PROSE), max_size=6)).map(
    lambda parts: parts[0] + "\n".join(parts[1])
)
# Half of a character cannot be written as UTF-8; then the file is not UTF-8.
BYTES = st.one_of(NOTEBOOK.map(lambda text: text.encode("utf-8", "surrogatepass")), st.binary(max_size=200))


@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize="KBT_FUZZ_EXAMPLES" not in os.environ,
    database=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
@pytest.mark.timeout(0 if EXAMPLES > 300 else 300)
@given(st.lists(BYTES, min_size=1, max_size=2))
def test_any_notebook_is_read_or_rejected_in_one_line(texts):
    with tempfile.TemporaryDirectory() as name:
        root = Path(name).resolve()
        project = Project(root=root, title="t", patterns=("**/*.md",))
        for folder, text in zip(["op/impls", "op/results"], texts, strict=False):
            (root / folder).mkdir(parents=True)
            (root / folder / "n.md").write_bytes(text)
        for path in project.notebook_paths():
            try:
                read_notebook(project, path)
            except KbtError:
                continue
        survey = survey_project(project)
        problems = survey.problems()
        assert all(isinstance(problem, KbtError) for problem in problems)
        survey.advice()
        if not problems:
            for node in survey.graph.nodes.values():
                assert root in node.notebook.script_path(node.cell).resolve().parents
