"""Files of flashinfer-trace: what a kernel computes, on which sizes, who implements it, and what was measured."""

from __future__ import annotations

from typing import Any

import msgspec

NOT_KNOWN = "NaN"
"""Of an error that was not computed: JSON has no NaN, and their reader takes this."""


class Axis(msgspec.Struct, kw_only=True):
    type: str
    """``"const"``, with a value, or ``"var"``, which has that of the workload."""
    value: int | None = None


class TensorSpec(msgspec.Struct, kw_only=True):
    shape: list[str] | None
    """Names of axes; None for a Python number."""
    dtype: str


class Definition(msgspec.Struct, kw_only=True):
    name: str
    op_type: str
    axes: dict[str, Axis]
    inputs: dict[str, TensorSpec]
    outputs: dict[str, TensorSpec]
    reference: str
    """Python with a function ``run``."""


class InputSpec(msgspec.Struct, kw_only=True, omit_defaults=True):
    type: str
    """``"random"``, ``"scalar"`` or ``"safetensors"``."""
    value: bool | int | float | None = None
    path: str = ""
    """From the folder of the whole set."""
    tensor_key: str = ""


class TraceWorkload(msgspec.Struct, kw_only=True):
    axes: dict[str, int]
    inputs: dict[str, InputSpec]
    uuid: str


class BuildSpec(msgspec.Struct, kw_only=True):
    language: str
    entry_point: str
    """``FILE::FUNCTION``."""
    destination_passing_style: bool = True
    """Whether the function is given the outputs to fill, after its inputs."""


class Solution(msgspec.Struct, kw_only=True):
    name: str
    definition: str
    spec: BuildSpec
    sources: list[dict[str, str]]
    """Each with a ``path`` and a ``content``."""


class Trace(msgspec.Struct, kw_only=True):
    """A workload; or a measurement, if it has a solution."""

    definition: str
    workload: TraceWorkload
    solution: str | None = None
    evaluation: dict[str, Any] | None = None
    """``correctness`` is only of what passed or has wrong numbers, ``performance`` only of what passed."""


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
    run: str = ""
    """Name of the run of which the candidate is a sample."""
    kernel: str = ""
    """Reference or folder of the kernel, if the file has benchmarks of ``kernels benchmark``."""
    workload: TraceWorkload | None = None
    """If the files are a definition and a solution of flashinfer-trace."""
    root: str = ""
    """Of the set with this workload."""
    output: str = ""
    """The file to which records are appended."""
