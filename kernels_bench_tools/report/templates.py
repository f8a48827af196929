"""The Jinja templates and what they may call."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from types import CodeType
from typing import ClassVar

from jinja2 import BytecodeCache, Environment, FileSystemBytecodeCache, FileSystemLoader, StrictUndefined
from jinja2.bccache import Bucket

from kernels_bench_tools.report import dates, rows, words
from kernels_bench_tools.report import device_rows as devices
from kernels_bench_tools.report import format as numbers
from kernels_bench_tools.report.keys import digest, program_key
from kernels_bench_tools.report.static import template_folder


class CompiledTemplates(BytecodeCache):
    """Templates that were compiled before: to compile them takes longer than to render an operator's pages.

    They are kept in this process, and in a folder for the next one. What a template becomes depends on our own
    settings too, so one that another version of this package compiled is compiled anew.

    Args:
        folder: Where they are kept; None for nowhere.
    """

    _known: ClassVar[dict[tuple[str, str], CodeType]] = {}

    def __init__(self, folder: Path | None) -> None:
        self._files = FileSystemBytecodeCache(str(folder)) if folder else None

    def get_source_checksum(self, source: str) -> str:
        """Return what a compiled template must have been made from."""
        return digest(program_key(), source)

    def load_bytecode(self, bucket: Bucket) -> None:
        """Fill in a compiled template, if there is a good one."""
        bucket.code = self._known.get((bucket.key, bucket.checksum))
        if bucket.code is None and self._files is not None:
            try:
                self._files.load_bytecode(bucket)
            except Exception:  # whatever pickle makes of a damaged file: it is compiled anew
                bucket.reset()

    def dump_bytecode(self, bucket: Bucket) -> None:
        """Keep a compiled template, in its folder if the disk takes it."""
        if bucket.code is not None:
            self._known[bucket.key, bucket.checksum] = bucket.code
        if self._files is not None:
            with suppress(OSError):
                self._files.dump_bytecode(bucket)


def make_environment(state: Path | None = None) -> Environment:
    """Return the environment that renders pages: all text is escaped, and a missing name is an error.

    Args:
        state: Folder of what builds keep; compiled templates are kept in it too, if it exists.
    """
    environment = Environment(
        loader=FileSystemLoader(template_folder()),
        bytecode_cache=CompiledTemplates(_folder(state)),
        # They do not change while a build lasts.
        auto_reload=False,
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
        day=dates.day,
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
        flagged=words.flagged,
        nearest_ceiling=words.nearest_ceiling,
        ceiling=words.ceiling_words,
        by_kind=words.ceilings_by_kind,
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


def _folder(state: Path | None) -> Path | None:
    if state is None or not state.is_dir():
        return None
    folder = state / "templates"
    try:
        folder.mkdir(exist_ok=True)
    except OSError:  # a full or a read-only disk
        return None
    return folder
