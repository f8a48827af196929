"""The process that ``kbt prefetch`` starts: requests from stdin as JSON, results to stdout as JSON lines."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec

from kernels_bench_tools.errors import KbtError
from kernels_bench_tools.file_io import write_atomically
from kernels_bench_tools.hub.kernel import dependency_reference, prepare
from kernels_bench_tools.hub.reference import KernelReference
from kernels_bench_tools.hub.resolve import dependency_of, read_locks, resolve_on_hub
from kernels_bench_tools.hub.status import HubError, HubStatus
from kernels_bench_tools.records.hub import FetchedKernel, KernelRequest


def main(path: Path) -> int:
    """Download the kernels named on stdin, and lock those that are available.

    Entries of other kernels stay in the lock. Returns 0 if all are available, 2 if not, 3 for a mistake of the user.
    """
    from kernels._rust import KernelLock, KernelLocks

    requests = msgspec.json.decode(sys.stdin.buffer.read(), type=list[KernelRequest])
    try:
        locks = read_locks(path) if path.exists() else {}
    except KbtError as error:
        print(f"kbt: {error}", file=sys.stderr)
        return 3
    entries = {kernel: locks[kernel] for kernel in locks}
    code = 0
    for request in requests:
        try:
            for reference, fetched in fetch(request):
                if fetched.status != HubStatus.OK:
                    code = max(code, 2)
                elif not reference.bounds:
                    entries[dependency_of(reference)] = KernelLock(fetched.commit)
                    try:
                        path.parent.mkdir(parents=True, exist_ok=True)
                        write_atomically(path, KernelLocks(entries).to_json().encode())
                    except OSError as error:
                        raise KbtError(str(path), f"cannot be written ({error.strerror})") from None
                print(msgspec.json.encode(fetched).decode(), flush=True)
        except KbtError as error:
            print(f"kbt: {error}", file=sys.stderr)
            code = 3
    return code


def fetch(request: KernelRequest) -> Iterator[tuple[KernelReference, FetchedKernel]]:
    """Download a kernel and its dependencies, and yield how each ended."""
    name, reference = str(request.reference), KernelReference(str(request.reference))
    try:
        chosen, options = prepare(request.reference, request.version, request.revision, request.trust)
        if chosen.folder:
            print(f"note: {name}: a folder of this machine, which no lock can contain", file=sys.stderr)
        elif chosen.bounds:
            print(f"note: {name}: a lock has versions, no bounds; the kernel is downloaded", file=sys.stderr)
        queue, seen = [chosen], set[str]()
        while queue:
            reference = queue.pop(0)
            name = reference.requested
            if reference.folder or reference.name in seen:
                continue
            seen.add(reference.name)
            build, info = resolve_on_hub(reference, options)
            queue += map(dependency_reference, build.metadata.kernel_depends)
            fetched = FetchedKernel(reference=name, status=HubStatus.OK, commit=info.commit)
            fetched.variant, fetched.notes = info.variant, info.notes
            yield reference, fetched
    except HubError as error:
        yield reference, FetchedKernel(reference=name, status=error.status, reason=error.reason)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
