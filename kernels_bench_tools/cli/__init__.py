"""The command ``kbt``: one file per verb, results on stdout, progress on stderr."""

from __future__ import annotations

import sys
from typing import NoReturn

USER_MISTAKE = 1
FAILURE = 2
"""A row is faster than physics allows, a self-check did not pass, or a cell failed under ``--strict``."""
INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command line and exit.

    Exit codes: 0 done (failed implementations are rows in the report), 1 the user's mistake, 2 when a row
    is faster than physics allows, or with ``--strict`` when a cell failed, 130 interrupted.
    """
    try:
        from kernels_bench_tools.cli.app import find_app, run

        app = find_app(sys.argv[1:])
    except ModuleNotFoundError as error:
        print(
            f"kbt: needs the package {error.name!r}. The command's packages come with the extra `report`. "
            "Install `kernels-bench-tools[report]`.",
            file=sys.stderr,
        )
        sys.exit(USER_MISTAKE)
    sys.exit(run(app, sys.argv[1:]))
