"""The command ``kbt``: one module per verb, results on stdout, progress on stderr."""

from __future__ import annotations

import io
import os
import sys
from typing import NoReturn

FAILURE, USER_MISTAKE, INTERRUPTED = 1, 2, 130
EXIT_CODES = {
    0: "all right, or unsupported on this machine",
    FAILURE: "something that this command ran, measured or checked is wrong or failed",
    USER_MISTAKE: "a mistake in the arguments, the settings, or all of the given notebooks",
    INTERRUPTED: "interrupted; finished results are kept",
}


def main() -> NoReturn:
    """Run the command line and exit with one of ``EXIT_CODES``."""
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
            f"kbt: needs the package {error.name!r}, which is not installed. "
            "Run `pip install kernels-bench-tools`.",
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
