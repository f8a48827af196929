"""What a command asks of cells, and what the runner tells a cell in files that two variables name."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

import msgspec

from kernels_bench_tools.file_io import read_struct
from kernels_bench_tools.records.code import harness_digest, harness_version, operator_digest
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.notebook import FrontMatter
from kernels_bench_tools.records.problem import ProblemRequest
from kernels_bench_tools.records.record import Provenance, Status
from kernels_bench_tools.records.settings import operator_sources, operators_folder

CONTEXT_VARIABLE = "KBT_CONTEXT"
NEEDS_VARIABLE = "KBT_NEEDS"

FORWARD = "fwd"
RANDOM = "random:"
"""Beginning of the names of workload sets that are drawn."""
DRAWN_SET = re.compile(rf"{RANDOM}([1-9][0-9]{{0,3}}):([0-9]{{1,9}})(?::([\w.+-]+))?")
"""``random:COUNT:SEED``, or with ``:SETS``: from 1 to 9999 shapes."""
MODES = (FORWARD, "bwd", "fwd_bwd")
"""What is timed: the forward pass, the backward pass or both."""
USUAL_SETS = {"cuda": ("default", "large", "decode"), "cpu": ("cpu",)}
"""Workload sets that are measured by default, by the kind of the device."""


class OtherCell(msgspec.Struct, frozen=True):
    """A cell that another one runs in its process."""

    implementation: str
    """``operator/implementation``."""
    code: str
    digest: str
    """Of all code that it runs, see :func:`kernels_bench_tools.records.code.code_digest`."""
    imported: dict[str, str] = {}
    """Code of the cells of its notebook that it imports, by their names."""


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


class Request(msgspec.Struct, kw_only=True, frozen=True, omit_defaults=True):
    """What a command asks of all cells that measure: a part of their keys, which workers and cells get as it is."""

    workloads: str = ""
    """Names of workload sets, comma-separated; empty for the device's default."""
    mode: str = FORWARD
    """One of ``MODES``."""
    sustained: bool = False
    """Whether calls are also timed without pauses."""
    effect: EffectRequest | None = None
    """The model in which implementations are measured, instead of the operators' workloads."""

    def sets(self, kind: str) -> list[str]:
        """Return the names of the workload sets on a kind of device."""
        return [name.strip() for name in self.workloads.split(",")] if self.workloads else [*USUAL_SETS[kind]]


USUAL_REQUEST = Request()
"""The device's default workloads, forward."""


class CellContext(msgspec.Struct, kw_only=True):
    """What the runner passes to a measuring cell."""

    operator: str = ""
    implementation: str = ""
    """Id of the implementation: the notebook's file name without its suffix."""
    origin: Provenance = msgspec.field(default_factory=Provenance)
    """The provenance of the cell's records, as far as the runner knows it."""
    request: Request = USUAL_REQUEST
    family: str = ""
    process: int = 0
    """Number of this process among those of the cell, from 0."""
    processes: int = 1
    judge: str = ""
    """Socket of the process that judges the cell; empty if it is judged in its own."""
    problem: ProblemRequest | None = None
    """Of another harness, whose file both the cell and the process that judges it load."""
    operators: str = ""
    """Absolute path of the folder with the project's own operators; empty if there is no project."""
    sources: dict[str, bytes] | None = None
    """Its Python files when the build began, which no cell can change, by their paths in it; None if a cell runs alone."""

    @classmethod
    def load(cls) -> CellContext:
        """Return the context from the runner; if the cell was not started by ``kbt``, only the project's operators."""
        if path := os.environ.get(CONTEXT_VARIABLE):
            return read_struct(Path(path), cls)
        return cls(operators=str(operators_folder(Path.cwd()) or ""))

    def provenance(self) -> Provenance:
        """Return the provenance of this cell's records, except for packages, seed and hub kernels."""
        name = self.operator.rpartition("/")[2]
        sources = self.sources
        if name and sources is None:
            sources = operator_sources(Path(self.operators)) if self.operators else {}
        digests = (harness_digest(), operator_digest(name, sources or {})) if name else ("", "")
        return msgspec.structs.replace(
            self.origin,
            harness=self.origin.harness or harness_version(),
            harness_digest=digests[0],
            operator_digest=digests[1],
        )


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
