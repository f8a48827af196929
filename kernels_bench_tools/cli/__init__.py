"""The command ``kbt``: one module per verb, results on stdout, progress on stderr."""

from __future__ import annotations

import sys
from typing import NoReturn

USER_MISTAKE = 1
FAILURE = 2
"""A result is above the roofline, a self-check failed, or a cell failed under ``--strict``."""
INTERRUPTED = 130


def main() -> NoReturn:
    """Run the command line and exit.

    Exit codes: 0 done (the report lists failed implementations), 1 a mistake of the user, 2 a result is above the
    roofline or, with ``--strict``, a cell failed, 130 interrupted.
    """
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
