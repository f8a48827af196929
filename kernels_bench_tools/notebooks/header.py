"""The header of a script: the block of PEP 723 that names what its environment holds."""

from __future__ import annotations

import copy
import json
import re
import tomllib
from functools import lru_cache
from typing import Any

_BLOCK = re.compile(r"(?m)^# /// script[ \t]*$\n(?P<content>(?:^#(?:| .*)$\n)+?)^# ///[ \t]*$")


def read_header(code: str) -> dict[str, Any] | None:
    """Return the metadata in a script's header, or None if it has none.

    Raises:
        ValueError: There is more than one header, or it is not TOML; the message says so in one line.
    """
    blocks = list(_BLOCK.finditer(code + "\n"))
    if not blocks:
        return None
    if len(blocks) > 1:
        raise ValueError("there are two `# /// script` headers, and one is allowed")
    try:
        return copy.deepcopy(_parsed(blocks[0]["content"]))
    except (ValueError, RecursionError) as error:  # also a number, or a nesting, beyond all bounds
        raise ValueError(f"its header is not TOML: {error}") from error


@lru_cache(256)
def _parsed(content: str) -> dict[str, Any]:
    """Return a header's metadata: most cells of a project have one of a few."""
    return tomllib.loads("\n".join(line[2:] for line in content.splitlines()))


def split_header(code: str) -> tuple[str, str]:
    """Return a script without its header, and what the header holds; nothing for a script that has none."""
    block = _BLOCK.search(code + "\n")
    if block is None:
        return code, ""
    return code[: block.start()] + code[block.end() + 1 :], block["content"]


def uv_settings(header: dict[str, Any] | None) -> dict[str, Any]:
    """Return ``[tool.uv]`` of a header; empty if it has none."""
    tool = (header or {}).get("tool")
    settings = tool.get("uv") if isinstance(tool, dict) else None
    return settings if isinstance(settings, dict) else {}


def path_sources(header: dict[str, Any] | None) -> dict[str, str]:
    """Return the packages that a header takes from the disk: name to path as written there."""
    sources = uv_settings(header).get("sources")
    if not isinstance(sources, dict):
        return {}
    return {
        name: source["path"]
        for name, source in sources.items()
        if isinstance(source, dict) and isinstance(source.get("path"), str)
    }


def with_header(code: str, dependencies: list[str]) -> str:
    """Return the script with a header for ``dependencies``; as it is if it has one already.

    The header comes last, so that a traceback's line numbers are the cell's own.
    """
    if _BLOCK.search(code + "\n"):
        return code
    # A JSON string is a TOML string.
    items = "".join(f"#     {json.dumps(dependency)},\n" for dependency in dependencies)
    listed = f"# dependencies = [\n{items}# ]" if items else "# dependencies = []"
    return f"{code.rstrip()}\n\n# /// script\n{listed}\n# ///\n"
