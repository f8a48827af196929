"""A generated project, and ``kbt build`` of it in separate processes that tests kill or disturb."""

import os
import random
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import msgspec
import psutil
from projects import PYTHON, contents, run_kbt
from workspace import MEASURED, Workspace

from kernels_bench_tools.file_io import read_struct
from kernels_bench_tools.records.build import BuildRun, CellRun
from kernels_bench_tools.records.record import Status
from kernels_bench_tools.report.site import publish
from kernels_bench_tools.results.missing import missing_summaries
from kernels_bench_tools.run.cache.store import StoredResult, read_entry

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from benchmarks.trees import HEADER, make_tree  # noqa: E402

PLAIN, MEASURING, PROCESSES = 3, 2, 2
BUILD = ("build", "--env", "current", "--jobs", "2", "--processes", str(PROCESSES))
DIED = "died.md:a"
"""The cell of the tree that always fails, and so runs in each build."""
DONE = 1
"""Exit code of a complete build of the tree, because of that cell."""

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
subprocess.Popen(["sleep", "8000"], start_new_session=True)
open("started.txt", "w").write("started")
"""
_STARTED = re.compile(
    r"  (?:\[\d+/\d+\] )?(?P<cell>\S+\.md:\S+)  running(?:, process (?P<process>\d+) of \d+)?"
)
_FROM_CACHE = re.compile(
    r"(?P<cell>\S+\.md:\S+): process (?P<process>\d+) was measured before an interruption; .*"
)
_FINISHED = re.compile(r"✓ (?P<cell>\S+\.md:\S+)  ")


def started(said: str) -> set[tuple[str, int]]:
    """Return the cells, and their processes from 0, that a build ran, by what it printed to stderr."""
    return _cells(_STARTED, said) - _cells(_FROM_CACHE, said)


def ran(said: str) -> set[str]:
    """Return the cells that a build ran, without the one that always fails."""
    return {cell for cell, _ in started(said)} - {DIED}


def finished(said: str) -> set[str]:
    """Return the cells that succeeded."""
    return {match["cell"] for match in map(_FINISHED.match, said.splitlines()) if match}


def _cells(pattern: re.Pattern[str], said: str) -> set[tuple[str, int]]:
    matches = filter(None, map(pattern.fullmatch, said.splitlines()))
    return {(match["cell"], int(match["process"] or 1) - 1) for match in matches}


@dataclass
class Tree:
    """A project of eight cells, two of which measure, and builds of it."""

    root: Path
    """Where the notebooks are; nothing is written if it exists."""
    folder: Path
    """For what builds write elsewhere: temporary folders and locks."""

    def __post_init__(self) -> None:
        """Write the notebooks."""
        for name in ("tmp", "cache"):
            (self.folder / name).mkdir(parents=True)
        if self.root.exists():
            return
        make_tree(self.root, PLAIN)
        place = Workspace(self.root)
        place.cell("leaves.md", _SLEEP.format(header=HEADER), "id=a outputs=started.txt")
        place.cell("died.md", "import os; print('so far', flush=True); os.kill(os.getpid(), 9)", "id=a")
        for number in range(MEASURING):
            code = _MEASURE.format(header=HEADER, record=MEASURED, number=number)
            place.cell(f"op/impls/m{number}.md", code, "id=benchmark outputs=op.jsonl")
        combine = _COMBINE.format(header=HEADER)
        attributes = "id=combine needs=../impls/*.md:benchmark outputs=table.csv"
        place.cell("op/results/combined_results.md", combine, attributes)

    def remove_results(self) -> None:
        """Remove the cache and the site."""
        for name in (".kbt", "site"):
            shutil.rmtree(self.root / name, ignore_errors=True)

    @property
    def _places(self) -> dict[str, str]:
        return {
            "TMPDIR": str(self.folder / "tmp"),
            "XDG_CACHE_HOME": str(self.folder / "cache"),
            # Where Python finds `sitecustomize`.
            "PYTHONPATH": f"{Path(__file__).with_name('syncing')}{os.pathsep}{os.environ.get('PYTHONPATH', '')}",
            "KBT_TEST_SYNCED": str(self.folder / "synced"),
        }

    def cut_power(self, effect: str) -> None:
        """Let what no build has synced be lost: files become ``empty``, ``zeros`` of their size, or are ``gone``."""
        log = self.folder / "synced"
        synced = set(log.read_text().splitlines()) if log.exists() else set()
        made = [*(self.root / ".kbt").rglob("*"), *(self.root / "site").rglob("*")]
        for path in [path for path in made if path.is_file() and not path.is_symlink()]:
            status = path.stat()
            is_named = f"{path.parent.stat().st_ino} {path.name} {status.st_ino}" in synced
            written = f"{status.st_ino} {status.st_size} {status.st_mtime_ns}" in synced
            if written and (effect != "gone" or is_named):
                continue
            if effect == "gone":
                path.unlink()
            else:
                path.write_bytes(bytes(status.st_size if effect == "zeros" else 0))

    def start(self, *arguments: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [PYTHON, "-m", "kernels_bench_tools", *BUILD, *arguments],
            cwd=self.root,
            env=os.environ | self._places,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def build(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return run_kbt(self.root, *BUILD, *arguments, timeout=120, **self._places)

    def kill_build(self, generator: random.Random, *arguments: str) -> str | None:
        """Start a build and kill it at a random moment; return what it had said, or None if it ended before."""
        build = self.start(*arguments)
        # Lines are counted, not seconds, so that the moment does not depend on the speed of the machine.
        lines = [line for _, line in zip(range(generator.randrange(25)), build.stderr, strict=False)]
        time.sleep(generator.uniform(0.0, 0.05 if generator.random() < 0.7 else 0.5))
        build.kill()
        said = "".join(lines) + build.communicate(timeout=30)[1]
        return said if build.returncode < 0 else None

    def entries(self) -> dict[str, StoredResult]:
        """Return the results in the cache that a build would use, by the names of their folders.

        Raises:
            DamagedEntryError: One is damaged.
        """
        paths = {path.name: path for path in (self.root / ".kbt/cache").glob("[!.]*")}
        # An entry that was being replaced is put back, unless its successor is there.
        used = [name for name in paths if name.partition(".")[0] not in paths.keys() - {name}]
        entries = [(name, read_entry(paths[name])) for name in used]
        return {name: entry.result for name, entry in entries if entry is not None}

    def stored(self) -> set[tuple[str, int | None]]:
        """Return the cells, and single processes of cells, whose successful results are in the cache."""
        stored = set()
        for name, result in self.entries().items():
            process = re.search(r"-process-(\d+)$", name.partition(".")[0])
            if result.status is Status.OK:
                stored.add((result.cell, int(process[1]) if process else None))
        return stored

    def orphans(self) -> list[str]:
        """Return the command lines of processes that builds of this tree have left."""
        folders = (str(self.root), str(self.folder))
        lines = []
        for process in psutil.process_iter(["cmdline", "cwd", "status"]):
            line = " ".join(process.info["cmdline"] or [])
            # Cells, and all that they start, run in folders below these.
            inside = str(process.info["cwd"] or "").startswith(folders)
            mentioned = any(folder in line for folder in folders)
            if process.info["status"] != psutil.STATUS_ZOMBIE and (inside or mentioned):
                lines.append(line)
        return lines

    def leftovers(self) -> list[str]:
        """Return the unfinished entries and temporary files and folders that builds have left."""
        unfinished = [*(self.root / ".kbt").rglob(".draft-*"), *(self.root / ".kbt").rglob("*.replaced")]
        return [str(path) for path in [*unfinished, *(self.folder / "tmp").iterdir()]]

    def pages(self) -> dict[str, bytes]:
        """Return the site's files, with all cells' seconds equal.

        The site must be the one that publishing the last build into an empty folder gives.
        """
        run = read_struct(self.root / ".kbt/build.json", BuildRun)
        expected = self._publish(run)
        files = read_folder(self.root / "site")
        assert files == expected, [name for name in expected if expected[name] != files.get(name)]
        for notebook in run.notebooks:
            notebook.blocks = [
                msgspec.structs.replace(block, seconds=1.0, cached=True)
                if isinstance(block, CellRun)
                else block
                for block in notebook.blocks
            ]
        return self._publish(run)

    def _publish(self, run: BuildRun) -> dict[str, bytes]:
        output = self.folder / "site"
        shutil.rmtree(output, ignore_errors=True)
        publish(self.root, run, output, missing_summaries(self.root, run))
        return read_folder(output)


def read_folder(folder: Path) -> dict[str, bytes]:
    """Return the bytes of a site's files, without its manifest, which depends on the order of builds, and .gitignore."""
    return {name: data for name, data in contents(folder).items() if f"/{name}".rpartition("/.")[1] == ""}
