"""A build: every notebook with the results of its cells, in ``.kbt/build.json``, which pages are made from."""

from __future__ import annotations

import msgspec

from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.notebook import FrontMatter, is_implementation
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.text.words import plural


class Prose(msgspec.Struct, kw_only=True, tag="prose"):
    """Markdown between cells."""

    text: str


class CellRun(msgspec.Struct, kw_only=True, tag="cell"):
    id: str
    code: str
    line: int
    """Line of the opening fence in the notebook's file, from 1."""
    digest: str = ""
    """Of all code that its process runs, see :func:`kernels_bench_tools.records.code.code_digest`."""
    collapse_code: bool = False
    collapse_output: bool = False
    status: Status | None = None
    """That of its workloads and its process, the worst one that is not expected.

    None if the cell has not run: it is commented out, or was not selected and has no earlier result.
    """
    reason: str = ""
    workloads: dict[Status, int] = msgspec.field(default_factory=dict)
    """How many workloads have a status, for a cell that measures."""
    disturbed: int = 0
    """How many correct workloads have no rank because other processes kept the machine busy."""
    expected: str = ""
    """Why its status is expected, according to its notebook; empty if it is not."""
    cached: bool = False
    seconds: float = 0.0
    exit_code: int | None = None
    stdout: str = ""
    """Path of its standard output; empty if it printed nothing."""
    stderr: str = ""
    environment_log: str = ""
    artifacts: dict[str, str] = msgspec.field(default_factory=dict)
    """File name to path, sorted by name."""
    unfinished: list[str] = msgspec.field(default_factory=list)
    """Record files of the processes that had ended when the build was interrupted before all of the cell's had."""
    commented: bool = False

    @property
    def counts(self) -> str:
        """How many of its workloads are not correct: ``3 of 12 workloads``, or ``3 incorrect, 1 rejected of 12 workloads``."""
        wrong = {status.label: count for status, count in self.workloads.items() if status is not Status.OK}
        if self.disturbed and self.status is Status.OK:
            wrong["disturbed"] = self.disturbed
        if not wrong:
            return ""
        total = plural(sum(self.workloads.values()), "workload")
        if wrong.keys() == {"disturbed"}:
            return f"{self.disturbed} of {total} disturbed by other programs"
        alone = self.status is not None and wrong.keys() == {self.status.label}
        texts = [str(count) if alone else f"{count} {label}" for label, count in wrong.items()]
        return f"{', '.join(texts)} of {total}"


class NotebookRun(msgspec.Struct, kw_only=True):
    """A notebook with its prose and the results of its cells."""

    path: str
    digest: str
    front: FrontMatter
    blocks: list[Prose | CellRun]

    @property
    def cells(self) -> list[CellRun]:
        return [block for block in self.blocks if isinstance(block, CellRun)]

    @property
    def digests(self) -> dict[str, str]:
        """The digest of each cell's code, by its id."""
        return {cell.id: cell.digest for cell in self.cells}

    @property
    def prose(self) -> str:
        return "\n".join(block.text for block in self.blocks if isinstance(block, Prose))


class ProjectInfo(msgspec.Struct, kw_only=True):
    """The project, as pages show it."""

    title: str
    repository: str = ""
    """URL of the repository, without a trailing slash; empty if it has none."""
    commit: str = ""
    raw_html: bool = False
    """Whether HTML in prose is kept; otherwise it is shown as text."""


class BuildRun(msgspec.Struct, kw_only=True):
    """A build: every notebook of the project, with results of this build or an earlier one, if any."""

    project: ProjectInfo
    device: Device
    environment: str
    """``"uv"`` or ``"current"``."""
    measures: bool = True
    """Whether it runs cells that measure."""
    notebooks: list[NotebookRun]
    selected: list[str] = msgspec.field(default_factory=list)
    """The cells that have a result of this build: its targets and what they need, as ``NOTEBOOK:CELL``. Also notebooks of
    these that are left out."""
    left_out: dict[str, list[str]] = msgspec.field(default_factory=dict)
    """What is wrong with notebooks that are not part of the report."""

    @property
    def measured(self) -> tuple[int, int]:
        """How many implementations have results of this machine, and how many it could measure."""
        impls = [notebook for notebook in self.notebooks if is_implementation(notebook.path)]
        every = [{cell.status for cell in notebook.cells if not cell.commented} for notebook in impls]
        able = [statuses for statuses in every if not statuses <= {Status.UNSUPPORTED}]
        return sum(None not in statuses for statuses in able), len(able)
