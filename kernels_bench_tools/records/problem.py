"""What is asked of the process that times a problem and one candidate."""

from __future__ import annotations

import msgspec

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
    output: str = ""
    """The file to which records are appended."""
