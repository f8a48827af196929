"""Files that the runner writes: what a cell measures, what it needs, and ``.kbt/build.json``, the results of a build."""

from __future__ import annotations

import os
import re
import tokenize
from collections.abc import Mapping
from functools import cache, lru_cache
from hashlib import sha256
from io import StringIO
from pathlib import Path
from typing import Any

import msgspec

from kernels_bench_tools.file_io import read_file, read_struct
from kernels_bench_tools.own_process import PACKAGE_FOLDER
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.record import Failure, Provenance, Status
from kernels_bench_tools.records.settings import OPERATORS, find_settings, operator_modules, operator_sources
from kernels_bench_tools.records.trace import TraceWorkload
from kernels_bench_tools.text import plural

CONTEXT_VARIABLE = "KBT_CONTEXT"
NEEDS_VARIABLE = "KBT_NEEDS"

FORWARD = "fwd"
RANDOM = "random:"
"""Beginning of the names of workload sets that are drawn."""
DRAWN_SET = re.compile(rf"{RANDOM}([1-9][0-9]{{0,3}}):([0-9]{{1,9}})(?::([\w.+-]+))?")
"""``random:COUNT:SEED``, or with ``:SETS``: from 1 to 9999 shapes."""
MODES = (FORWARD, "bwd", "fwd_bwd")
"""What is timed: the forward pass, the backward pass or both."""

IMPLEMENTATIONS, RESULTS = "impls", "results"
"""Folders of an operator."""


def operator_of(notebook: str) -> str:
    """Return the id of a notebook's operator: the folder that holds ``impls/`` or ``results/``, else empty.

    >>> operator_of("models/llama-3.1-8b/impls/eager.md"), operator_of("index.md")
    ('models/llama-3.1-8b', '')
    """
    *folders, kind, _ = ["", *notebook.split("/")]
    return "/".join(folders).strip("/") if kind == IMPLEMENTATIONS or is_results(kind) else ""


def is_implementation(notebook: str) -> bool:
    """Return whether a notebook measures an implementation: whether it is in ``impls/``."""
    return notebook.split("/")[-2:-1] == [IMPLEMENTATIONS]


def is_results(folder: str) -> bool:
    """Return whether a folder of this name holds combine notebooks: ``results``, or ``results_linux`` of one platform."""
    return folder == RESULTS or folder.startswith(f"{RESULTS}_")


class FrontMatter(msgspec.Struct, kw_only=True):
    title: str = ""
    author: str = ""
    description: str = ""
    """One sentence for tables and tooltips."""
    family: str = ""
    """Origin of an implementation, the same across operators: ``torch``, ``triton``, ``hf-kernels``."""
    baseline: bool = False
    """Whether speed-ups of the operator are relative to this implementation."""
    requires: list[str] = msgspec.field(default_factory=list)
    """Device kinds that the cells can run on, such as ``[cuda]``; empty for all."""
    links: dict[str, str] = msgspec.field(default_factory=dict)
    """Name to URL: source, paper, Hub page."""
    expect: dict[str, str] = msgspec.field(default_factory=dict)
    """Statuses of workloads that are known to be wrong, each with the reason: they do not fail a build."""
    platforms: list[str] | None = None
    """Operating systems that it runs on, in lower case; None for all, an empty list for none."""
    theme: str = "dark"
    custom_css: str = ""
    collapse_code: bool = False


@lru_cache(maxsize=1024)  # pages need a cell's digest once for each of its rows
def code_digest(code: str) -> str:
    """Return the SHA-256 of a cell's code without its header, comments, empty lines and trailing blanks."""
    return sha256(_without_comments(code).encode()).hexdigest()


def _without_comments(code: str) -> str:
    # By position, because Python versions tokenize f-strings differently.
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
    """Return whether a cell's code has changed since a measurement; ``code`` is the notebook's, by cell id."""
    if not then.code_digest or then.cell not in code:
        return False
    return code_digest(code[then.cell]) != then.code_digest


class OtherCell(msgspec.Struct, frozen=True):
    """A cell that another one runs in its process."""

    implementation: str
    """``operator/implementation``."""
    code: str


TRANSFORMERS = "transformers"


class EffectRequest(msgspec.Struct, kw_only=True, frozen=True):
    model: str
    """Its name, for messages and records."""
    config: dict[str, Any]
    """The content of its ``config.json``, with Hugging Face's names."""
    phases: list[str]
    """Such as ``decode-32``."""
    layers: int = 0
    """How many of its layers there are; 0 for all."""
    framework: str = ""
    """Whose modules compute it: :data:`TRANSFORMERS`, or this project's if empty."""
    others: list[OtherCell] = []
    """Cells whose implementations replace kernels of the same model, in the process of the first."""


class CellContext(msgspec.Struct, kw_only=True):
    """What the runner passes to a measuring cell."""

    operator: str = ""
    implementation: str = ""
    """Id of the implementation: the notebook's file name without its suffix."""
    origin: Provenance = msgspec.field(default_factory=Provenance)
    """The provenance of the cell's records, as far as the runner knows it."""
    workloads: str = ""
    """Names of workload sets, comma-separated; empty for the device's default."""
    mode: str = FORWARD
    """One of ``MODES``."""
    sustained: bool = False
    """Whether calls are also timed without pauses."""
    family: str = ""
    process: int = 0
    """Number of this process among those of the cell, from 0."""
    processes: int = 1
    judge: str = ""
    """Socket of the process that judges the cell; empty if it is judged in its own."""
    operators: str = ""
    """Absolute path of the folder with the project's own operators; empty if there is no project."""
    sources: dict[str, bytes] | None = None
    """Its Python files when the build began, which no cell can change, by their paths in it; None if a cell runs alone."""
    effect: EffectRequest | None = None
    """The model in which the cell's implementation is measured, instead of the operator's workloads."""

    @classmethod
    def load(cls) -> CellContext:
        """Return the context from the runner; if the cell was not started by ``kbt``, only the project's operators."""
        if path := os.environ.get(CONTEXT_VARIABLE):
            return read_struct(Path(path), cls)
        found = find_settings(Path.cwd())
        return cls(operators=str(found[0] / found[1].get("operators", OPERATORS)) if found else "")

    def provenance(self) -> Provenance:
        """Return the provenance of this cell's records, except for packages, seed and hub kernels."""
        name = self.operator.rpartition("/")[2]
        sources = self.sources
        if name and sources is None:
            sources = operator_sources(Path(self.operators)) if self.operators else {}
        digests = (_harness_digest(), _operator_digest(name, sources or {})) if name else ("", "")
        return msgspec.structs.replace(
            self.origin,
            harness=self.origin.harness or harness_version(),
            harness_digest=digests[0],
            operator_digest=digests[1],
        )


@cache
def _harness_digest() -> str:
    """Return the digest of what measures."""
    files = sorted((PACKAGE_FOLDER / "measure").rglob("*.py"))
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def _operator_digest(operator: str, sources: Mapping[str, bytes]) -> str:
    """Return the digest of an operator's module with what it shares; empty for no module."""
    built_in = operator_modules(PACKAGE_FOLDER / OPERATORS).get(operator)
    if f"{operator}.py" in sources:
        files = [sources[f"{operator}.py"], *(data for path, data in sources.items() if path.startswith("_"))]
    else:
        files = [read_file(built_in)] if built_in else []
    return _code_digest_of(tuple(files)) if files else ""


@lru_cache
def _code_digest_of(files: tuple[bytes, ...]) -> str:
    codes = [code_digest(data.decode(errors="replace")) for data in files]
    return codes[0] if len(codes) == 1 else sha256("".join(codes).encode()).hexdigest()


@cache
def installed_version(package: str) -> str:
    """Return the version of a package; empty if it is not installed, as of a checkout or a copy without metadata."""
    # Imported here because it is slow and few processes need it.
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def harness_version() -> str:
    return installed_version("kernels-bench-tools")


class Job(msgspec.Struct, kw_only=True):
    """A line from the runner to the process that judges: one process of a cell is going to be measured."""

    context: CellContext
    device: str
    """Torch's name of the device."""
    token: str
    """What the harness in the cell's process gets before the cell's code runs. Who does not know it is another program."""


class Ended(msgspec.Struct, kw_only=True):
    """A line from the runner: the process of the cell has ended."""

    status: Status = Status.OK
    failure: Failure | None = None
    crashed: bool = False
    """Whether a signal ended it, so that another process may go on with the next workload."""


class Written(msgspec.Struct, kw_only=True):
    """The answer of the process that judges: the records."""

    more: bool = False
    """Whether workloads are left after a crash, and the cell is to be started again."""
    files: dict[str, str] = msgspec.field(default_factory=dict)
    """Name of a file of records to its lines. They are not on the disk, where the cell could change them."""


class Need(msgspec.Struct, kw_only=True):
    """A cell of another notebook that a cell needs, and its result."""

    notebook: str
    """Path within the project, with ``/``."""
    cell: str
    front: FrontMatter
    status: Status
    reason: str = ""
    directory: str
    """Absolute path of the folder with the cell's artifacts; a failed cell has one, too."""


class Needs(msgspec.Struct, kw_only=True):
    project: str
    """Absolute path of the project."""
    notebook: str
    device: Device
    cells: list[Need] = msgspec.field(default_factory=list)
    files: list[str] = msgspec.field(default_factory=list)
    """Absolute paths of the data files, such as committed records."""
    previous: str = ""
    """Absolute path of the artifacts that the same code made last, of other records; empty if there are none."""

    @classmethod
    def load(cls) -> Needs:
        """Return the needs of this cell; raise ``KeyError`` if it was not started by ``kbt``."""
        return read_struct(Path(os.environ[NEEDS_VARIABLE]), cls)


class Prose(msgspec.Struct, kw_only=True, tag="prose"):
    """Markdown between cells."""

    text: str


class CellRun(msgspec.Struct, kw_only=True, tag="cell"):
    id: str
    code: str
    line: int
    """Line of the opening fence in the notebook's file, from 1."""
    sources: str = ""
    """All code that its process runs; empty if it imports no other cell of the notebook."""
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
        found = {status.label: count for status, count in self.workloads.items() if status is not Status.OK}
        if self.disturbed and self.status is Status.OK:
            found["disturbed"] = self.disturbed
        if not found:
            return ""
        total = plural(sum(self.workloads.values()), "workload")
        if found.keys() == {"disturbed"}:
            return f"{self.disturbed} of {total} disturbed by other programs"
        alone = self.status is not None and found.keys() == {self.status.label}
        texts = [str(count) if alone else f"{count} {label}" for label, count in found.items()]
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
        found = [{cell.status for cell in notebook.cells if not cell.commented} for notebook in impls]
        able = [statuses for statuses in found if not statuses <= {Status.UNSUPPORTED}]
        return sum(None not in statuses for statuses in able), len(able)


REFERENCE = "reference"
"""Implementation id of a problem's own module, which speed-ups are relative to."""


class ProblemRequest(msgspec.Struct, kw_only=True):
    name: str
    """Of the problem, or ``Class.workload`` of ``kernels benchmark``; empty to write the names of all workloads."""
    reference: str
    """Path of the file with ``Model`` and ``get_inputs``."""
    candidate: str = ""
    """Path of the file with ``ModelNew``; empty to time the reference only."""
    implementation: str = ""
    kernel: str = ""
    """Reference or folder of the kernel, if the file has benchmarks of ``kernels benchmark``."""
    workload: TraceWorkload | None = None
    """If the files are a definition and a solution of flashinfer-trace."""
    root: str = ""
    """Of the set with this workload."""
    output: str = ""
    """The file to which records are appended."""
