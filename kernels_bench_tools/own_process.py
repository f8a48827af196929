"""The commands and variables of the processes in which this package runs its own modules.

They import no file of the current folder, which may be a repository that was just cloned, and get no credentials that
they do not need.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.text.hiding import has_credentials

PACKAGE_FOLDER = Path(__file__).parent
PYTHON = sys.executable
"""The interpreter that runs this package."""

CREDENTIAL_NAME = re.compile(
    r"(?!(?:OLD)?PWD$)(?:.*_)?(?:PAT|COOKIE|USERNAME|NETRC|[^_]*(?:TOKEN|KEY(?:ID)?|SECRET|CRED(?:ENTIAL)?|PWD?|JWT|DSN"
    r"|WEBHOOK|(?<!BY)PASS(?:W(?:OR)?D|PHRASE)?|AUTH(?:ORIZATION)?|BEARER))S?(?:_|$)"
    r"|.*_(?:(?:SAS|BASIC|SESSION(?:ID)?|HEADER|SIG(?:NATURE)?|LOGIN|OTP|HMAC|TICKET|ASSERTION|CONN(?:ECTION)?_?STR(?:ING)?)S?)\d*$",
    re.IGNORECASE,
)
"""A word between ``_`` of a variable's name that is one of these, or ends with one; of the second row, its last word."""
_URL_WITH_PASSWORD = re.compile(r"://[^/\s@]+@|(?:^|[\s,;])[^/\s@:,;]+:[^\s@]*@")
"""Also without a scheme: ``user:password@host:3128``."""
_AUTHORIZATION = re.compile(r"(?:[\w-]+: *)?(?:bearer|basic|token) +\S", re.IGNORECASE)
_OF_NETWORK = re.compile(r"(HF|HUGGING_?FACE)_.*|.*_PROXY", re.IGNORECASE)


def python_command(*arguments: str, python: str = PYTHON) -> list[str]:
    """Return the command that runs a module (``-m``) or a file of this package."""
    return [python, "-P", *arguments]


def isolated_command(code: str, python: str = PYTHON) -> list[str]:
    """Return the command that runs code without user settings, PYTHON variables and ``.pth`` files."""
    return [python, "-I", "-S", "-c", code]


def module_variables(
    environ: Mapping[str, str], package: Path = PACKAGE_FOLDER.parent, *, network: bool = False
) -> dict[str, str]:
    """Return variables with which this package is imported from the folder ``package``, even if it is not installed.

    With ``network``, those with the user's token of the Hub, and with the password of a proxy, are among them.
    """
    # An empty or relative entry is the current folder, or in it.
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if Path(path).is_absolute()]
    passed = {
        name: value
        for name, value in environ.items()
        if not is_credential(name, value) or (network and _OF_NETWORK.fullmatch(name))
    }
    return passed | {"PYTHONPATH": os.pathsep.join([*paths, str(package)])}


def run_program(command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, without the user's credentials; return what it printed. ``options`` are those of ``run``."""
    variables = module_variables(os.environ)
    return subprocess.run(command, env=variables, capture_output=True, text=True, check=False, **options)


def run_module(
    where: str, module: str, *arguments: str, codes: Collection[int] = (0,), network: bool = False
) -> int:
    """Run a module of this package to its end, with the output of this process; return its exit code, one of ``codes``.

    Another one is a ``KbtError`` of ``where``; ``network`` is as in :func:`module_variables`.
    """
    command, variables = (
        python_command("-m", module, *arguments),
        module_variables(os.environ, network=network),
    )
    code = subprocess.run(command, env=variables, check=False).returncode
    if code not in codes:
        raise KbtError(where, f"its process ended with exit code {code}", "", "See its output above")
    return code


def is_credential(name: str, value: str) -> bool:
    """Return whether a variable may be a credential, or have one in it."""
    # What is before "@" in a proxy's address is a name or a password, however it is written.
    of_user = "@" in value and (name.upper().endswith("_PROXY") or _URL_WITH_PASSWORD.search(value))
    of_header = _AUTHORIZATION.match(value)
    return bool(of_user or of_header or has_credentials(value) or CREDENTIAL_NAME.match(name))


def import_paths() -> list[str]:
    """Return where this interpreter imports from, without the folder in which it was started."""
    # `python -m` adds it, and a cell could write modules there.
    started = {Path.cwd()} - {PACKAGE_FOLDER.parent}
    return [path for path in sys.path if path and Path(path) not in started]
