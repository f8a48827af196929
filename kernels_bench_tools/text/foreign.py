"""JSON, TOML and YAML that others wrote. What would be a machine's limit is a mistake in the text, which costs only its file."""

from __future__ import annotations

import re
import tomllib
from itertools import chain
from typing import Any, TypeVar

import msgspec

T = TypeVar("T")
LONGEST = 2**20
"""Characters of a text of TOML, and bytes of a notebook."""
_DEEPEST = 50
_MOST_VALUES = 10_000
_LONG_KEY = re.compile(r"""(?<![\w-])(?:(?:[\w-]++|"[^"\n]*+"|'[^'\n]*+')[ \t]*+\.[ \t]*+){50}""")
"""Python's reader takes a time that is quadratic in the parts of a key."""


def parse_json(data: bytes | str, kind: type[T]) -> T:
    """Return what a text of JSON has; a ``DecodeError`` says in one line why it cannot be read."""
    try:
        return msgspec.json.decode(data, type=kind)
    except RecursionError:
        raise msgspec.DecodeError("it is nested too deeply") from None
    except UnicodeError as error:
        raise msgspec.DecodeError(f"it is not UTF-8 ({error})") from None


def parse_toml(data: bytes | str, most_values: int = _MOST_VALUES) -> dict[str, Any]:
    """Return the table of a text of TOML; a ``ValueError`` says in one line why it cannot be read, or is too much."""
    text = data.decode() if isinstance(data, bytes) else data
    if len(text) > LONGEST:
        raise ValueError(f"it has more than {LONGEST:,} characters")
    if key := _LONG_KEY.search(text):
        line = text.count("\n", 0, key.start()) + 1
        raise ValueError(f"a key has more than 50 parts (at line {line}, column 1)")
    try:
        table = tomllib.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    check_values(table, most_values)
    return table


def check_values(data: object, most: int = _MOST_VALUES) -> None:
    """Raise a ``ValueError`` for what is nested too deeply, has too many values, or a number that cannot be printed."""
    level, count = [data], 0
    for _ in range(_DEEPEST):
        if any(isinstance(value, int) and value.bit_length() > 64 for value in level):
            raise ValueError("a number has more than 64 bits")
        tables = [it.values() if isinstance(it, dict) else it for it in level if isinstance(it, dict | list)]
        level = [*chain.from_iterable(tables)]
        count += len(level)
        if count > most:
            raise ValueError(f"it has more than {most:,} values")
        if not level:
            return
    raise ValueError("it is nested too deeply")
