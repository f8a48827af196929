"""What a build leaves for those who read it: the files that layers hand to one another.

CellContext   RUN -> MEASURE      ``KBT_CONTEXT``: who is measured, for which workloads
Needs         RUN -> SUMMARIZE    ``KBT_NEEDS``: the cells and files that a cell asked for
BuildRun      RUN -> PUBLISH      ``.kbt/build.json``: every notebook, its prose and its cells' ends
"""

from __future__ import annotations

import os
import tokenize
from collections.abc import Mapping
from functools import lru_cache
from hashlib import sha256
from io import StringIO
from pathlib import Path

import msgspec

from kernels_bench_tools.file_io import read_struct
from kernels_bench_tools.schema.device import Device
from kernels_bench_tools.schema.record import Provenance, Status

CONTEXT_VARIABLE = "KBT_CONTEXT"
NEEDS_VARIABLE = "KBT_NEEDS"

FORWARD = "fwd"
MODES = (FORWARD, "bwd", "fwd_bwd")
"""What is timed: the forward pass, the backward pass alone, or both."""


class FrontMatter(msgspec.Struct, kw_only=True):
    """The front matter of a notebook: uvnote's keys that we use, then ours."""

    title: str = ""
    author: str = ""
    description: str = ""
    """One sentence for tables and tooltips."""
    family: str = ""
    """Implementations of one origin share it across operators: ``torch``, ``triton``, ``hf-kernels``."""
    baseline: bool = False
    """Whether this implementation divides the operator's speed-ups."""
    requires: list[str] = msgspec.field(default_factory=list)
    """Device kinds, of which one must be here for the cells to run: ``[cuda]``."""
    links: dict[str, str] = msgspec.field(default_factory=dict)
    """Name to URL: source, paper, hub page."""
    platforms: list[str] | None = None
    """Operating systems that run it, lower case; None means all, an empty list none."""
    theme: str = "dark"
    custom_css: str = ""
    collapse_code: bool = False


@lru_cache(maxsize=1024)  # pages ask for that of one cell for each of its rows
def code_digest(code: str) -> str:
    """Return the SHA-256 of a cell's code; its header, comments, empty lines and blanks at line ends are not part of it."""
    return sha256(_without_comments(code).encode()).hexdigest()


def _without_comments(code: str) -> str:
    # By position, since releases of Python divide f-strings differently.
    lines = code.splitlines()
    try:
        tokens = list(tokenize.generate_tokens(StringIO("\n".join(lines)).readline))
    except (tokenize.TokenError, SyntaxError):
        return "\n".join(line.rstrip() for line in lines).strip()
    for token in tokens:
        if token.type == tokenize.COMMENT:
            row, column = token.start
            lines[row - 1] = lines[row - 1][:column]
    ends = {token.start[0] - 1 for token in tokens if token.type == tokenize.NL}
    kept = (line.rstrip() for row, line in enumerate(lines) if line.strip() or row not in ends)
    return "\n".join(kept).strip("\n")


def has_other_code(then: Provenance, code: Mapping[str, str]) -> bool:
    """Return whether a cell has other code now than when something was measured.

    Args:
        then: Where the measurement comes from.
        code: The notebook's cells now: id to code. What is not known has not changed.
    """
    if not then.code_digest or then.cell not in code:
        return False
    return code_digest(code[then.cell]) != then.code_digest


class CellContext(msgspec.Struct, kw_only=True):
    """What a measuring cell is told about itself."""

    operator: str = ""
    implementation: str = ""
    """Id of the implementation: the stem of the notebook's file."""
    notebook: str = ""
    notebook_digest: str = ""
    cell: str = ""
    code_digest: str = ""
    commit: str = ""
    dirty: bool | None = None
    environment: str = ""
    workloads: str = ""
    """Names of workload sets, comma-separated; empty for the device's default."""
    mode: str = FORWARD
    """One of ``MODES``."""
    family: str = ""
    process: int = 0
    """Which of the cell's fresh processes this is, from 0."""
    processes: int = 1
    """How many fresh processes measure this cell."""

    @classmethod
    def load(cls) -> CellContext:
        """Return the context that the runner gave, or an empty one where another runner runs the cell."""
        path = os.environ.get(CONTEXT_VARIABLE)
        return read_struct(Path(path), cls) if path else cls()

    def provenance(self) -> Provenance:
        """Return where a record that this cell leaves comes from, as far as the runner knows."""
        return Provenance(
            notebook=self.notebook,
            notebook_digest=self.notebook_digest,
            cell=self.cell,
            code_digest=self.code_digest,
            commit=self.commit,
            dirty=self.dirty,
            environment=self.environment,
            harness=_own_version(),
        )


class Need(msgspec.Struct, kw_only=True):
    """A cell of another notebook that a cell needs, and how that cell ended."""

    notebook: str
    """Path within the project, with ``/``."""
    cell: str
    front: FrontMatter
    status: Status
    reason: str = ""
    directory: str
    """Absolute path of the folder that holds the cell's artifacts, also those of a failed cell."""


class Needs(msgspec.Struct, kw_only=True):
    """Everything that a cell's ``needs=`` named."""

    project: str
    """Absolute path of the project."""
    notebook: str
    """The notebook whose cell this is, within the project."""
    device: Device
    """The device of this build."""
    cells: list[Need] = msgspec.field(default_factory=list)
    files: list[str] = msgspec.field(default_factory=list)
    """Absolute paths of the data files, such as committed records."""

    @classmethod
    def load(cls) -> Needs:
        """Return what the runner wrote for this cell.

        Raises:
            KeyError: The cell was not started by ``kbt``.
        """
        return read_struct(Path(os.environ[NEEDS_VARIABLE]), cls)


class Prose(msgspec.Struct, kw_only=True, tag="prose"):
    """Markdown between cells."""

    text: str


class CellRun(msgspec.Struct, kw_only=True, tag="cell"):
    """A cell and how its last run ended. Paths are within the project, with ``/``."""

    id: str
    code: str
    line: int
    """Line of the opening fence in the notebook's file, from 1."""
    collapse_code: bool = False
    collapse_output: bool = False
    status: Status | None = None
    """None if the cell has not run: it is commented out, or was not asked for and has no earlier result."""
    reason: str = ""
    """Why it did not end well, in one line."""
    cached: bool = False
    seconds: float = 0.0
    """How long it ran, when it last ran."""
    exit_code: int | None = None
    stdout: str = ""
    """Path of what it printed, within the project; empty if nothing."""
    stderr: str = ""
    environment_log: str = ""
    """Path of what resolving and installing its packages printed."""
    artifacts: dict[str, str] = msgspec.field(default_factory=dict)
    """File name to path, in the order of the names."""
    unfinished: list[str] = msgspec.field(default_factory=list)
    """Paths of the records of processes that had ended when the build was interrupted, where not all of the cell's had."""
    commented: bool = False


class NotebookRun(msgspec.Struct, kw_only=True):
    """A notebook as a page needs it."""

    path: str
    digest: str
    front: FrontMatter
    blocks: list[Prose | CellRun]

    @property
    def cells(self) -> list[CellRun]:
        """The cells, in the order of the text."""
        return [block for block in self.blocks if isinstance(block, CellRun)]


class ProjectInfo(msgspec.Struct, kw_only=True):
    """What pages say about the project."""

    title: str
    repository: str = ""
    """URL of the repository, without a trailing slash; empty if it has none."""
    commit: str = ""
    raw_html: bool = False
    """Whether HTML and scripts in prose reach the page; else they are shown as text."""


class BuildRun(msgspec.Struct, kw_only=True):
    """A whole build: every notebook of the project, run now, earlier or not at all."""

    project: ProjectInfo
    device: Device
    environment: str
    """``"uv"`` or ``"current"``."""
    notebooks: list[NotebookRun]


def _own_version() -> str:
    # Not above: it takes as long to import as the rest of this module, and only cells ask.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("kernels-bench-tools")
    except PackageNotFoundError:  # run from a checkout that is not installed
        return ""
