"""Time of the commands that read the history of records: 500 commits x 60 implementations, each commit changes three files.

    python benchmarks/history.py [--commits 500]

The repository is made in a temporary folder, of 10 operators with 6 implementations each. A file of records has the size of
`layer_norm/triton_layer_norm`'s on an H200: 12 workloads in 3 processes. Half of the commits are timed, too, to see
whether time is linear.
"""

from __future__ import annotations

import argparse
import random
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from commands import timed, variables
from msgspec.structs import replace

from kernels_bench_tools.records.codec import encode_record, read_records, share_fields
from kernels_bench_tools.records.record import Record

ROOT = Path(__file__).parents[1]
TEMPLATE = ROOT / "layer_norm/results/records/nvidia-h200/triton_layer_norm.jsonl"
NOTEBOOK = "# Page\n\n```python id=benchmark outputs=op.jsonl\nprint(1)\n```\n"
OPERATORS, IMPLEMENTATIONS, CHANGED = 10, 6, 3


def records(template: list[Record], operator: str, number: int, commit: int, chance: random.Random) -> bytes:
    """Return a file of an implementation, measured for a commit: every fifth time its code has changed."""
    factor, code = 1 + chance.gauss(0, 0.001), f"{chance.randrange(5) and 'same':4}"
    made = []
    for record in template:
        assert record.lat_ms
        scale = factor * (1 + chance.gauss(0, 0.0005))
        latency = {name: getattr(record.lat_ms, name) * scale for name in ("p50", "ci_low", "ci_high")} | {
            "raw_times": [time * scale for time in record.lat_ms.raw_times]
        }
        made.append(
            replace(
                record,
                op=operator,
                impl=f"impl_{number}",
                run=f"{commit}-{record.process}",
                ts=f"2026-{1 + commit // 28 % 12:02}-{1 + commit % 28:02}T{commit // 336:02}:00:00+00:00",
                lat_ms=replace(record.lat_ms, **latency),
                provenance=replace(record.provenance, code_digest=code, commit=""),
            )
        )
    return b"".join(map(encode_record, share_fields(made)))


def history(commits: int) -> Iterator[bytes]:
    """Yield the input of `git fast-import`."""
    chance, template = random.Random(0), read_records(TEMPLATE)
    template = [record for record in template if record.lat_ms]

    def file(path: str, data: bytes) -> bytes:
        return b"M 100644 inline %b\ndata %d\n%b\n" % (path.encode(), len(data), data)

    for commit in range(commits):
        yield b"commit refs/heads/main\ncommitter n <e@x> %d +0000\ndata 6\ncommit\n" % (
            1_700_000_000 + 3600 * commit
        )
        pairs = [divmod(index, IMPLEMENTATIONS) for index in range(OPERATORS * IMPLEMENTATIONS)]
        if commit == 0:
            yield file("pyproject.toml", b"[tool.kbt]\n")
            for operator, number in pairs:
                yield file(f"op_{operator}/impls/impl_{number}.md", NOTEBOOK.encode())
        for operator, number in pairs if commit == 0 else chance.sample(pairs, CHANGED):
            path = f"op_{operator}/results/records/nvidia-h200/impl_{number}.jsonl"
            yield file(path, records(template, f"op_{operator}", number, commit, chance))


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--commits", type=int, default=500)
    commits = parser.parse_args().commits
    for count in (commits // 2, commits):
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            subprocess.run(["git", "init", "-q", "-b", "main", folder], check=True)
            with subprocess.Popen(
                ["git", "-C", folder, "fast-import", "--quiet"], stdin=subprocess.PIPE
            ) as importing:
                assert importing.stdin
                importing.stdin.writelines(history(count))
            for arguments in (["reset", "-q", "--hard"], ["repack", "-adfq"]):  # packed as in a clone
                subprocess.run(["git", "-C", folder, *arguments], check=True)
            print(f"{count} commits:", flush=True)
            for arguments in (
                ["history", "op_0/impl_0"],
                ["history", "op_0"],
                ["compare", "HEAD~10", "HEAD"],
                ["compare", f"HEAD~{count - 1}", "HEAD"],
                ["build", "--no-measure", "-o", "plain"],
                ["build", "--no-measure", "--since", "HEAD~10"],
            ):
                command = [sys.executable, "-m", "kernels_bench_tools", *arguments]
                cost = timed(command, folder, variables(folder))
                print(
                    f"  kbt {' '.join(arguments)}: {cost.seconds:.2f} s, {cost.cpu_seconds:.2f} s of a core",
                    flush=True,
                )


if __name__ == "__main__":
    main()
