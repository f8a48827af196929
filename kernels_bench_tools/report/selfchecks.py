"""The page that says how good the numbers are: the project's self-checks, device by device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from kernels_bench_tools.file_io import read_struct
from kernels_bench_tools.schema.selfcheck import KernelAgreement, SelfCheck

PAGE = "selfcheck.html"
FOLDER = "selfcheck"
TITLE = "How good are these numbers?"
METHOD_WORDS = {
    "timer": "Timer of 5",
    "do_bench": "do_bench",
    "do_bench_cudagraph": "…_cudagraph",
}


@dataclass(frozen=True)
class KernelView:
    """A call in the table of a device."""

    agreement: KernelAgreement
    difference: float | None
    """Our time over ncu's without its own cost, minus 1."""
    methods: Sequence[float | None]
    """Each method's time as a multiple of the best known one."""


@dataclass(frozen=True)
class SelfCheckView:
    """A device's self-check."""

    check: SelfCheck
    methods: Sequence[str]
    """What the columns of other methods are called."""
    truth: str
    """What their times are multiples of."""
    kernels: Sequence[KernelView]

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
    """All that a project has."""

    views: Sequence[SelfCheckView]
    problems: Sequence[str]
    """Files that cannot be read, and why."""


def read_selfchecks(root: Path) -> SelfChecks:
    """Return the self-checks under ``root``, GPUs first, then by the slug of the device."""
    views, problems = [], []
    for file in sorted((root / FOLDER).glob("*.json")):
        try:
            views.append(_view(read_struct(file, SelfCheck)))
        except OSError as error:
            problems.append(f"{FOLDER}/{file.name} cannot be read: {error.strerror}")
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            problems.append(f"{FOLDER}/{file.name} is not a self-check: {error}")
    views.sort(key=lambda view: (view.check.device.kind == "cpu", view.check.device.slug))
    return SelfChecks(views, problems)


def _view(check: SelfCheck) -> SelfCheckView:
    names = list(dict.fromkeys(name for kernel in check.kernels for name in kernel.methods))
    has_ncu = any(kernel.ncu_us is not None for kernel in check.kernels)
    return SelfCheckView(
        check=check,
        methods=[METHOD_WORDS.get(name, name) for name in names],
        truth="ncu" if has_ncu else "ours",
        kernels=[_kernel(kernel, names, has_ncu) for kernel in check.kernels],
    )


def _kernel(kernel: KernelAgreement, methods: Sequence[str], has_ncu: bool) -> KernelView:
    truth = kernel.truth_us if has_ncu else kernel.ours_us
    times = [kernel.methods.get(name) for name in methods]
    return KernelView(
        agreement=kernel,
        difference=kernel.ours_us / kernel.truth_us - 1 if kernel.truth_us else None,
        methods=[time / truth if time is not None and truth else None for time in times],
    )
