"""Outlines of a figure in fewer letters: a line says how far it goes, not where to, and a circle that it is one."""

from __future__ import annotations

import re

_POLYLINES = re.compile(r"(?:M[^A-Za-z]+(?:L[^A-Za-z]+)*[zZ]?)+")
_STEP = re.compile(r"([MLz])([^MLz]*)", re.IGNORECASE)
_CIRCLE = re.compile(r"M0 (\d+\.?\d*)(?:C[-\d. ]+){8}z")


def short_path(path: str) -> str:
    """Return a path's data in fewer letters, drawn alike to a tenth of a point; as it is if it is of another kind.

    >>> short_path("M80.2 301.2L151.3 299.7L222.3 299.7z")
    'M80.2 301.2l71.1 -1.5l71 0z'
    """
    circle = _CIRCLE.fullmatch(path)
    if circle and _ends_on_circle(path, float(circle[1])):
        radius = circle[1]
        return f"M0 {radius}a{radius} {radius} 0 1 0 0 -{_doubled(radius)}a{radius} {radius} 0 1 0 0 {_doubled(radius)}z"
    return _relative(path) if _POLYLINES.fullmatch(path) else path


def _relative(path: str) -> str:
    written, at = [], (0, 0)
    for letter, numbers in _STEP.findall(path):
        if letter in "zZ":
            written.append("z")
            continue
        place = _tenths(numbers)
        if place is None:
            return path
        move = place if letter == "M" else (place[0] - at[0], place[1] - at[1])
        written.append(f"{letter if letter == 'M' else 'l'}{_text(move[0])} {_text(move[1])}")
        at = place
    short = "".join(written)
    return short if len(short) < len(path) else path


def _tenths(numbers: str) -> tuple[int, int] | None:
    try:
        x, y = (round(10 * float(word)) for word in numbers.split())
    except ValueError:
        return None
    return x, y


def _text(tenths: int) -> str:
    return f"{tenths / 10:.1f}".removesuffix(".0")


def _doubled(radius: str) -> str:
    return f"{2 * float(radius):g}"


def _ends_on_circle(path: str, radius: float) -> bool:
    """Whether each of its curves ends on the circle around the origin."""
    ends = [curve.split()[-2:] for curve in path.rstrip("z").split("C")[1:]]
    try:
        far = [(float(x) ** 2 + float(y) ** 2) ** 0.5 for x, y in ends]
    except ValueError:
        return False
    return all(abs(one - radius) <= 0.15 for one in far)
