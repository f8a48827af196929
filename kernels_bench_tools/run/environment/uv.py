"""uv as a program: where it is, and what it answers."""

from __future__ import annotations

import shutil

import msgspec

from kernels_bench_tools.errors import ProjectError


class _Python(msgspec.Struct):
    path: str


class _Environment(msgspec.Struct):
    python: _Python


class _Sync(msgspec.Struct):
    environment: _Environment


class _Answer(msgspec.Struct):
    """The part of ``uv sync --output-format json`` that is needed here."""

    sync: _Sync


def synced_python(answer: bytes) -> str:
    """Return the interpreter of the environment that ``uv sync --output-format json`` tells of."""
    return msgspec.json.decode(answer, type=_Answer).sync.environment.python.path


def uv_reason(said: str, code: int) -> str:
    """Return uv's message in one line, without the hints below it."""
    paragraph = said[said.rfind("error:") :] if "error:" in said else said
    first = paragraph.split("\n\n")[0]
    words = " ".join(first.replace("error:", "").replace("cause:", ":").split()).replace(" :", ":")
    return words or f"uv ended with exit code {code}"


def find_uv() -> str:
    """Return the path of uv: that of its package, else the one on the path.

    Raises:
        ProjectError: It is not installed.
    """
    try:
        from uv import find_uv_bin

        return find_uv_bin()
    except (ImportError, FileNotFoundError):
        found = shutil.which("uv")
    if found is None:
        raise ProjectError("uv", "is not installed", "", "`pip install uv`, or build with `--env current`")
    return found
