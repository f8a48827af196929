"""What is found out once for all cells that use torch.compile."""

import sys

import pytest
from workspace import MEASURING, WRITE

from kernels_bench_tools.run.environment import vectors
from kernels_bench_tools.run.environment.base import CurrentEnvironment

CELL = f"# torch.compile\nimport os\n{WRITE}print(os.environ.get({vectors.VARIABLE!r}))"


@pytest.mark.parametrize(("cells", "printed"), [(vectors.WORTHWHILE, "1"), (1, "None")])
def test_probes_are_compiled_once_for_several_cells_that_use_torch_compile(
    workspace, monkeypatch, cells, printed
):
    asked = []
    monkeypatch.setattr(vectors, "supported", lambda python, *_: asked.append(python) or True)
    for number in range(cells):
        workspace.cell(f"op/impls/x{number}.md", CELL, MEASURING)
    workspace.build()

    assert workspace.text(workspace.result("op/impls/x0.md").stdout).split() == [printed]
    assert asked == ([sys.executable] if cells > 1 else [])


def test_an_environment_without_torch_or_a_cell_of_ones_own_setting_is_not_asked(monkeypatch):
    variables = CurrentEnvironment().variables
    monkeypatch.setattr(vectors, "judge_paths", lambda _: [])
    assert not vectors.supported(sys.executable, variables, None)
    monkeypatch.setattr(vectors, "judge_paths", lambda _: sys.path)
    monkeypatch.setenv(vectors.VARIABLE, "0")
    assert not vectors.supported(sys.executable, variables, None)
