"""Ask the hub now, so that cells need not: the process that ``kbt prefetch`` starts.

It reads what to fetch from stdin (JSON, a list of :class:`Wanted`), writes the lock, and says on stdout how each
ended (JSON, one :class:`Fetched` per line).
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.hub.deadline import find_deadline
from kernels_bench_tools.hub.device import backend_for
from kernels_bench_tools.hub.kernel import check_library, check_switch, choose, dependency_reference
from kernels_bench_tools.hub.lock import KernelsLock, read_lock, write_lock
from kernels_bench_tools.hub.reference import parse_reference
from kernels_bench_tools.hub.resolve import Found, Terms, resolve_anew
from kernels_bench_tools.hub.status import HubError, HubStatus


class Wanted(msgspec.Struct, kw_only=True):
    """A call of ``get_kernel`` whose kernel is to be fetched."""

    reference: str | dict[str, str]
    version: int | str | None = None
    revision: str | None = None
    trust: list[str] = msgspec.field(default_factory=list)


class Fetched(msgspec.Struct, kw_only=True, omit_defaults=True):
    """How one ended."""

    reference: str
    status: str
    reason: str = ""
    commit: str = ""
    variant: str = ""
    notes: list[str] = msgspec.field(default_factory=list)


def main(path: Path) -> int:
    """Fetch what stdin names and lock it in ``path``; return 0 if all was had, else 2, or 1 for a mistake.

    What cannot be had now keeps the line that it has in the lock.
    """
    try:
        wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=list[Wanted])
        lock = read_lock(path) if path.exists() else KernelsLock()
        statuses = []
        for one in wanted:
            for fetched in fetch(one, lock):
                print(msgspec.json.encode(fetched).decode(), flush=True)
                statuses.append(fetched.status)
            if HubStatus.OK in statuses:
                write_lock(path, lock)
    except KbtError as error:
        print(error, file=sys.stderr)
        return 1
    return 0 if set(statuses) <= {HubStatus.OK} else 2


def fetch(wanted: Wanted, lock: KernelsLock) -> Iterator[Fetched]:
    """Fetch a kernel and those it depends on, put them into ``lock``, and yield how each ended."""
    name = str(wanted.reference)
    try:
        check_switch()
        check_library()
        choices = wanted.reference if isinstance(wanted.reference, dict) else {"": wanted.reference}
        parsed = {k: parse_reference(text, wanted.version, wanted.revision) for k, text in choices.items()}
        queue = [choose(parsed)]
        terms = Terms(wanted.trust, find_deadline(None), backend_for(None))
        seen: set[str] = set()
        while queue:
            reference = queue.pop(0)
            name = reference.requested
            if reference.folder or reference.name in seen:
                continue
            seen.add(reference.name)
            found, answer = resolve_anew(reference, terms)
            lock.add(answer)
            queue += [dependency_reference(one) for one in found.build.metadata.kernel_depends]
            yield _fetched(found)
    except HubError as error:
        yield Fetched(reference=name, status=error.status, reason=error.reason)


def _fetched(found: Found) -> Fetched:
    return Fetched(
        reference=found.reference.requested,
        status=HubStatus.OK,
        commit=found.commit,
        variant=found.build.variant,
        notes=found.notes,
    )


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
