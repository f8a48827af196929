"""The project's self-checks: the accuracy of its timing on each device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import read_struct
from kernels_bench_tools.records.selfcheck import SelfCheck

_FOLDER = "selfcheck"


@dataclass(frozen=True)
class SelfCheckSection:
    """A device's self-check."""

    check: SelfCheck

    @property
    def passed(self) -> int:
        """How many checks passed."""
        return sum(one.passed for one in self.check.checks)

    @property
    def worst(self) -> float | None:
        """The largest relative difference from ncu, unsigned."""
        differences = [kernel.difference for kernel in self.check.kernels]
        return max((abs(one) for one in differences if one is not None), default=None)

    @property
    def varies(self) -> bool:
        """Whether calls were timed in several processes."""
        return any(kernel.variation is not None for kernel in self.check.kernels)


@dataclass(frozen=True)
class SelfChecks:
    """The self-checks of a project."""

    sections: Sequence[SelfCheckSection]
    problems: Sequence[ProjectError]
    """Errors of files that cannot be read, or are no self-checks."""


def find_selfchecks(root: Path) -> list[Path]:
    """Return the files of self-checks."""
    return sorted((root / _FOLDER).glob("*.json"))


def read_selfchecks(root: Path) -> SelfChecks:
    """Return the self-checks under ``root``, GPUs first, then by the slug of the device."""
    sections, problems = [], list[ProjectError]()
    for file in find_selfchecks(root):
        try:
            sections.append(SelfCheckSection(read_struct(file, SelfCheck)))
            continue
        except OSError as error:
            what = f"cannot be read ({error.strerror})"
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            what = f"is not a self-check: {error}"
        problems.append(ProjectError(f"{_FOLDER}/{file.name}", what, "A file of `kbt selfcheck`"))
    sections.sort(key=lambda section: (section.check.device.kind == "cpu", section.check.device.slug))
    return SelfChecks(sections, problems)
