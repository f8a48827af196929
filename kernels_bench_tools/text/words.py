"""Words of messages: counts, lists and suggestions."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def plural(count: int, word: str, ending: str = "s") -> str:
    """Return a count with its noun.

    >>> plural(2, "process", "es")
    '2 processes'
    """
    return f"{count} {word}{'' if count == 1 else ending}"


def words(text: str) -> tuple[str, ...]:
    return tuple(text.split())


def abbreviated(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are.

    >>> abbreviated("abcde")
    'a, b, c and 2 more'
    """
    more = len(names) - 3
    return ", ".join(names[:3]) + (f" and {more} more" if more > 0 else "")


def did_you_mean(name: str, known: Iterable[str], otherwise: str = "") -> str:
    """Return a sentence that suggests the known name most similar to ``name``; ``otherwise`` if none is close."""
    from difflib import get_close_matches  # not above: only error messages need it

    listed = sorted(known)
    match = [] if name in listed else get_close_matches(name, listed, n=1, cutoff=0.6)
    return f"Did you mean {match[0]!r}?" if match else otherwise
