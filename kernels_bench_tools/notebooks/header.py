"""The PEP 723 header of a script, which declares its packages."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from functools import lru_cache
from typing import Any

EXCLUDE_NEWER = "exclude-newer"
"""The setting of uv that pins a resolution by date."""

_BLOCK = re.compile(r"(?m)^# /// script[ \t]*$\n(?P<content>(?:^#(?:| .*)$\n)+?)^# ///[ \t]*$")


def read_header(code: str) -> dict[str, Any] | None:
    """Return the metadata in a script's header, or None; a ``ValueError`` has a message of one line."""
    blocks = list(_BLOCK.finditer(code + "\n"))
    if not blocks:
        return None
    if len(blocks) > 1:
        raise ValueError("there are two `# /// script` headers, and one is allowed")
    try:
        return copy.deepcopy(_parse(blocks[0]["content"]))
    except (ValueError, RecursionError) as error:  # also for excessive numbers and nesting
        raise ValueError(f"its header is not TOML: {error}") from error


@lru_cache(256)
def _parse(content: str) -> dict[str, Any]:
    return tomllib.loads("\n".join(line[2:] for line in content.splitlines()))


def split_header(code: str) -> tuple[str, str]:
    """Return a script without its header, and the content of the header; empty if there is none."""
    block = _BLOCK.search(code + "\n")
    if block is None:
        return code, ""
    return code[: block.start()] + code[block.end() + 1 :], block["content"]


def header_lines(code: str) -> range:
    """Return the numbers of the lines of a script's header, counted from 0, without its first and last."""
    block = _BLOCK.search(code + "\n")
    if block is None:
        return range(0)
    first = code.count("\n", 0, block.start("content"))
    return range(first, first + block["content"].count("\n"))


def uv_settings(header: dict[str, Any] | None) -> dict[str, Any]:
    """Return ``[tool.uv]`` of a header; empty if it has none."""
    tool = (header or {}).get("tool")
    settings = tool.get("uv") if isinstance(tool, dict) else None
    return settings if isinstance(settings, dict) else {}


def path_sources(header: dict[str, Any] | None) -> dict[str, str]:
    """Return the packages that a header takes from the local disk: name to path as written there."""
    sources = uv_settings(header).get("sources")
    if not isinstance(sources, dict):
        return {}
    return {
        name: source["path"]
        for name, source in sources.items()
        if isinstance(source, dict) and isinstance(source.get("path"), str)
    }


def has_undated_packages(code: str, deps: list[str]) -> bool:
    """Return whether a script, or a cell's ``deps=``, installs packages without ``exclude-newer``."""
    try:
        header = read_header(code)
    except ValueError:
        return False
    if header is None:
        return bool(deps)
    return bool(header.get("dependencies")) and EXCLUDE_NEWER not in uv_settings(header)


def with_header(code: str, dependencies: list[str]) -> str:
    """Return the script with a header for ``dependencies``, unless it has one already.

    The header is put last, so that line numbers in tracebacks are those of the cell.
    """
    if _BLOCK.search(code + "\n"):
        return code
    # A JSON string is a TOML string.
    items = "".join(f"#     {json.dumps(dependency)},\n" for dependency in dependencies)
    listed = f"# dependencies = [\n{items}# ]" if items else "# dependencies = []"
    return f"{code.rstrip()}\n\n# /// script\n{listed}\n# ///\n"
