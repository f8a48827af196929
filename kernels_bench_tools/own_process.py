"""The commands and variables of the processes in which this package runs its own modules.

No file of the current folder is imported by them: it may be a repository that somebody has just cloned.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

PACKAGE_FOLDER = Path(__file__).parent
"""The folder of this package."""
PYTHON = sys.executable
"""The interpreter that runs this package."""


def module_command(module: str, *arguments: str, python: str = PYTHON) -> list[str]:
    """Return the command that runs a module of this package, with :func:`module_variables`."""
    return [python, "-P", "-m", module, *arguments]


def module_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """Return variables with which the interpreter imports this package, even if it is not installed."""
    # An empty or relative entry is the current folder, or in it.
    paths = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if Path(path).is_absolute()]
    return {**environ, "PYTHONPATH": os.pathsep.join([*paths, str(PACKAGE_FOLDER.parent)])}


def isolated_command(code: str, python: str = PYTHON, paths: list[str] | None = None) -> list[str]:
    """Return the command that runs code without user settings, PYTHON variables and ``.pth`` files.

    It imports from ``paths``, by default those of this interpreter without the current folder.
    """
    return [python, "-I", "-S", "-c", f"import sys; sys.path += {paths or import_paths()!r}; {code}"]


def import_paths() -> list[str]:
    """Return where this interpreter imports from, without the folder in which it was started."""
    started = {Path.cwd()} - {PACKAGE_FOLDER.parent}
    return [path for path in sys.path if path and Path(path) not in started]
