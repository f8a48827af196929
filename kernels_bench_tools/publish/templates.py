"""The Jinja templates and what they may call."""

from __future__ import annotations

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kernels_bench_tools.publish import devices, numbers, rows, words
from kernels_bench_tools.publish.shipped import template_folder


def make_environment() -> Environment:
    """Return the environment that renders pages: all text is escaped, and a missing name is an error."""
    environment = Environment(
        loader=FileSystemLoader(template_folder()),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters.update(
        ms=numbers.milliseconds,
        interval=numbers.interval,
        times=numbers.times,
        times_interval=numbers.times_interval,
        percent=numbers.percent,
        deviation=numbers.deviation,
        us=numbers.microseconds,
        quantity=numbers.quantity,
        size=numbers.size,
        sortable=numbers.sortable,
        status=words.status_mark,
        passed=words.passed_mark,
        verdict=words.verdict_mark,
        verdicts=words.verdict_counts,
        timer=words.timer_words,
        cache=words.cache_words,
        largest=words.largest,
        regime=words.regime_words,
        flag=words.flag_word,
        flag_sentence=words.flag_sentence,
        flagged=words.flagged,
        nearest_ceiling=words.nearest_ceiling,
        ceiling=words.ceiling_words,
        ceiling_unit=words.ceiling_unit,
        processes=words.process_words,
        terminal=words.plain_text,
        measured_rows=devices.measured_rows,
        by_workload=devices.by_workload,
        computes=devices.computes,
        typical_latency=rows.typical_latency,
        families=rows.families,
        statuses=rows.statuses,
        flags_of=rows.flags_of,
    )
    return environment
