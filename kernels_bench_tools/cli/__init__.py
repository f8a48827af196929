"""The command ``kbt``: one module per verb, results on stdout, progress on stderr."""

from __future__ import annotations

import io
import os
import signal
import sys
import time
from types import FrameType
from typing import NoReturn

FAILURE, USER_MISTAKE, INTERRUPTED = 1, 2, 130
EXIT_CODES = {
    0: "success, or unsupported on this machine",
    FAILURE: "something that the command ran, measured or checked failed or is wrong",
    USER_MISTAKE: "a usage error: invalid arguments or settings, or errors in all given notebooks",
    INTERRUPTED: "interrupted; finished results are kept",
}


_AT_ONCE = 1.0
"""Seconds in which Ctrl-C pressed again is the same interruption."""


def _interrupt_once() -> None:
    """Let Ctrl-C interrupt at most once a second: one more would stop what the first one began, such as ending cells."""
    last = -_AT_ONCE

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal last
        if time.monotonic() - last > _AT_ONCE:
            last = time.monotonic()
            raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not where a shell has it ignored
        signal.signal(signal.SIGINT, interrupt)


def main() -> NoReturn:
    """Run the command line and exit with one of ``EXIT_CODES``."""
    _interrupt_once()
    # Else a closed stream's number would be that of the next file that is opened, which then gets what is printed.
    while (opened := os.open(os.devnull, os.O_RDWR)) <= 2:
        pass
    os.close(opened)
    sys.stdout, sys.stderr = sys.stdout or open(1, "w"), sys.stderr or open(2, "w")  # noqa: SIM115
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # its encoding may lack ×
    try:
        from kernels_bench_tools.cli.app import end_interrupted, find_app, run

        app = find_app(sys.argv[1:])
    except ModuleNotFoundError as error:
        print(
            f"kbt: the package {error.name!r} is not installed. Run `pip install kernels-bench-tools`.",
            file=sys.stderr,
        )
        sys.exit(USER_MISTAKE)
    except KeyboardInterrupt:  # while importing
        os._exit(INTERRUPTED)
    try:
        code = run(app, sys.argv[1:])
    except KeyboardInterrupt:  # pressed twice
        code = end_interrupted(sys.argv[1:])
    sys.exit(code)
