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

EXAMPLES = int(os.environ.get("KBT_FUZZ_EXAMPLES", "300"))

WRITTEN = r"""
---\n|\n---\n|title: |requires: |platforms: |links: |baseline: |custom_css: |null: |[cuda]|{a: b}|&a [*a]|<<: *x|{[1]: 2}
!!python/object/apply:os.system [id]|2026-99-99|1e999|!!binary ///|>\n  text|٣|/etc/passwd|a,b,,a|```python |````python
~~~python |``` python |   ```python |> ```python |- ```python |<!-- ```python |# ```python |```{python} |\n```\n|\n````\n
\n~~~\n|\n``` -->\n|\n# ```\n|id=|deps=|outputs=|needs=|timeout=|script=|collapsed=|outptus=|id=a |=|./x.md:a|./*.md:b
../../../x.md|x.jsonl|**/*.jsonl|../x.py|n.md|a\b|true|-1|# /// script\n|# ///\n|# dependencies = []\n|# dependencies = [\n
# [tool]\n# uv = 3\n|# [tool.uv.sources]\n# x = { path = '../../../../..' }\n|# [tool.uv.sources]\n# x = { path = '\u0000' }\n
get_kernel('a/b')\n|get_kernel(|![artifact:x.svg]|<script>|$$|\'
"""
REPEATED = [text * 3000 for text in ("[", "9", "x", "(", "* ", "> ", "\n", "-")]
# Known to confuse parsers: other line endings, marks, NULs.
STRANGE = [*"\u2028\u2029\x85\x0c\x0b\x00\r\ufeff\u200b\u202e\t𝒳", "\r\n", "\x1b[31m"]
PIECES = [
    *(piece.replace("\\n", "\n") for line in WRITTEN.split("\n") for piece in line.split("|")),
    *REPEATED,
    *STRANGE,
]
BEGINNINGS = st.sampled_from(
    ["", "---\n", "```python id=a ", "```python id=b\n1\n```\n\n```python id=a needs=b "]
)
REST = st.lists(st.sampled_from(PIECES) | st.text(max_size=12), max_size=30).map("".join)
NOTEBOOK = st.tuples(BEGINNINGS, REST).map("".join)
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
