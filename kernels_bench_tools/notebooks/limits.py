"""Limits of a cell: memory, disk space for its outputs, and the user's environment variables."""

from __future__ import annotations

import re

import msgspec

from kernels_bench_tools.errors import ProjectError

ARTIFACT_LIMIT = 2**30
"""Bytes of outputs that are kept of a cell, by default."""

_SIZE = re.compile(r"(?P<number>\d+(?:\.\d+)?)\s*(?P<unit>[KMGT]?)(?:i?B)?", re.IGNORECASE)
_VARIABLE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_UNITS = {"": 1, "K": 2**10, "M": 2**20, "G": 2**30, "T": 2**40}


class CellPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """What a cell may use. It is not part of a cell's key: it decides whether a cell succeeds, not its results."""

    memory_limit: int = 0
    """Bytes that its processes may use together; 0 for 90 % of the machine's memory."""
    artifact_limit: int = ARTIFACT_LIMIT
    """Bytes of outputs that are kept."""
    pass_env: tuple[str, ...] = ()
    """The user's variables that are passed to it although they may be credentials."""

    def with_options(self, memory_limit: int = 0, pass_env: tuple[str, ...] = ()) -> CellPolicy:
        """Return this policy of a project with the options of the command line."""
        return msgspec.structs.replace(
            self,
            memory_limit=memory_limit or self.memory_limit,
            pass_env=tuple(dict.fromkeys((*self.pass_env, *pass_env))),
        )


def read_size(where: str, text: str) -> int:
    """Return a size in bytes; K, M, G and T are powers of 1024.

    >>> read_size("memory_limit", "1.5GB")
    1610612736
    """
    match = _SIZE.fullmatch(text.strip())
    size = int(float(match["number"]) * _UNITS[match["unit"].upper()]) if match else 0
    if size < 1:
        raise ProjectError(where, f"{text!r} is not a size", "A number of bytes, such as 800MB or 16GB")
    return size


def check_variable_names(where: str, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names; raise a ``ProjectError`` if one is not valid for a variable."""
    for name in names:
        if not _VARIABLE.fullmatch(name):
            raise ProjectError(where, f"{name!r} is not a variable's name", "A name such as HF_TOKEN")
    return names
