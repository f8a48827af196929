"""What a summarizing cell was given."""

from __future__ import annotations

import os

import msgspec

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.schema.build import NEEDS_VARIABLE, Needs


def read_needs(asker: str) -> Needs:
    """Return the cells and files that this cell needs.

    Args:
        asker: The function that the cell called; messages name it.

    Raises:
        KbtError: The cell was not started by ``kbt``, or what it was given cannot be read.
    """
    try:
        return Needs.load()
    except KeyError:
        raise KbtError(
            asker,
            f"{NEEDS_VARIABLE} is not set",
            "A cell that kbt started",
            "Run it with `kbt build` or `kbt run`",
        ) from None
    except (OSError, msgspec.DecodeError) as error:
        raise KbtError(
            os.environ[NEEDS_VARIABLE], f"cannot be read: {error}", "What kbt writes for this cell"
        ) from error
