"""Digests of code: of a cell, of an operator's module and of what measures; and the version of a package."""

from __future__ import annotations

import tokenize
from collections.abc import Mapping
from functools import cache, lru_cache
from hashlib import sha256
from io import StringIO

from kernels_bench_tools.file_io import read_file
from kernels_bench_tools.own_process import PACKAGE_FOLDER
from kernels_bench_tools.records.record import Provenance
from kernels_bench_tools.records.settings import OPERATORS, operator_modules


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


def has_other_code(then: Provenance, digests: Mapping[str, str]) -> bool:
    """Return whether a cell's code has changed since a measurement; ``digests`` are those of its notebook's cells by id.

    False if one of the two is not known.
    """
    now = digests.get(then.cell, "")
    return bool(then.code_digest and now) and then.code_digest != now


@cache
def harness_digest() -> str:
    """Return the digest of what measures."""
    files = sorted((PACKAGE_FOLDER / "measure").rglob("*.py"))
    return sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


def operator_digest(operator: str, sources: Mapping[str, bytes]) -> str:
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
