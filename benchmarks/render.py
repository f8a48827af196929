"""Time of publishing 100 operators x 10 implementations x 20 workloads, 20,000 records.

    python benchmarks/render.py [--operators 100] [--implementations 10] [--workloads 20]

Records are combined once, and all operators share the charts of the first. Then publishing is timed in new processes:
half of the operators (to see whether time is linear), all, nothing changed, and one operator changed. Memory is that
of the largest process. To compare with another checkout, run that checkout's own benchmarks/render.py: it writes the
same project.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import msgspec

from kernels_bench_tools.file_io import read_struct, write_struct
from kernels_bench_tools.records.build import BuildRun, CellRun, NotebookRun, ProjectInfo, Prose
from kernels_bench_tools.records.codec import write_records
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.notebook import FrontMatter
from kernels_bench_tools.records.record import (
    SCHEMA,
    CacheState,
    Environment,
    Latency,
    Provenance,
    Record,
    Regime,
    Roofline,
    Status,
    Timer,
    Work,
)
from kernels_bench_tools.records.request import Need, Needs
from kernels_bench_tools.records.summary import Summary

H200 = Device(kind="cuda", name="NVIDIA H200", slug="nvidia-h200", driver="580.95.05")
CODE = Path(__file__).read_text(encoding="utf-8").split("def ", 1)[0]
FIRST = "operator_000"


def make_record(operator: str, number: int, workload: int, chance: random.Random) -> Record:
    """Return a record of realistic size."""
    median = 0.01 * (1 + workload) ** 1.5 / (1 + 0.1 * number) * chance.uniform(0.99, 1.01)
    times = [round(median * chance.uniform(0.995, 1.005), 6) for _ in range(20)]
    moved = 10_000_000 * (1 + workload)
    return Record(
        ts=f"2026-11-20T10:{number:02d}:{workload:02d}.000+00:00",
        run=f"{operator}-{number}",
        impl=f"kernel_{number}",
        op=operator,
        wl={"name": f"T{128 * (1 + workload)}_D4096", "tokens": 128 * (1 + workload), "dim": 4096, "dtype": "bfloat16"},
        env=Environment(torch="2.11.0", cuda="13.0", driver="580.95.05", py="3.12.3", l2_bytes=62914560),
        device=H200,
        lat_ms=Latency(
            p10=median * 0.997, p50=median, p90=median * 1.003, mean=median, iqr=median * 0.003, raw_times=times,
            reps=30, ci_low=median * 0.998, ci_high=median * 1.002, confidence=0.95, timer=Timer.CUPTI,
            cache=CacheState.READ_FLUSH,
        ),
        compile_ms=120.0, peak_bytes=moved, ok=True, absmax=0.004, regime=Regime.HBM,
        work=Work(bytes_read=moved // 2, bytes_written=moved // 2, flops=moved),
        roofline=Roofline(ceiling="copy", value=4270.0, fraction=min(0.99, moved / median / 1e6 / 4270)),
        schema=SCHEMA,
        ceilings={"copy": 4270.0, "read": 4390.0} if workload == 0 else {},
        sentinels={"copy": [0.503, 0.504], "null": [0.0011, 0.0011]} if workload == 0 else {},
        provenance=Provenance(notebook=f"{operator}/impls/kernel_{number}.md", commit="c0ffee" * 6, harness="0.1.0"),
    )  # fmt: skip


def front(number: int) -> FrontMatter:
    """Front matter of an implementation's notebook."""
    return FrontMatter(
        title=f"Kernel {number}",
        description=f"The implementation of origin {number}, as its project ships it.",
        family=["torch", "triton", "hf-kernels", "liger"][number % 4],
        baseline=number == 0,
    )


def implementation(operator: str, number: int) -> NotebookRun:
    """Return an implementation's notebook as a build describes it."""
    records = f".kbt/cache/{operator}/{number}/records.jsonl"
    log = f".kbt/cache/{operator}/{number}/stdout.txt"
    cell = CellRun(
        id="benchmark", code=CODE, line=9, status=Status.OK, seconds=4.2, exit_code=0, stdout=log,
        artifacts={"records.jsonl": records},
    )  # fmt: skip
    text = f"# Kernel {number}\n\nSee [the baseline](kernel_0.md), and `torch` for $x^2$.\n"
    path = f"{operator}/impls/kernel_{number}.md"
    return NotebookRun(path=path, digest="ab" * 32, front=front(number), blocks=[Prose(text=text), cell])


def combine_cell(operator: str, names: list[str]) -> CellRun:
    """Return the combine cell."""
    folder = f".kbt/cache/{operator}/combine"
    return CellRun(
        id="combine", code="from kernels_bench_tools import combine\n\ncombine()\n", line=9, status=Status.OK,
        exit_code=0, artifacts={name: f"{folder}/{name}" for name in names},
    )  # fmt: skip


def write_operator(root: Path, operator: str, implementations: int, workloads: int) -> None:
    """Write the records and logs of an operator."""
    chance = random.Random(operator)
    for number in range(implementations):
        folder = root / f".kbt/cache/{operator}/{number}"
        folder.mkdir(parents=True)
        records = [make_record(operator, number, workload, chance) for workload in range(workloads)]
        write_records(folder / "records.jsonl", records)
        (folder / "stdout.txt").write_text(
            "".join(f"{one.workload}  {one.lat_ms.p50}\n" for one in records if one.lat_ms)
        )


def combine(root: Path, operator: str, implementations: int) -> None:
    """Run ``combine()`` on an operator's records, as its cell does."""
    folder = root / f".kbt/cache/{operator}/combine"
    folder.mkdir(parents=True)
    needs = Needs(
        project=str(root),
        notebook=f"{operator}/results/combined_results.md",
        device=H200,
        cells=[
            Need(
                notebook=f"{operator}/impls/kernel_{number}.md", cell="benchmark", front=front(number), status=Status.OK,
                directory=str(root / f".kbt/cache/{operator}/{number}"),
            )
            for number in range(implementations)
        ],
    )  # fmt: skip
    write_struct(root / "needs.json", needs)
    environment = {**os.environ, "KBT_NEEDS": str(root / "needs.json")}
    command = [sys.executable, "-c", "from kernels_bench_tools import combine; combine()"]
    subprocess.run(command, cwd=folder, env=environment, check=True, stdout=subprocess.DEVNULL)


def copy_combined(root: Path, operator: str) -> None:
    """Give an operator the charts of the first one, and a summary with different times."""
    source, folder = (root / f".kbt/cache/{name}/combine" for name in (FIRST, operator))
    shutil.copytree(source, folder)
    summary = read_struct(folder / "summary.json", Summary)
    summary.operator, summary.title = operator, operator.replace("_", " ").capitalize()
    factor = random.Random(operator).uniform(0.5, 2.0)
    for view in summary.devices:
        for row in view.rows:
            for point in row.points:
                for name in ("p50_ms", "ci_low_ms", "ci_high_ms"):
                    setattr(point, name, getattr(point, name) * factor)
    write_struct(folder / "summary.json", summary)


def make_project(root: Path, operators: int, implementations: int, workloads: int) -> None:
    """Write a project with the results of a build."""
    names = [f"operator_{number:03d}" for number in range(operators)]
    for name in names:
        write_operator(root, name, implementations, workloads)
        combine(root, name, implementations) if name == FIRST else copy_combined(root, name)
    files = sorted(path.name for path in (root / f".kbt/cache/{FIRST}/combine").iterdir())
    shown = "".join(f"![artifact:{name}]\n\n" for name in files if name.endswith((".svg", ".csv")))
    write_struct(root / "build.json", make_build(names, implementations, files, shown))


def make_build(names: list[str], implementations: int, files: list[str], shown: str) -> BuildRun:
    """Return the build of all operators."""
    notebooks = [
        NotebookRun(
            path="index.md",
            digest="cd" * 32,
            front=FrontMatter(title="Many"),
            blocks=[Prose(text="All of it.\n")],
        )
    ]
    for name in names:
        notebooks += [
            NotebookRun(
                path=f"{name}/index.md", digest="ef" * 32, front=FrontMatter(title=name.replace("_", " ").capitalize()),
                blocks=[Prose(text="What it computes.\n\n## Formula\n\n$$y = x^2$$\n")],
            ),
            *[implementation(name, number) for number in range(implementations)],
            NotebookRun(
                path=f"{name}/results/combined_results.md", digest="01" * 32, front=FrontMatter(title=f"{name}: combined"),
                blocks=[Prose(text=shown), combine_cell(name, files)],
            ),
        ]  # fmt: skip
    project = ProjectInfo(title="Many", repository="https://example.org/kernels", commit="c0ffee" * 6)
    return BuildRun(project=project, device=H200, environment="uv", notebooks=notebooks)


def first_operators(build: BuildRun, count: int) -> BuildRun:
    """Return a build of the first ``count`` operators."""
    kept = {f"operator_{number:03d}" for number in range(count)}
    notebooks = [one for one in build.notebooks if one.path == "index.md" or one.path.split("/")[0] in kept]
    return msgspec.structs.replace(build, notebooks=notebooks)


def timed(root: Path, site: str, operators: int) -> dict[str, float]:
    """Publish in a new process; return its seconds, number of files and megabytes."""
    command = [sys.executable, __file__, "--publish", str(root), site, str(operators)]
    # Bytecode is kept, as for an installed package, even if the environment disables it.
    environment = {**os.environ, "PYTHONPYCACHEPREFIX": str(root / "pyc")}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment)
    return json.loads(done.stdout)


def publish_once(root: Path, site: str, operators: int) -> None:
    """Publish and print the measurements, in the new process."""
    start = time.perf_counter()
    from kernels_bench_tools.report.site import publish

    build = first_operators(read_struct(root / "build.json", BuildRun), operators)
    read = time.perf_counter()
    published = publish(root, build, root / site)
    usage = [
        resource.getrusage(who).ru_maxrss / 1024 for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    ]
    end = time.perf_counter()
    found = {
        "seconds": end - start,
        "publish": end - read,
        "written": len(published.written),
        "mb": max(usage),
    }
    found["cpu"] = sum(
        resource.getrusage(who).ru_utime for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )
    print(json.dumps(found))


def change_one_operator(root: Path) -> None:
    """Change the timestamps of one operator's results."""
    path = root / f".kbt/cache/{FIRST}/combine/summary.json"
    days = [b"2026-11-20T10:", b"2026-11-21T10:"]
    data = path.read_bytes()
    # Alternately, so that a kept project changes each time.
    path.write_bytes(data.replace(*days) if days[0] in data else data.replace(*reversed(days)))


def report(root: Path, operators: int) -> None:
    """Time each kind of build and print the results."""

    def line(what: str, found: dict[str, float]) -> None:
        print(
            f"{what:34s} {found['seconds']:6.2f} s  ({found['cpu']:5.2f} s of CPU)  {found['written']:5d} files written"
            f"  {found['mb']:5.0f} MB"
        )

    line(f"everything, {operators // 2} operators", timed(root, "half", operators // 2))
    line(f"everything, {operators} operators", timed(root, "site", operators))
    line("nothing changed", timed(root, "site", operators))
    change_one_operator(root)
    line("one operator changed", timed(root, "site", operators))


def main() -> None:
    """Create the project and time its publication."""
    if sys.argv[1:2] == ["--publish"]:
        publish_once(Path(sys.argv[2]), sys.argv[3], int(sys.argv[4]))
        return
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--operators", type=int, default=100)
    parser.add_argument("--implementations", type=int, default=10)
    parser.add_argument("--workloads", type=int, default=20)
    parser.add_argument(
        "--keep", type=Path, help="folder of the project; created if it does not exist, else used again"
    )
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        root = options.keep or Path(temporary)
        if not (root / "build.json").exists():
            root.mkdir(parents=True, exist_ok=True)
            make_project(root, options.operators, options.implementations, options.workloads)
        for site in ("site", "half"):
            shutil.rmtree(root / site, ignore_errors=True)
        report(root, options.operators)


if __name__ == "__main__":
    main()
