"""Exceptions for mistakes of the user.

    KbtError                 anything that the user can fix; shown as one line, never as a traceback
    ├── ProjectError         the project or its configuration
    ├── NotebookError        a notebook: front matter, fences, attributes, needs
    ├── RecordError          a record or a file of records
    ├── OperatorError        an operator or its workloads
    ├── SuiteError           a suite's definition
    └── ModelError           a model's configuration
    Unsupported              an implementation cannot run here; a row in the report, not an error

Every message reads ``where: what is wrong. Expected: what would be right. What to do.``
"""

from __future__ import annotations

from kernels_bench_tools.text.hiding import visible


class KbtError(Exception):
    """A mistake of the user, reported in one line. ``where`` is a file (with its line), an option or a name."""

    def __init__(self, where: str, what: str, expected: str = "", remedy: str = "") -> None:
        self.where = where
        self.what = what
        self.expected = expected
        self.remedy = remedy
        super().__init__(where, what, expected, remedy)

    def __str__(self) -> str:
        """Return the message."""
        expected = f"Expected: {self.expected}" if self.expected else ""
        parts = (part.strip() for part in (self.what, expected, self.remedy) if part)
        said = " ".join(part if part[-1] in ".?!" else f"{part}." for part in parts)
        where = self.where.replace("\n", "\\n")  # the name of a file may have one
        return visible(f"{where}: {said}")


class ProjectError(KbtError):
    """The project, its configuration or a path given on the command line is wrong."""


class NotebookError(KbtError):
    """A notebook cannot be read as one."""


class RecordError(KbtError):
    """A record or a file of records is not valid."""


class OperatorError(KbtError):
    """An operator or one of its workloads does not exist."""


class SuiteError(KbtError):
    """A suite does not exist, or its file is not valid."""


class ModelError(KbtError):
    """A model does not exist, its configuration is not supported, or it cannot be split as asked."""


class Unsupported(Exception):  # noqa: N818 - an outcome that the report shows, not an error
    """This implementation cannot run here; raised by a function given to ``run_benchmark(load=…)``."""
