"""Shared by the tests of operators."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]
Interpret = Callable[..., None]
CodeOf = Callable[[str, str], str]
FunctionOf = Callable[[str, str], Callable[..., Any]]


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Let torch use one thread: tensors are small here, and threads of tests side by side wait for one another."""
    torch.set_num_threads(1)


@pytest.fixture
def interpret(tmp_path: Path) -> Interpret:
    """Run a script beside a notebook's code, ``cell.py``, in Triton's interpreter; see what it prints."""

    def run(code: str, script: str, *arguments: str, prints: str = "right") -> None:
        if importlib.util.find_spec("triton") is None:
            pytest.skip("needs triton")
        (tmp_path / "cell.py").write_text(code, encoding="utf-8")
        process = subprocess.run(
            [sys.executable, "-c", script, *arguments],
            cwd=tmp_path,
            env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert process.stdout.strip() == prints, process.stderr

    return run


@pytest.fixture(scope="session")
def code_of() -> CodeOf:
    """Return the code of an implementation's one benchmark cell."""

    def read(operator: str, name: str) -> str:
        text = (ROOT / operator / "impls" / f"{name}.md").read_text(encoding="utf-8")
        cells = re.findall(
            rf"^```python id=benchmark outputs={operator}\.jsonl.*?\n(.*?)\n```$", text, re.S | re.M
        )
        assert len(cells) == 1
        return str(cells[0])

    return read


@pytest.fixture(scope="session")
def function_of(code_of: CodeOf) -> FunctionOf:
    """Return an implementation's function, from its notebook's own code."""

    def load(operator: str, name: str) -> Callable[..., Any]:
        names: dict[str, Any] = {"__name__": "cell"}
        exec(compile(code_of(operator, name), f"{name}.md", "exec"), names)
        found: Callable[..., Any] = names[name]
        return found

    return load
