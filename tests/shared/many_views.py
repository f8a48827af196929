"""A project whose operator has two functions, three workload sets and thirteen implementations."""

from pathlib import Path

import msgspec
import pytest
from builds import build_of, notebook_run
from devices import EPYC, H200
from made_summaries import PROVENANCE, made_point, made_row, made_view
from projects import once_per_run

from kernels_bench_tools.chart.figure import chart_svg
from kernels_bench_tools.records.build import BuildRun, CellRun, NotebookRun, Prose
from kernels_bench_tools.records.device import Device
from kernels_bench_tools.records.record import Environment, HubKernel, Provenance, Status
from kernels_bench_tools.records.summary import DeviceSummary, Row, Summary, WorkloadSummary
from kernels_bench_tools.report.site import publish
from kernels_bench_tools.results.metrics import chart_files
from kernels_bench_tools.text.names import slugify

FAMILIES = [
    *("torch", "triton", "torch-compile", "liger", "quack", "hf-kernels", "fla"),
    *("xformers", "sage", "flash", "flex", "cudnn", "math"),
]
ARTIFACTS = ".kbt/cache/combine/artifacts"
SETS = {"default": 12, "large": 6, "decode": 6}
HUB = HubKernel(
    repo="kernels-community/activation",
    requested="kernels-community/activation@1",
    origin="lock",
    commit="feedface" * 5,
    variant="torch29-cxx11-cu130-x86_64-linux",
    version=1,
    digest="ab12" * 16,
    signature="verified",
    dirty=False,
    trusted="publisher",
    notes=["version 2 has no build here"],
)


def _row(device: Device, number: int, family: str, workloads: list[WorkloadSummary], key: str) -> Row:
    implementation = f"{slugify(family).replace('-', '_')}_activation"
    # One is slower in one view than in the others, one cannot run in one view, and one in none.
    factor = 1.0 if number == 0 else 1.9 - 0.11 * number - (0.5 if key == "gelu-decode" else 0)
    missing = family == "xformers" or (family == "quack" and key == "swiglu-large")
    status = Status.UNSUPPORTED if missing else Status.OK
    reason = "ModuleNotFoundError: no such package here" if missing else ""
    points = []
    for workload in workloads:
        size = workload.axes["tokens"] * workload.axes["dim"]
        about = {"fraction": 0.3 * factor, "ceiling": "copy", "measured": "2026-11-20T10:00:00Z"}
        point = made_point(device, workload.name, size, factor, status, reason, **about)
        point.e2e_ms = point.p50_ms and point.p50_ms + 0.02
        points.append(point)
    hub = [HUB] if family == "hf-kernels" else []
    return made_row(
        *(device, implementation, points, factor, key),
        title=f"{family.title()} activation",
        family=family,
        environment=Environment(torch="2.11.0", cuda="13.0", py="3.12.3"),
        provenance=Provenance(notebook=f"activation/impls/{implementation}.md", hub=hub, **PROVENANCE),
    )


def _view(device: Device, group: str, name: str, count: int, first: bool) -> DeviceSummary:
    title = f"{group} · {name}"
    key = "" if first else slugify(title)
    sizes = [(128 * (1 + at // 6), 256 * (1 + at % 6)) for at in range(count)]
    workloads = [
        WorkloadSummary(
            name=f"{slugify(group)}-{name}-T{tokens}_D{dim}",
            dtype="bfloat16",
            set=name,
            group=group,
            axes={"tokens": tokens, "dim": dim},
        )
        for tokens, dim in sizes
    ]
    rows = [_row(device, at, family, workloads, key) for at, family in enumerate(FAMILIES)]
    rows.sort(key=lambda row: -(row.speedup or 0))
    for rank, row in enumerate((row for row in rows if row.status is Status.OK), start=1):
        row.rank = rank
    peaks = {"copy": 4270.0}
    return made_view(device, "torch_activation", workloads, rows, view=title, key=key, ceilings=peaks)


def make_summary() -> Summary:
    """Two functions in three sets on a GPU, and both on a CPU."""
    views = [
        _view(H200, group, name, count, group == "SwiGLU" and name == "default")
        for group in ("SwiGLU", "GELU")
        for name, count in SETS.items()
    ]
    views += [_view(EPYC, group, "cpu", 3, group == "SwiGLU") for group in ("SwiGLU", "GELU")]
    return Summary(operator="activation", title="Activation", devices=views)


def _implementation(row: Row) -> NotebookRun:
    cell = CellRun(id="benchmark", code="run_benchmark('activation', f)\n", line=9, status=Status.OK)
    return notebook_run(
        f"activation/impls/{row.implementation}.md",
        cell,
        title=row.title,
        description=f"{row.title}, as its project ships it.",
        family=row.family,
    )


def many_views_site(factory: pytest.TempPathFactory) -> Path:
    """Return the folder of the published site, made once per test run; the project is the folder that it is in."""

    def make(folder: Path) -> None:
        write_charts(folder)
        publish(folder, describe_build(), folder / "site")

    return once_per_run(factory, "many_views", make) / "site"


def write_charts(root: Path) -> None:
    """Write what the combine cell leaves, with charts drawn as ``combine()`` draws them."""
    summary = make_summary()
    folder = root / ARTIFACTS
    folder.mkdir(parents=True)
    (folder / "summary.json").write_bytes(msgspec.json.encode(summary))
    for chart in chart_files():
        (folder / f"{chart}.svg").write_bytes(chart_svg(summary, chart))


def describe_build() -> BuildRun:
    """Return the build that left these files."""
    names = sorted(["summary.json", *(f"{chart}.svg" for chart in chart_files())])
    cell = CellRun(
        id="combine",
        code="combine()\n",
        line=9,
        status=Status.OK,
        artifacts={name: f"{ARTIFACTS}/{name}" for name in names},
    )
    shown = "".join(f"![artifact:{chart}.svg]\n\n" for chart in chart_files())
    return build_of(
        notebook_run("index.md", title="Kernels"),
        notebook_run(
            "activation/index.md",
            Prose(text="What it computes.\n"),
            title="Activation",
            description="Gate one half with the other.",
        ),
        *[_implementation(row) for row in make_summary().devices[0].rows],
        notebook_run(
            "activation/results/combined_results.md",
            Prose(text=shown),
            cell,
            title="Activation: combined results",
        ),
        device=EPYC,
        repository="https://example.org/kernels",
    )
