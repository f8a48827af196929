"""Overhead of the pipeline: builds of generated notebooks with trivial cells.

    python benchmarks/pipeline.py                                 # everything: 15 minutes on two cores
    python benchmarks/pipeline.py --sizes 50,200 --layouts flat   # a part
    python benchmarks/pipeline.py --json > pipeline.json

To compare two checkouts, run this file alternately with the Python of each one's environment: it measures the ``kbt``
that is installed there, and uses nothing else of the package.

Every value is the median of ``--repeats`` runs of a whole command, including publishing, with minimum and maximum in
parentheses. *Cold* is without ``.kbt`` and ``site``, but with uv's cache. *No-op* repeats the command. *Edit* follows a
change of one notebook's code: that cell and the combine cell run. *CPU* is the processor time of the command and its
child processes, which is comparable on a busy machine, too. *Per cell* is cold minus no-op, divided by the number of
cells; the next column is ``uv run`` alone for the same scripts, with the same parallelism. *Peak* is the largest
process of a build, including cells. "uvnote main" are reference measurements of uvnote's main branch (November 2026)
with similar trees on two cores of the same type; it is not on PyPI, so it is not measured here. uvnote from PyPI builds
single notebooks, and is measured. Use an otherwise idle machine.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import version
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from benchmarks.commands import Cost, Costs, timed, variables
from benchmarks.singles import SINGLES, time_single
from benchmarks.trees import Layout, make_tree, write_notebook

KBT = [sys.executable, "-m", "kernels_bench_tools", "build"]
UVNOTE_MAIN = {
    ("flat", 10): (1.32, 0.51),
    ("flat", 50): (5.66, 1.52),
    ("flat", 200): (20.9, 4.39),
    ("unique", 200): (23.0, 18.7),
    ("folders", 200): (21.8, 5.8),
}
"""Cold and no-op seconds of uvnote's main branch, by layout and number of notebooks."""


@dataclass(frozen=True)
class TreeCosts:
    """Results for one generated tree."""

    layout: Layout
    size: int
    cold: Costs
    noop: Costs
    edit: Costs
    plain: Costs
    """``uv run`` of the notebooks' scripts, without a notebook runner."""

    @property
    def per_cell(self) -> float:
        """Milliseconds of a build per cell that runs."""
        return 1000 * (self.cold.seconds - self.noop.seconds) / (self.size + 1)

    @property
    def plain_per_cell(self) -> float:
        """Milliseconds of ``uv run`` per script."""
        return 1000 * self.plain.seconds / self.size


def time_tree(root: Path, size: int, layout: Layout, repeats: int, environ: dict[str, str]) -> TreeCosts:
    """Generate a tree and time builds of it."""
    paths = make_tree(root, size, layout)
    edits = iter(range(1_000_000))

    def forget() -> None:
        for folder in [root / "site", *root.rglob(".kbt")]:
            shutil.rmtree(folder, ignore_errors=True)

    def edit() -> None:
        write_notebook(paths[size // 2], size // 2, layout, edit=f"print('edit {next(edits)}')\n")

    def repeat(prepare: Callable[[], None]) -> Costs:
        return Costs(tuple(_after(prepare, lambda: timed(KBT, root, environ)) for _ in range(repeats)))

    cold = repeat(forget)
    noop, edited = repeat(lambda: None), repeat(edit)
    scripts = sorted(root.glob("*/impls/.kbt/cells/*.py"))
    plain = Costs(tuple(_plain(scripts, root, environ) for _ in range(repeats)))
    return TreeCosts(layout, size, cold, noop, edited, plain)


def _after(prepare: Callable[[], None], run: Callable[[], Cost]) -> Cost:
    prepare()
    return run()


def _plain(scripts: list[Path], root: Path, environ: dict[str, str]) -> Cost:
    """Time ``uv run`` of scripts with existing environments, one per processor at a time."""
    jobs = root / ".scripts"
    jobs.write_text("\n".join(map(str, scripts)) + "\n", encoding="utf-8")
    command = ["xargs", "-a", str(jobs), "-P", str(os.cpu_count() or 1), "-n", "1", "uv", "run", "-q"]
    (root / ".plain").mkdir(exist_ok=True)
    timed(command, root / ".plain", environ)  # creates the environments
    return timed(command, root / ".plain", environ)


def tree_table(trees: list[TreeCosts]) -> Iterator[str]:
    """Yield the lines of a Markdown table."""
    yield "| tree | cold | no-op | edit | CPU: cold / no-op | per cell | `uv run` per cell | peak | uvnote main: cold / no-op |"
    yield "|---|---|---|---|---|---|---|---|---|"
    for tree in trees:
        known = UVNOTE_MAIN.get((tree.layout.value, tree.size))
        peak = max(costs.peak_mib for costs in (tree.cold, tree.noop, tree.edit))
        yield (
            f"| {tree.size} {tree.layout.value} | {tree.cold} | {tree.noop} | {tree.edit} "
            f"| {tree.cold.cpu_seconds:.2f} / {tree.noop.cpu_seconds:.2f} s "
            f"| {tree.per_cell:.0f} ms | {tree.plain_per_cell:.0f} ms | {peak:.0f} MiB "
            f"| {f'{known[0]} / {known[1]} s' if known else ''} |"
        )


def machine() -> str:
    """Return one line with the machine and the versions."""
    load = f", load average {os.getloadavg()[0]:.1f} at the start"
    versions = f"Python {platform.python_version()}, uv {version('uv')}, uvnote {version('uvnote')}"
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, {versions}{load}."


def main() -> None:
    """Run the benchmarks that the command line selects, and print their results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--sizes", default="10,50,200,1000", help="numbers of notebooks [default: %(default)s]"
    )
    parser.add_argument("--layouts", default="flat,unique,folders", help="[default: %(default)s]")
    parser.add_argument(
        "--singles", default=",".join(SINGLES), help="single notebooks [default: %(default)s]"
    )
    parser.add_argument("--repeats", type=int, default=3, help="runs of each command [default: %(default)s]")
    parser.add_argument("--json", action="store_true", help="print JSON instead of Markdown")
    chosen = parser.parse_args()
    where = machine()
    trees, singles = [], []
    with tempfile.TemporaryDirectory(prefix="kbt-pipeline-") as name:
        scratch = Path(name).resolve()
        environ = variables(scratch)
        timed([*KBT, "--help"], scratch, environ)  # so that bytecode is not compiled in timed runs
        for layout in map(Layout, filter(None, chosen.layouts.split(","))):
            for size in map(int, filter(None, chosen.sizes.split(","))):
                print(f"{size} notebooks, {layout.value}", file=sys.stderr)
                root = scratch / f"{layout.value}-{size}"
                trees.append(time_tree(root, size, layout, chosen.repeats, environ))
                shutil.rmtree(root)
        for kind in filter(None, chosen.singles.split(",")):
            print(f"one notebook: {kind}", file=sys.stderr)
            singles.append(time_single(scratch / kind, kind, chosen.repeats, environ))
    if chosen.json:
        print(
            json.dumps(
                {
                    "machine": where,
                    "trees": [asdict(one) for one in trees],
                    "singles": [asdict(one) for one in singles],
                },
                indent=1,
            )
        )
        return
    print(where, "", *tree_table(trees), sep="\n")
    if singles:
        print(
            "",
            "| one notebook | kbt cold | kbt no-op | peak | uvnote cold | uvnote no-op | peak | `uv run` |",
            sep="\n",
        )
        print("|---|---|---|---|---|---|---|---|")
        print(*(one.row() for one in singles), sep="\n")


if __name__ == "__main__":
    main()
