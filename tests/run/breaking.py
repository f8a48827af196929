"""Whole builds to break: a generated tree, and ``kbt build`` in processes of its own whose words are witnesses."""

import os
import random
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import psutil

from kernels_bench_tools.file_io import read_struct
from kernels_bench_tools.report.site import publish
from kernels_bench_tools.run.cache.entry import StoredResult, read_entry
from kernels_bench_tools.schema.build import BuildRun, CellRun
from kernels_bench_tools.schema.record import Status

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.trees import HEADER, make_tree  # noqa: E402

PLAIN, MEASURING, PROCESSES = 8, 4, 2
DIED = "died.md:a"
"""The cell of the tree that never ends well, and so runs in each build."""

_RECORD = {
    "ts": "2026-11-20T10:00:00Z",
    "run": "r",
    "wl": {"name": "w"},
    "status": "ok",
    "ok": True,
    "schema": 1,
    "lat_ms": {"p10": 1.0, "p50": 1.0, "p90": 1.0, "mean": 1.0, "iqr": 0.0, "reps": 1},
}
_MEASURE = """{header}import json, os
with open(os.environ["KBT_CONTEXT"]) as file:
    process = json.load(file)["process"]
record = {record!r} | {{"impl": "m{number}", "process": process}}
for name in ("w1", "w2"):
    with open("op.jsonl", "a") as file:
        file.write(json.dumps(record | {{"wl": {{"name": name}}}}) + chr(10))
"""
_COMBINE = """{header}import json, os
with open(os.environ["KBT_NEEDS"]) as file:
    needs = json.load(file)["cells"]
with open("table.csv", "w") as table:
    for need in needs:
        with open(os.path.join(need["directory"], "op.jsonl")) as file:
            table.write(need["notebook"] + "," + str(len(file.readlines())) + chr(10))
"""
_SLEEP = """{header}import subprocess
subprocess.Popen(["sleep", "{seconds}"], start_new_session=True)
open("started.txt", "w").write("started")
"""
_STARTED = re.compile(r"  (?P<cell>\S+\.md:\S+)  running(?:, process (?P<process>\d+) of \d+)?")
_KNOWN = re.compile(r"(?P<cell>\S+\.md:\S+): process (?P<process>\d+) is known, .*")
_FINISHED = re.compile(r"✓ (?P<cell>\S+\.md:\S+)  ")


@dataclass
class Told:
    """What a build said, and how it ended."""

    code: int
    stdout: str
    stderr: str

    @property
    def lines(self) -> list[str]:
        return self.stderr.splitlines()

    @property
    def started(self) -> set[tuple[str, int]]:
        """Cells, and their processes from 0, that this build ran."""
        return _cells(_STARTED, self.lines) - _cells(_KNOWN, self.lines)

    @property
    def ran(self) -> set[str]:
        """The cells that this build ran, but for the one that never ends well."""
        return {cell for cell, _ in self.started} - {DIED}

    @property
    def finished(self) -> set[str]:
        """The cells that it said had ended well."""
        return {one["cell"] for one in map(_FINISHED.match, self.lines) if one}


def _cells(pattern: re.Pattern[str], lines: list[str]) -> set[tuple[str, int]]:
    found = filter(None, map(pattern.fullmatch, lines))
    return {(one["cell"], int(one["process"] or 1) - 1) for one in found}


@dataclass
class Tree:
    """A project of some thirty cells' processes, and builds of it."""

    root: Path
    folder: Path
    """For what builds put elsewhere: temporary folders and locks."""
    seconds: str = field(default_factory=lambda: f"8{os.getpid()}.{time.monotonic_ns() % 1000}")
    """How long the process sleeps that a cell leaves behind; nobody else sleeps as long."""

    def __post_init__(self) -> None:
        """Write the notebooks."""
        make_tree(self.root, PLAIN)
        self.write(
            "leaves.md", _SLEEP.format(header=HEADER, seconds=self.seconds), "id=a outputs=started.txt"
        )
        self.write("died.md", "import os; print('so far', flush=True); os.kill(os.getpid(), 9)", "id=a")
        for number in range(MEASURING):
            code = _MEASURE.format(header=HEADER, record=_RECORD, number=number)
            self.write(f"op/impls/m{number}.md", code, "id=benchmark outputs=op.jsonl")
        combine = _COMBINE.format(header=HEADER)
        attributes = "id=combine needs=../impls/*.md:benchmark outputs=table.csv"
        self.write("op/results/combined_results.md", combine, attributes)
        for name in ("tmp", "cache"):
            (self.folder / name).mkdir(parents=True)

    def write(self, name: str, code: str, attributes: str) -> None:
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"# {path.stem}\n\nProse.\n\n```python {attributes}\n{code}\n```\n", encoding="utf-8")

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "kernels_bench_tools", "build", "--env", "current", "--jobs", "2"]
        places = {"TMPDIR": self.folder / "tmp", "XDG_CACHE_HOME": self.folder / "cache", "PYTHONPATH": ROOT}
        return subprocess.Popen(
            [*command, "--processes", str(PROCESSES), *arguments],
            cwd=self.root,
            env=os.environ | {name: str(place) for name, place in places.items()},
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def build(self, *arguments: str) -> Told:
        build = self.start(*arguments)
        stdout, stderr = build.communicate(timeout=120)
        return Told(build.returncode, stdout, stderr)

    def kill_build(self, chance: random.Random, *arguments: str) -> Told | None:
        """Start a build and kill it at some moment; return what it had said, or None if it ended before."""
        build = self.start(*arguments)
        assert build.stderr is not None
        # Counted in lines, as many moments fall on each step, however fast the machine is.
        heard = [line for _, line in zip(range(chance.randrange(45)), build.stderr, strict=False)]
        time.sleep(chance.uniform(0.0, 0.05 if chance.random() < 0.7 else 0.5))
        build.kill()
        stdout, rest = build.communicate(timeout=30)
        return Told(build.returncode, stdout, "".join(heard) + rest) if build.returncode < 0 else None

    def entries(self) -> dict[str, StoredResult]:
        """Return the results in the cache that would be served, by the names of their folders.

        Raises:
            DamagedEntryError: One is not whole.
        """
        paths = {path.name: path for path in (self.root / ".kbt/cache").glob("[!.]*")}
        # One that was replaced is put back, unless what came in its place is there.
        served = [name for name in paths if name.removesuffix(".replaced") not in paths.keys() - {name}]
        entries = [(name, read_entry(paths[name])) for name in served]
        return {name: entry.result for name, entry in entries if entry is not None}

    def known(self) -> set[tuple[str, int | None]]:
        """Return the cells, and single processes of cells, whose results are in the cache and good."""
        known = set()
        for name, result in self.entries().items():
            process = re.search(r"-process-(\d+)$", name.removesuffix(".replaced"))
            if result.status is Status.OK:
                known.add((result.cell, int(process[1]) if process else None))
        return known

    def orphans(self) -> list[str]:
        """Return the command lines of processes that builds of this tree have left."""
        marks = (str(self.root), str(self.folder), self.seconds)
        found = []
        for one in psutil.process_iter(["cmdline", "cwd", "status"]):
            line = " ".join(one.info["cmdline"] or [])
            inside = str(one.info["cwd"] or "").startswith(marks[:2])
            if one.info["status"] != psutil.STATUS_ZOMBIE and (inside or any(mark in line for mark in marks)):
                found.append(line)
        return found

    def leftovers(self) -> list[str]:
        """Return what builds have left beside results: drafts, temporary files and folders."""
        inside = [*(self.root / ".kbt").rglob(".draft-*"), *(self.root / ".kbt").rglob("*.replaced")]
        return [str(path) for path in [*inside, *(self.folder / "tmp").glob("kbt-*")]]

    def pages(self) -> dict[str, bytes]:
        """Return the site's bytes, with the seconds that cells took made equal.

        The site that builds have brought about is compared with one made at once, bytes and all.
        """
        run = read_struct(self.root / ".kbt/build.json", BuildRun)
        afresh = self._publish(run)
        files = read_folder(self.root / "site")
        assert files == afresh, [name for name in afresh if afresh[name] != files.get(name)]
        for notebook in run.notebooks:
            notebook.blocks = [
                msgspec.structs.replace(one, seconds=1.0, cached=True) if isinstance(one, CellRun) else one
                for one in notebook.blocks
            ]
        return self._publish(run)

    def _publish(self, run: BuildRun) -> dict[str, bytes]:
        output = self.folder / "afresh"
        shutil.rmtree(output, ignore_errors=True)
        publish(self.root, run, output)
        return read_folder(output)


def read_folder(folder: Path) -> dict[str, bytes]:
    """Return the bytes of a folder's files but those of its manifest, which says how pages were made."""
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != ".kbt-site.json"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def wait_until(met, seconds: float = 20.0) -> bool:
    deadline = time.monotonic() + seconds
    while not met() and time.monotonic() < deadline:
        time.sleep(0.05)
    return bool(met())
