"""The command ``kbt``: one module per verb, results on stdout, progress on stderr."""

from __future__ import annotations

import io
import sys
from typing import NoReturn

FAILURE = 1
"""Something that the command ran, measured or checked is wrong or failed."""
USER_MISTAKE = 2
"""An argument, a setting, a notebook or a file cannot be used as it is."""
INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command line and exit.

    Exit codes: 0 all right, 1 something that was run, measured or checked is wrong or failed, 2 a mistake of the user,
    130 interrupted.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # its encoding may lack ×
    try:
        from kernels_bench_tools.cli.app import find_app, run

        app = find_app(sys.argv[1:])
    except ModuleNotFoundError as error:
        print(
            f"kbt: needs the package {error.name!r}, which is not installed. "
            "Run `pip install kernels-bench-tools`.",
            file=sys.stderr,
        )
        sys.exit(USER_MISTAKE)
    sys.exit(run(app, sys.argv[1:]))
