"""The project's self-checks: the accuracy of its timing on each device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kernels_bench_tools.errors import ProjectError
from kernels_bench_tools.file_io import read_struct
from kernels_bench_tools.schema.selfcheck import KernelAgreement, SelfCheck

_FOLDER = "selfcheck"
_METHODS = {"timer": "Timer of 5", "do_bench_cudagraph": "…_cudagraph"}
"""Names of methods in column headers, where they differ from those in the file."""


@dataclass(frozen=True)
class CallComparison:
    """A call in the table of a device."""

    agreement: KernelAgreement
    difference: float | None
    """Our time over ncu's without its own cost, minus 1."""
    methods: Sequence[float | None]
    """Each method's time divided by the reference."""


@dataclass(frozen=True)
class SelfCheckSection:
    """A device's self-check."""

    check: SelfCheck
    methods: Sequence[str]
    """Column headers of the other methods."""
    reference: str
    """Name of the time that theirs are divided by."""
    kernels: Sequence[CallComparison]

    @property
    def passed(self) -> int:
        """How many checks passed."""
        return sum(one.passed for one in self.check.checks)

    @property
    def worst(self) -> float | None:
        """The largest relative difference from ncu, unsigned."""
        known = [abs(kernel.difference) for kernel in self.kernels if kernel.difference is not None]
        return max(known, default=None)

    @property
    def varies(self) -> bool:
        """Whether calls were timed in several processes."""
        return any(kernel.agreement.variation is not None for kernel in self.kernels)


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
            sections.append(_section(read_struct(file, SelfCheck)))
            continue
        except OSError as error:
            what = f"cannot be read ({error.strerror})"
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            what = f"is not a self-check: {error}"
        problems.append(ProjectError(f"{_FOLDER}/{file.name}", what, "A file of `kbt selfcheck`"))
    sections.sort(key=lambda section: (section.check.device.kind == "cpu", section.check.device.slug))
    return SelfChecks(sections, problems)


def _section(check: SelfCheck) -> SelfCheckSection:
    names = list(dict.fromkeys(name for kernel in check.kernels for name in kernel.methods))
    has_ncu = any(kernel.ncu_us is not None for kernel in check.kernels)
    return SelfCheckSection(
        check=check,
        methods=[_METHODS.get(name, name) for name in names],
        reference="ncu" if has_ncu else "ours",
        kernels=[_kernel(kernel, names, has_ncu) for kernel in check.kernels],
    )


def _kernel(kernel: KernelAgreement, methods: Sequence[str], has_ncu: bool) -> CallComparison:
    truth = kernel.truth_us if has_ncu else kernel.ours_us
    times = [kernel.methods.get(name) for name in methods]
    return CallComparison(
        agreement=kernel,
        difference=kernel.ours_us / kernel.truth_us - 1 if kernel.truth_us else None,
        methods=[time / truth if time is not None and truth else None for time in times],
    )
