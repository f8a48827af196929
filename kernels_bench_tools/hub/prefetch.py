"""The process that ``kbt prefetch`` starts: requests from stdin as JSON, results to stdout as JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.hub.kernel import dependency_reference, prepare
from kernels_bench_tools.hub.resolve import resolve_on_hub
from kernels_bench_tools.hub.status import HubError, HubStatus
from kernels_bench_tools.hub.store import KernelsLock, read_lock, write_lock
from kernels_bench_tools.records.hub import FetchedKernel, KernelRequest


def main(path: Path) -> int:
    """Lock the kernels named on stdin, if available; return 0 if all are, 2 if not, 3 for a mistake of the user."""
    statuses, code = [], 0
    try:
        requests = msgspec.json.decode(sys.stdin.buffer.read(), type=list[KernelRequest])
        lock = read_lock(path) if path.exists() else KernelsLock()
        for request in requests:
            try:
                for fetched in fetch(request, lock):
                    statuses.append(fetched.status)
                    if fetched.status == HubStatus.OK:
                        write_lock(path, lock)
                    print(msgspec.json.encode(fetched).decode(), flush=True)
            except KbtError as error:
                code = _mistake(error)
    except KbtError as error:
        return _mistake(error)
    return code or (0 if set(statuses) <= {HubStatus.OK} else 2)


def _mistake(error: KbtError) -> int:
    print(f"kbt: {error}", file=sys.stderr)
    return 3


def fetch(request: KernelRequest, lock: KernelsLock) -> Iterator[FetchedKernel]:
    """Fetch a kernel and its dependencies, add them to ``lock``, and yield how each ended."""
    name = str(request.reference)
    try:
        chosen, options = prepare(request.reference, request.version, request.revision, request.trust)
        if chosen.folder:
            print(f"note: {name}: a folder of this machine, which no lock can contain", file=sys.stderr)
        queue, seen = [chosen], set[str]()
        while queue:
            reference = queue.pop(0)
            name = reference.requested
            if reference.folder or reference.name in seen:
                continue
            seen.add(reference.name)
            found, answer = resolve_on_hub(reference, options)
            lock.add(answer)
            queue += [dependency_reference(one) for one in found.build.metadata.kernel_depends]
            commit, variant, notes = found.info.commit, found.info.variant, found.info.notes
            yield FetchedKernel(
                reference=name, status=HubStatus.OK, commit=commit, variant=variant, notes=notes
            )
    except HubError as error:
        yield FetchedKernel(reference=name, status=error.status, reason=error.reason)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
