"""The charts of a summary: a figure for each metric with a chart, with a panel for each view of a device.

A panel has a heading, a legend, axes, and a line for each implementation. Sizes are points.
"""

from __future__ import annotations

import hashlib
import io
import math
import os
import re
import sys
import textwrap
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from html import escape
from itertools import groupby
from multiprocessing import get_context
from typing import Any, NamedTuple

import matplotlib.style
import msgspec
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator
from matplotlib.transforms import ScaledTranslation

from kernels_bench_tools.chart.palette import Style, assign_styles
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.records.summary import DeviceSummary, Point, Row, Summary
from kernels_bench_tools.results.metrics import (
    LATENCY,
    METRICS,
    Metric,
    chart_title,
    has_passed,
    view_metrics,
)
from kernels_bench_tools.results.views import labels
from kernels_bench_tools.text.names import slugify
from kernels_bench_tools.text.numbers import tick, times_with_interval

INK = "#000000"
"""Becomes the page's text colour."""
FONT = "DejaVu Sans"
"""Measured by matplotlib, and replaced by the reader's own sans-serif, which is narrower."""

_WIDTH, _GAP, _EMPTY_HEIGHT = 691.2, 21.6, 72.0
_COORDINATES = re.compile(r' (?:d|x|y|transform)="[^"]*"')
_LONG_NUMBER = re.compile(r"-?\d+\.\d{2,}")
_STATED = re.compile(
    rf' transform="rotate\(-0 [^"]*"|(?:font-size: 9.5px; )?font-family: \'{FONT}\'(?:; )?|text-anchor: start(?:; )?'
)
"""What is stated once for all texts of a panel."""
_TAG = re.compile(
    r'<g id="(?:(?P<kind>series|band|failed|legend-label|legend-handle)--(?P<slug>[^"]+)|[^"]*)"(?P<end>/?)>'
    r'|<a xlink:href="(?P<url>[^"]*)" target="_blank">'
    r'|<use xlink:href="(?P<marker>[^"]*)" (?P<place>x="[^"]*" y="[^"]*") style="(?:fill: (?P<fill>[^;"]*))?[^"]*"/>'
)


class Series(NamedTuple):
    """One implementation in one panel: the attributes of its elements, see :func:`attributes`."""

    label: str
    """Of its link, for screen readers."""
    data: str
    points: Sequence[str]
    """Of each marker, in the order in which matplotlib was given them."""
    failures: Sequence[str]
    """The same for the crosses of failed workloads."""


def attributes(**values: str) -> str:
    """Return ``data-`` attributes of these names, each after a space; those without a value are left out."""
    shown = {name: printable(value) for name, value in values.items()}
    return "".join(f' data-{name}="{escape(value)}"' for name, value in shown.items() if value)


def panel_svg(drawn: str, tags: str, series: Mapping[str, Series]) -> str:
    """Return a figure of ``draw_panel``, as matplotlib wrote it, as an element with these attributes.

    Groups of ``series``, by slug, get a class, links a label, and markers their data.
    """
    size = re.search(r'viewBox="0 0 (\S+) (\S+)"', drawn)
    assert size is not None, "matplotlib states the size of a figure"
    body = re.sub(r" ?\n *", "", drawn[drawn.index('<g id="figure_1">') : drawn.rindex("</svg>")])
    body = _COORDINATES.sub(lambda it: _LONG_NUMBER.sub(_shortened, it[0]), body)
    body = _STATED.sub("", body).replace(INK, "currentColor").replace(' style=""', "")
    slug, linked = "", set[str]()
    marks: Iterator[str] | None = None

    def tag(match: re.Match[str]) -> str:
        nonlocal slug, marks
        if match["marker"]:
            data = "" if marks is None else next(marks)
            fill = "none" if "data-status" in data else match["fill"] or "none"
            return f'<use href="{match["marker"]}" {match["place"]} fill="{fill}"{data}/>'
        if match["url"]:
            # One stop of the Tab key for each series.
            again = ' tabindex="-1"' if slug in linked else ""
            linked.add(slug)
            return f'<a href="{match["url"]}" aria-label="{escape(series[slug].label)}"{again}>'
        assert marks is None or next(marks, None) is None, f"{slug} has fewer markers than points"
        marks = None
        if not match["kind"]:
            return f"<g{match['end']}>"
        kind, slug = match["kind"], match["slug"]
        if kind in {"series", "failed"}:
            marks = iter(series[slug].points if kind == "series" else series[slug].failures)
        name = "legend-label" if kind == "legend-handle" else kind
        data = series[slug].data if kind == "series" else ""
        return (
            f'<g id="{kind}--{slug}" class="{name} {name}--{slug}" data-series="{slug}"{data}{match["end"]}>'
        )

    look = 'font-family="system-ui, sans-serif" font-size="9.5px" fill="currentColor" stroke-linejoin="round"'
    box = f'width="{size[1]}" height="{size[2]}" viewBox="0 0 {size[1]} {size[2]}"'
    return f'<svg class="panel" {box} role="group" {look} {tags}>{_TAG.sub(tag, body)}</svg>'


def figure_svg(title: str, panels: Sequence[str], empty: str) -> bytes:
    """Return the panels, one below the other, as an SVG file; without panels it shows the text ``empty``."""
    height, placed = 0.0, []
    for panel in panels:
        placed.append(panel.replace("<svg ", f'<svg y="{height:.1f}" ', 1))
        height += float(panel.partition(' height="')[2].partition('"')[0]) + _GAP
    if not panels:
        middle = f'x="{_WIDTH / 2}" y="{_EMPTY_HEIGHT / 2}" text-anchor="middle"'
        placed, height = [f'<text {middle} fill="currentColor">{escape(empty)}</text>'], _EMPTY_HEIGHT + _GAP
    lines = [
        '<?xml version="1.0" encoding="utf-8"?>',
        f'<svg xmlns="http://www.w3.org/2000/svg" class="figure" role="img" viewBox="0 0 {_WIDTH} {height - _GAP:.1f}">',
        f"<title>{escape(title)}</title>",
        "<style>:root{color:#1f2328}@media (prefers-color-scheme:dark){:root{color:#e6edf3}}</style>",
        *placed,
        "</svg>\n",
    ]
    return "\n".join(lines).encode()


_PLACED = re.compile(r'<svg y="[^"]*" (class="panel" width="[^"]*" height="[\d.]+".* data-drawn="([^"]*)".*)')


def drawn_panels(figure: bytes) -> dict[str, str]:
    """Return the panels of a file of ``figure_svg``, by the digest of what each was drawn from."""
    placed = filter(None, map(_PLACED.fullmatch, figure.decode(errors="replace").splitlines()))
    return {panel[2]: f"<svg {panel[1]}" for panel in placed}


def _shortened(number: re.Match[str]) -> str:
    return f"{float(number[0]):.1f}".removesuffix(".0")


_STYLE = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "font.family": FONT,
    "font.size": 9.5,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "grid.color": INK,
    "grid.alpha": 0.14,
    "axes.spines.top": False,
    "axes.spines.right": False,
}


def chart_svg(
    summary: Summary, chart: str, pages: Mapping[str, str] | None = None, before: bytes = b""
) -> bytes:
    """Return a chart as SVG, the same bytes for the same summary.

    Panels of ``before``, an earlier chart by the same code, are not drawn again where nothing about them has changed.

    Each view is an ``<svg class="panel">`` with ``data-view`` and ``data-chart``; the chart of latencies has the panels
    of the charts without files, too. Each row of a view is a group ``series--<slug>`` (``Row.slug``), also one without a
    point; its markers have ``data-workload``, ``data-value`` and the interval. Failed workloads of an implementation
    that passed others are crosses on the x-axis, with ``data-status`` and ``data-reason``. Lines and labels link to the
    implementation's page in ``pages``, if it has one there; without ``pages`` to ``../impls/<implementation>.html``.
    """
    rows = [row for view in summary.devices for row in view.rows]
    styles = assign_styles(
        {row.implementation: row.family for row in rows},
        [{row.implementation for row in view.rows} for view in summary.devices],
        first={row.implementation for row in rows if row.baseline},
    )
    urls = {row.implementation: f"../impls/{row.implementation}.html" for row in rows}
    if pages is not None:
        urls = {name: pages.get(name, "") for name in urls}
    charts = [chart]
    if chart == LATENCY.chart:
        charts += [metric.chart for metric in METRICS if metric.chart and not metric.file]
    shown = [
        _Contents(summary, view, view_metrics(view)[name], styles, urls)
        for name in charts
        for view in summary.devices
        if shows(view, name)
    ]
    panels, wanted = drawn_panels(before), {contents.digest: contents for contents in shown}
    new = {digest: contents for digest, contents in wanted.items() if digest not in panels}
    panels |= zip(new, _drawn([*new.values()]), strict=True)
    title = chart_title(chart)
    empty = f"{summary.title}: " + (f"nothing has a {title}" if summary.devices else "no records yet")
    devices = " and ".join(dict.fromkeys(view.device.name for view in summary.devices if shows(view, chart)))
    label = f"{summary.title}: {title} by workload{f' on {devices}' if devices else ''}"
    return figure_svg(printable(label), [panels[digest] for digest in wanted], printable(empty))


_WORTH_A_PROCESS = 12
"""Panels that take longer than to start a process."""
_to_draw: list[_Contents] = []
"""By a process of those that share the panels."""


def _drawn(panels: Sequence[_Contents]) -> list[str]:
    """Draw panels, by several processes if they are many and there is memory for them."""
    cores = len(os.sched_getaffinity(0)) if sys.platform == "linux" else 1
    processes = min(cores, len(panels) // _WORTH_A_PROCESS)
    if processes > 1 and threading.active_count() == 1:  # a fork would wait for locks of other threads
        # Else one of them was killed, or none could be started.
        with (
            suppress(BrokenProcessPool, OSError),
            ProcessPoolExecutor(processes, get_context("fork"), _to_draw.extend, (panels,)) as pool,
        ):
            return list(pool.map(_draw, range(len(panels)), chunksize=4))
    return [contents.draw() for contents in panels]


def _draw(number: int) -> str:
    return _to_draw[number].draw()


def shows(view: DeviceSummary, chart: str) -> bool:
    """Return whether a chart has a panel for a view: latency always has one, other charts only if a point has a number."""
    if chart == LATENCY.chart:
        return True
    metric = view_metrics(view)[chart]
    return any(metric.estimate(point) is not None for row in view.rows for point in row.points)


class _Contents(NamedTuple):
    """What a panel is drawn from."""

    summary: Summary
    view: DeviceSummary
    metric: Metric
    styles: Mapping[str, Style]
    urls: Mapping[str, str]

    @property
    def digest(self) -> str:
        summary, view, metric, styles, urls = self
        looks = [(styles[row.implementation], urls[row.implementation]) for row in view.rows]
        own = msgspec.structs.replace(view, pairs=[])
        shown = [summary.operator, summary.title, metric.chart, own, looks]
        return hashlib.sha256(msgspec.json.encode(shown)).hexdigest()[:16]

    def draw(self) -> str:
        summary, view, metric, styles, urls = self
        key = "-".join(filter(None, (view.device.slug, view.key)))
        # matplotlib makes the ids of markers from it, and a page has many panels.
        salt = {"svg.hashsalt": f"{slugify(summary.operator)} {metric.chart} {key}"}
        with matplotlib.style.context(["default", _STYLE | salt]), warnings.catch_warnings():
            # A glyph that the measuring font lacks is drawn in the reader's font.
            warnings.filterwarnings("ignore", message="Glyph .* missing", category=UserWarning)
            figure = draw_panel(summary.title, view, metric, styles, urls)
            drawn = io.StringIO()
            # savefig() would draw twice.
            FigureCanvasSVG(figure).print_svg(drawn, metadata={"Date": None, "Creator": None})
        title = view_title(view)
        tags = attributes(
            view=key,
            chart=metric.chart,
            title=title,
            metric=metric.title,
            unit="" if metric.label == metric.title else metric.unit,
            drawn=self.digest,
        )
        label = printable(f"{summary.title} · {title}: {metric.title.lower()} by workload")
        series = {row.slug: _series(view, row, metric) for row in view.rows}
        return panel_svg(drawn.getvalue(), f'aria-label="{escape(label)}"{tags}', series)


def _series(view: DeviceSummary, row: Row, metric: Metric) -> Series:
    points = []
    for point in row.points if row.passed else ():
        if estimate := metric.estimate(point):
            low, high = (f"{end:.6g}" if estimate.known else "" for end in estimate[1:])
            status = "" if point.status is Status.OK else point.status.value
            value = f"{estimate.value:.6g}"
            points.append(attributes(workload=point.workload, value=value, low=low, high=high, status=status))
    return Series(
        label=f"{printable(row.title)} on {view_title(view)}",
        data=attributes(title=row.title, note=_note(row)),
        points=points,
        failures=[
            attributes(workload=point.workload, status=point.status.value, reason=point.reason)
            for point in failed_points(row)
        ],
    )


def _note(row: Row) -> str:
    """Return the last line of the tooltip: the overall speed-up, or why there is none."""
    if row.baseline and row.passed:
        return "baseline"
    if row.speedup is not None:
        return f"speed-up {times_with_interval(row.gain)}"
    return ": ".join(filter(None, [row.status.label, row.reason]))


_PLOT, _CAPTION, _PAD = 223.0, 22.0, 3.0
_LONGEST_TITLE, _LONGEST_TICK, _LONGEST_AXIS = 46, 26, 125
_LONGEST_HEADING = 84
"""In characters; a longer heading has several lines."""
_CROSS = 10.0
"""Distance of the crosses of one workload."""


def printable(text: str) -> str:
    """Return ``text`` without the characters that XML and terminals cannot show."""
    return "".join(char for char in text if char.isprintable())


def view_title(view: DeviceSummary) -> str:
    return printable(" · ".join(filter(None, (view.device.name, view.view))))


def draw_panel(
    title: str, view: DeviceSummary, metric: Metric, styles: Mapping[str, Style], urls: Mapping[str, str]
) -> Figure:
    """Return a view's panel as a figure of its own.

    Every row's artists have the ``gid`` ``series--``, ``band--``, ``failed--``, ``legend-label--`` and
    ``legend-handle--`` followed by the row's slug, and link to the URL of its implementation. Where nothing passed, there
    is a heading and a legend only.
    """
    figure = Figure(figsize=(_WIDTH / 72, 8), dpi=72)
    FigureCanvasAgg(figure)  # measures texts
    axes = figure.add_axes((0.06, 0.1, 0.92, 0.5))
    passed = any(row.passed for row in view.rows)
    # About the distance from one workload to the next: the axes are narrower than the figure by the numbers beside them.
    slot = 0.92 * _WIDTH / (len(view.workloads) - 0.2)
    if passed:
        _draw_y_axis(axes, metric, view)
        _draw_workloads(axes, view, slot)
        for line in metric.lines(view):
            axes.axhline(line.at, color=INK, linewidth=1.2, dashes=(6, 3), alpha=0.65, clip_on=False)
            if line.label:
                text = axes.text(1, line.at, printable(line.label), ha="right", fontsize=8.5, alpha=0.85)
                above = ScaledTranslation(0, 3 / 72, figure.dpi_scale_trans)
                text.set_transform(axes.get_yaxis_transform() + above)
    else:
        axes.set_axis_off()
    for row in view.rows:
        _draw_row(axes, row, metric, styles[row.implementation], urls[row.implementation], 4 / slot)
    _draw_crosses(axes, view, styles, slot)
    _draw_legend(
        axes, f"{printable(title)} · {view_title(view)}", view, styles, urls, _CAPTION if passed else 0
    )
    # Measured once: matplotlib's own layouts draw everything several times. The plot is as high in every panel.
    whole, inner = axes.get_tightbbox(for_layout_only=True), axes.bbox
    assert whole is not None
    left, below = inner.x0 - whole.x0 + _PAD, inner.y0 - whole.y0 + _PAD
    right, above = whole.x1 - inner.x1 + _PAD, whole.y1 - inner.y1 + _PAD
    plot = _PLOT if passed else 1
    height = below + plot + above
    figure.set_figheight(height / 72)
    axes.set_position((left / _WIDTH, below / height, 1 - (left + right) / _WIDTH, plot / height))
    return figure


def _draw_y_axis(axes: Any, metric: Metric, view: DeviceSummary) -> None:
    found = [estimate for row in view.rows for point in row.points if (estimate := metric.estimate(point))]
    ends = [end for estimate in found for end in (estimate if estimate.known else estimate[:1])]
    values = [value for value in (*ends, *(line.at for line in metric.lines(view))) if value > 0] or [1.0]
    low, high = min(values), max(values)
    title = metric.label
    if high / low >= metric.log_from:
        spread = high / low * 1.7
        subs = (1.0, 1.2, 1.5, *range(2, 10)) if spread < 6 else (1.0, 2.0, 5.0) if spread < 2000 else (1.0,)
        axes.set(yscale="log", ylim=(low / 1.3, high * 1.3))
        axes.yaxis.set_major_locator(LogLocator(subs=subs, numticks=20))
        title = f"{title[:-1]}, log scale)" if title.endswith(")") else f"{title} (log scale)"
    else:
        axes.set_ylim(0, high * 1.1)
        axes.yaxis.set_major_locator(MaxNLocator(nbins=6, steps=[1, 2, 2.5, 5, 10]))
    axes.yaxis.set_minor_locator(NullLocator())
    # Sums of the locators have tails such as 0.30000000000000004.
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: tick(float(f"{value:.6g}"))))
    axes.tick_params(left=False, bottom=False)
    axes.grid(axis="y", clip_on=False)
    axes.set_axisbelow(True)
    arrow = "↓" if metric.better == "lower" else "↑"
    for where, text in (("left", title), ("right", f"{arrow} {metric.better} is better")):
        axes.set_title(text, loc=where, fontsize=9.5, alpha=0.9, y=1.0)


def _cut(text: str, length: int) -> str:
    return text if len(text) <= length else f"{text[: length - 1]}…"


def _draw_workloads(axes: Any, view: DeviceSummary, slot: float) -> None:
    """Name the workloads on one line where they fit, else on several lines, else tilted."""
    named = labels(view.workloads)
    texts = [printable(text) for text in named.ticks]
    axes.set_xlim(-0.4, len(texts) - 0.6)
    axes.set_xlabel(_cut(printable(named.axis), _LONGEST_AXIS), alpha=0.9)
    for shown in (texts, [text.replace(" × ", "\n× ") for text in texts]):
        axes.set_xticks(range(len(texts)), shown)
        if max(label.get_window_extent().width for label in axes.get_xticklabels()) < slot - 6:
            return
    cut = [_cut(text.replace(" × ", "×"), _LONGEST_TICK) for text in texts]
    axes.set_xticks(range(len(texts)), cut, rotation=60, ha="right", rotation_mode="anchor")


def failed_points(row: Row) -> list[Point]:
    """Return the points to cross out; none for a row that passed nothing, which the legend marks."""
    return [point for point in row.points if not has_passed(point)] if row.passed else []


def _draw_row(axes: Any, row: Row, metric: Metric, style: Style, url: str, nudge: float) -> None:
    """Draw the line of a row, and the band of its intervals, which goes on for ``nudge`` at its ends."""
    found = [metric.estimate(point) for point in row.points] if row.passed else []
    known = [(at, *one[1:]) if one and one.known else None for at, one in enumerate(found)]
    band: list[tuple[float, ...]] = []
    for is_known, run in groupby(known, key=bool):
        if is_known:
            intervals = [interval for interval in run if interval]
            first, last = intervals[0], intervals[-1]
            before, after = first[0] - nudge, last[0] + nudge
            gap = (after, math.nan, math.nan)
            band += [(before, *first[1:]), *intervals, (after, *last[1:]), gap]
    if band:
        look = {"facecolor": style.colour, "alpha": 0.22, "linewidth": 0, "clip_on": False}
        axes.fill_between(*zip(*band, strict=True), gid=f"band--{row.slug}", **look)
    axes.plot(
        range(len(found)),
        [math.nan if estimate is None else estimate.value for estimate in found],
        **_look(style),
        clip_on=False,
        in_layout=False,  # matplotlib places a line without points in the corner of the figure
        gid=f"series--{row.slug}",
        url=url or None,
    )


def _draw_crosses(axes: Any, view: DeviceSummary, styles: Mapping[str, Style], slot: float) -> None:
    """Cross out failed workloads on the axis, those of several rows side by side."""
    crossed = [row for row in view.rows if failed_points(row)]
    for number, row in enumerate(crossed):
        aside = (number - (len(crossed) - 1) / 2) * min(_CROSS, 0.8 * slot / len(crossed))
        places = [at for at, point in enumerate(row.points) if not has_passed(point)]
        moved = ScaledTranslation(aside / 72, 0, axes.figure.dpi_scale_trans)
        axes.plot(
            places,
            [0.0] * len(places),
            transform=axes.get_xaxis_transform() + moved,
            linestyle="none",
            marker="X",
            markersize=9,
            markerfacecolor="none",
            markeredgecolor=styles[row.implementation].colour,
            markeredgewidth=1.4,
            clip_on=False,
            zorder=5,
            gid=f"failed--{row.slug}",
        )


def _legend_text(row: Row, view: DeviceSummary) -> str:
    title = _cut(printable(row.title), _LONGEST_TITLE)
    if not row.passed:
        return f"{title} ({row.status.label})"
    notes = ["baseline"] if row.implementation == view.baseline else []
    notes += [f"{row.passed} of {row.total} ok"] if row.passed < row.total else []
    notes += [row.status.label] if row.status is Status.DISTURBED else []
    return f"{title} ({', '.join(notes)})" if notes else title


def _draw_legend(
    axes: Any,
    heading: str,
    view: DeviceSummary,
    styles: Mapping[str, Style],
    urls: Mapping[str, str],
    above: float,
) -> None:
    """Draw heading and legend, of all implementations of the view, ``above`` the axes, in as many columns as fit."""
    for columns in (4, 3, 2, 1):
        legend = axes.legend(
            [Line2D([], [], **_look(styles[row.implementation], hollow=not row.passed)) for row in view.rows],
            # Set below: the legend would leave out a label that begins with an underscore.
            [" "] * len(view.rows),
            title=textwrap.fill(heading, _LONGEST_HEADING),
            title_fontproperties={"size": 12, "weight": "bold"},
            alignment="left",
            loc="lower left",
            bbox_to_anchor=(0, 1),
            bbox_transform=axes.transAxes + ScaledTranslation(0, above / 72, axes.figure.dpi_scale_trans),
            ncols=columns,
            frameon=False,
            borderpad=0,
            borderaxespad=0,
            labelspacing=0.7,
            handlelength=3.2,
            columnspacing=1.8,
        )
        for row, text, handle in zip(view.rows, legend.get_texts(), legend.legend_handles, strict=True):
            text.set(text=_legend_text(row, view), gid=f"legend-label--{row.slug}")
            text.set_url(urls[row.implementation] or None)
            handle.set_gid(f"legend-handle--{row.slug}")
        if legend.get_window_extent().width < 0.92 * _WIDTH:
            break


def _look(style: Style, hollow: bool = False) -> dict[str, Any]:
    line = {"color": style.colour, "linestyle": style.dashes, "linewidth": 2}
    marker = {"marker": style.marker, "markersize": 6.5}
    return line | marker | ({"linestyle": "none", "markerfacecolor": "none"} if hollow else {})
