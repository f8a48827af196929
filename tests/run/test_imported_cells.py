"""Cells that import other cells of their notebook by id."""

import json
from pathlib import Path

import pytest
from workspace import RECORD

from kernels_bench_tools.records.code import code_digest


def notebook(*cells):
    return "\n\n".join(f"```python {attributes}\n{code}\n```" for attributes, code in cells)


def printed(workspace, text, environment="current"):
    workspace.write("n.md", text)
    workspace.build(environment=environment)
    run = workspace.result("n.md", "use")
    return workspace.text(run.stdout).split() if run.stdout else run.reason


CONFIG = ("id=config", "WIDTH = 3\nif __name__ == '__main__':\n    print('a script')")


@pytest.mark.parametrize("environment", ["current", "uv"])
def test_a_cell_imports_a_needed_cell(workspace, environment):
    use = ("id=use needs=config", "from config import WIDTH\nprint('width', WIDTH)")

    assert printed(workspace, notebook(CONFIG, use), environment) == ["width", "3"]


@pytest.mark.parametrize(
    ("sibling", "code", "result"),
    [
        (CONFIG, "import config", "ModuleNotFoundError: No module named 'config'"),
        (("id=random", "VALUE = 1"), "import random\nprint(random.__name__, hasattr(random, 'VALUE'))", ["random", "False"]),
        (("id=msgspec", "VALUE = 1"), "import msgspec\nprint(hasattr(msgspec, 'VALUE'))", ["False"]),
    ],
    ids=["not needed", "of the library", "of a package"],
)  # fmt: skip
def test_a_cell_does_not_import(workspace, sibling, code, result):
    needs = "" if sibling is CONFIG else f" needs={sibling[0][3:]}"

    assert printed(workspace, notebook(sibling, (f"id=use{needs}", code))) == result


def test_a_cell_that_measures_is_not_run_again_by_an_import(workspace):
    bench = ("id=bench outputs=x.jsonl", f"open('x.jsonl', 'w').write({json.dumps(RECORD)!r})\nVALUE = 1")
    reason = printed(workspace, notebook(bench, ("id=use needs=bench", "from bench import VALUE")))

    assert reason.startswith("ImportError: cell bench runs a benchmark")


def test_a_change_of_an_imported_cell_runs_the_cell_again(workspace):
    use = ("id=use needs=config", "from config import WIDTH\nprint(WIDTH)")
    printed(workspace, notebook(CONFIG, use))
    changed = ("id=config", CONFIG[1].replace("3", "4"))

    assert printed(workspace, notebook(changed, use)) == ["4"]


def test_the_digest_of_a_measuring_cell_covers_what_it_imports(workspace):
    measuring = ("id=a outputs=x.jsonl needs=config", "import config\nraise ValueError")
    digests = []
    for config in (CONFIG, ("id=config", "WIDTH = 4")):
        workspace.write("op/impls/x.md", notebook(config, measuring))
        workspace.build()
        record = workspace.records("op/impls/x.md", file="x.jsonl")[0]
        digests.append(record["provenance"]["code_digest"])

    assert len({*digests, code_digest(measuring[1])}) == 3


def test_logs_name_imported_cells_without_local_paths(workspace):
    broken = ("id=config", "def fail():\n    raise ValueError('why')")
    printed(workspace, notebook(broken, ("id=use needs=config", "import config\nconfig.fail()")))
    log = Path(workspace.root, workspace.result("n.md", "use").stderr).read_text()

    assert 'File ".kbt/cells/n__use.py", line 2' in log
    assert 'File ".kbt/cells/config.py", line 2' in log
