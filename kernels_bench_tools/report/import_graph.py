"""The import graph of a model's modules: as a drawing and as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import msgspec
from markupsafe import Markup, escape

from kernels_bench_tools.report.imports import Module
from kernels_bench_tools.results.models import ModelReport

Imports = Mapping[Module, Sequence[Module]]
"""The modules that each module uses."""

_FONT, _LETTER, _PADDING = 11, 6.7, 9
"""Size of the letters, width of one in a monospace font, and space beside the name in a box."""
_HEIGHT, _GAP, _ROW, _LEFT = 24, 14, 62, 34
"""Height of a box, least space between two boxes of a row, distance of rows, and space for their levels."""


def model_imports(model: ModelReport, imports: Imports) -> dict[Module, Sequence[Module]]:
    """Return what the class of a model uses, directly or through others, each module with its own."""
    top = model.whole.phases[0].tree.class_name
    left = [module for module in imports if module.class_name == top]
    found: dict[Module, Sequence[Module]] = {}
    while left:
        module = left.pop()
        if module not in found:
            found[module] = imports[module]
            left += imports[module]
    return dict(sorted(found.items(), key=lambda item: (-item[0].level, item[0].class_name)))


def imports_json(model: ModelReport, imports: Imports) -> bytes:
    """Return the modules of a model, whether some phase calls them, and the modules that they use."""
    called = model.classes
    modules = [
        {
            "level": module.level,
            "class_name": module.class_name,
            "called": module.class_name in called,
            "imports": [one.class_name for one in found],
        }
        for module, found in model_imports(model, imports).items()
    ]
    return (
        msgspec.json.format(msgspec.json.encode({"model": model.key, "modules": modules}), indent=1) + b"\n"
    )


def imports_svg(model: ModelReport, imports: Imports) -> Markup:
    """Return the drawing: levels from top to bottom, and dashed boxes for classes that no phase calls."""
    found = model_imports(model, imports)
    rows = list(_rows(found))
    width = _LEFT + max(sum(_width(one) + _GAP for one in row) for row in rows)
    places = {
        module: (x, _HEIGHT + number * _ROW)
        for number, row in enumerate(rows)
        for module, x in zip(row, _across(row, width), strict=True)
    }
    height = len(rows) * _ROW - _ROW + 2 * _HEIGHT
    name = f"Import graph of {model.key}: {len(found)} modules in four levels"
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" class="imports" viewBox="0 0 {width:.0f} {height}" role="img" '
        f'aria-label="{escape(name)}" font-family="ui-monospace, Menlo, Consolas, monospace" '
        f'font-size="{_FONT}" fill="currentColor" stroke="none">'
    )
    lines = [_line(places[one], places[other]) for one, others in found.items() for other in others]
    boxes = [_box(one, *place, one.class_name in model.classes) for one, place in places.items()]
    levels = [
        f'<text x="4" y="{_HEIGHT + number * _ROW + 4}" font-weight="700">L{row[0].level}</text>'
        for number, row in enumerate(rows)
        if number == 0 or rows[number - 1][0].level != row[0].level
    ]
    return Markup("\n".join([head, *lines, *boxes, *levels, "</svg>\n"]))  # noqa: S704 - numbers and names of classes


def _rows(found: Imports) -> Iterator[list[Module]]:
    """Yield the rows: those of a level import only later ones, and each box is near what imports it."""
    above: dict[Module, float] = {}
    for level in (4, 3, 2, 1):
        left = {module for module in found if module.level == level}
        while left:
            row = sorted(left - {other for one in left for other in found[one]})
            row.sort(key=lambda module: above.get(module, 0.5))
            yield row
            left -= set(row)
            for number, module in enumerate(row):
                for one in found[module]:
                    above[one] = (above.get(one, (number + 0.5) / len(row)) + (number + 0.5) / len(row)) / 2


def _width(module: Module) -> float:
    return len(module.class_name) * _LETTER + 2 * _PADDING


def _across(row: Sequence[Module], width: float) -> Iterator[float]:
    """Yield the centers of a row's boxes, with equal spaces around them."""
    space = (width - _LEFT - sum(map(_width, row))) / len(row)
    left = float(_LEFT)
    for module in row:
        yield left + (space + _width(module)) / 2
        left += space + _width(module)


def _line(start: tuple[float, float], end: tuple[float, float]) -> str:
    (x, y), (to_x, to_y) = start, end
    y, to_y = y + _HEIGHT / 2, to_y - _HEIGHT / 2
    bend = (to_y - y) / 2
    path = f"M{x:.0f} {y:.0f}C{x:.0f} {y + bend:.0f} {to_x:.0f} {to_y - bend:.0f} {to_x:.0f} {to_y:.0f}"
    return f'<path d="{path}" fill="none" stroke="currentColor" stroke-opacity="0.35"/>'


def _box(module: Module, x: float, y: float, called: bool) -> str:
    width = _width(module)
    dashes = "" if called else ' stroke-dasharray="4 3"'
    return (
        f'<rect class="box" x="{x - width / 2:.0f}" y="{y - _HEIGHT / 2:.0f}" width="{width:.0f}" height="{_HEIGHT}" '
        f'rx="3" fill="Canvas" stroke="currentColor"{dashes}/>'
        f'<text x="{x:.0f}" y="{y + 4:.0f}" text-anchor="middle">{escape(module.class_name)}</text>'
    )
