"""How long cells are expected to take."""

from workspace import MEASURING, WRITE

from kernels_bench_tools.run.build import BuildOptions, build
from kernels_bench_tools.run.progress import Progress
from kernels_bench_tools.run.schedule import MEASURING_SECONDS, OTHER_SECONDS


class Expected(Progress):
    def build_started(self, expected):
        self.seconds = dict(expected)


def expected(workspace, processes=1):
    progress = Expected()
    build(workspace.project, [], BuildOptions(environment="current", processes=processes), progress)
    return progress.seconds


def test_a_cell_is_expected_to_take_as_long_as_before_else_as_its_kind(workspace):
    workspace.cell("op/impls/x.md", f"import time; time.sleep(0.4)\n{WRITE}", MEASURING)
    workspace.cell("op/results/c.md", "print(1)", "id=combine needs=../impls/*.md:a")
    assert expected(workspace) == {
        "op/impls/x.md:a": MEASURING_SECONDS,
        "op/results/c.md:combine": OTHER_SECONDS,
    }
    before = workspace.build().finished["op/impls/x.md:a"].seconds
    workspace.cell("op/impls/x.md", WRITE, MEASURING)
    workspace.cell("op/impls/y.md", WRITE, MEASURING)

    seconds = expected(workspace)

    assert seconds["op/impls/x.md:a"] == before >= 0.4
    assert seconds["op/impls/y.md:a"] == MEASURING_SECONDS
    assert expected(workspace) == {}
