"""Shared by the tests of operators."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

Interpret = Callable[..., None]

QUICKER = """
from triton.language import core
from triton.runtime import interpreter
import triton.language as tl


def call(self, *arguments, **options):
    modules = [value for value in self.fn.__globals__.values() if value is tl or value is core]
    if any(core.is_builtin(module.load) for module in modules):
        interpreter._patch_lang(self.fn)
    return self.rewrite()(*arguments, **options)


interpreter.InterpretedFunction.__call__ = call
"""
"""Where one function of a kernel calls another, the interpreter replaces all of ``triton.language`` once more, which took
2.7 ms a call and half the time of these tests: once for each launch is enough."""


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
            [sys.executable, "-c", QUICKER + script, *arguments],
            cwd=tmp_path,
            env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=280,
        )
        assert process.stdout.strip() == prints, process.stderr

    return run
