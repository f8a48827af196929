"""Templates of ``kbt new operator``: files with the placeholders ``@NAME@``, ``@TITLE@`` and ``@TODAY@``."""

from __future__ import annotations

from datetime import UTC, datetime
from importlib.resources import files
from pathlib import PurePosixPath

from kernels_bench_tools.text import title_from_name

OPERATORS = PurePosixPath("kernels_bench_tools/operators")
"""Folder of the operators' modules in a checkout."""


def today() -> str:
    """Return today's date in the format of ``exclude-newer``."""
    return datetime.now(UTC).strftime("%Y-%m-%dT00:00:00Z")


def operator_files(name: str) -> dict[PurePosixPath, str]:
    """Return the files of a new operator by their paths in a checkout: a simple operator and its baseline.

    Args:
        name: The operator's name, a Python identifier.
    """
    folder = PurePosixPath(name)
    starters = {
        OPERATORS / f"{name}.py": "operator.py",
        folder / "index.md": "index.md",
        folder / "impls" / f"torch_{name}.md": "baseline.md",
        folder / "results" / "combined_results.md": "combined_results.md",
    }
    return {path: _filled(starter, name) for path, starter in starters.items()}


def _filled(starter: str, name: str) -> str:
    text = (files(__name__) / f"{starter}.txt").read_text(encoding="utf-8")
    for mark, value in (("@NAME@", name), ("@TITLE@", title_from_name(name)), ("@TODAY@", today())):
        text = text.replace(mark, value)
    return text
